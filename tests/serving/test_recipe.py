from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.errors import UsageError
from escha_oscar.serving.budget import GB, MambaStrategy
from escha_oscar.serving.model_config import ModelConfig, read_model_config
from escha_oscar.serving.recipe import Recipe, Request, as_data, as_sh, as_systemd, build_recipe
from tests.support.checkpoints import PLAIN, TWO_SIZES, write_config

CARD = Request(tp=2, vram=12 * GB)


def plain(folder: Path, **changes: Any) -> ModelConfig:
    return read_model_config(write_config(folder, PLAIN, **{"max_position_embeddings": 32768, **changes}))


def values(recipe: Recipe) -> dict[str, str]:
    return {setting.name: setting.value for setting in (*recipe.environment, *recipe.arguments)}


def refusal(model: ModelConfig, **changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build_recipe(model, replace(CARD, **changes))
    return caught.value.message


def warning(model: ModelConfig, text: str, **changes: Any) -> bool:
    return any(text in entry for entry in build_recipe(model, replace(CARD, **changes)).warnings)


def test_the_moe_checkpoint_gets_its_measured_launch(moe: ModelConfig) -> None:
    recipe = build_recipe(moe, replace(CARD, rotations_dir="/r"))
    assert values(recipe) == {
        "SGLANG_OSCAR_K_ROTATION_PATH": "/r/k_rotation_hadamard_hd256.pt",
        "SGLANG_OSCAR_V_ROTATION_PATH": "/r/v_rotation_hadamard_hd256.pt",
        "SGLANG_CHUNK_DECODE_CAP": "1536",
        "SGLANG_CHUNK_FAIR_FLOOR": "256",
        "--tp-size": "2",
        "--ep-size": "2",
        "--attention-backend": "triton",
        "--kv-cache-dtype": "int2",
        "--kv-cache-quant-group-size": "32",
        "--context-length": "262144",
        "--mem-fraction-static": "0.88",
        "--chunked-prefill-size": "4096",
        "--max-running-requests": "12",
        "--max-mamba-cache-size": "64",
        "--mamba-scheduler-strategy": "extra_buffer",
        "--cuda-graph-bs": "1 2 4 8 12",
    }
    assert recipe.warnings == ()


def test_the_dense_checkpoint_gets_its_measured_launch(dense: ModelConfig) -> None:
    found = values(build_recipe(dense, CARD))
    expected = {
        "--kv-cache-quant-group-size": "64",
        "--context-length": "196608",
        "--mem-fraction-static": "0.87",
        "--chunked-prefill-size": "6144",
        "--max-running-requests": "8",
        "--max-mamba-cache-size": "40",
        "--triton-attention-num-kv-splits": "64",
        "--mamba-ssm-dtype": "float16",
    }
    assert expected.items() <= found.items()
    assert "--ep-size" not in found
    assert "--enable-mixed-chunk" not in found
    assert warning(dense, "leave speculative decoding off")


def test_another_model_follows_the_same_rules(tmp_path: Path) -> None:
    model = plain(tmp_path)
    recipe = build_recipe(model, replace(CARD, vram=24 * GB, weights=2 * GB))
    found = values(recipe)
    assert (found["--kv-cache-quant-group-size"], found["--mem-fraction-static"]) == ("64", "0.9")
    assert found["--context-length"] == "32768"
    assert not {"--max-mamba-cache-size", "--mamba-scheduler-strategy", "--ep-size"} & set(found)
    assert recipe.profile == "llama, by the same rules"
    assert values(build_recipe(model, CARD))["--mem-fraction-static"] == "0.88"
    assert warning(model, "the size of the weights is unknown")
    odd = plain(tmp_path, head_dim=80)
    assert values(build_recipe(odd, CARD))["--kv-cache-quant-group-size"] == "80"


def test_hybrids_get_a_chunk_that_their_slots_can_hold(moe: ModelConfig, dense: ModelConfig) -> None:
    assert values(build_recipe(moe, replace(CARD, pool_tokens=350257)))["--chunked-prefill-size"] == "6144"
    assert values(build_recipe(moe, replace(CARD, context=65536)))["--chunked-prefill-size"] == "2048"
    assert "210000 tokens / chunk 4096 = 51.3 checkpoints for 32 slots" in refusal(
        dense, pool_tokens=210000, chunk=4096, max_mamba=32
    )
    chosen = build_recipe(dense, replace(CARD, pool_tokens=210000, chunk=8192, max_mamba=32))
    assert values(chosen)["--chunked-prefill-size"] == "8192"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"ep": 1}, "ep-size: --tp 2 without expert parallelism copies all experts", id="ep missing"),
        pytest.param({"ep": 3}, "ep-size: --ep 3 does not divide --tp 2", id="ep odd"),
        pytest.param({"backend": "flashinfer"}, "flashinfer asserts on the hybrid path on sm_120", id="flashinfer"),
        pytest.param({"backend": "fa3"}, "not in fa3", id="another backend"),
        pytest.param(
            {"backend": "flashinfer", "compute_capability": (9, 0)}, "not in flashinfer", id="flashinfer elsewhere"
        ),
        pytest.param({"vram": 11 * GB}, "memory: 2 x 11.0 GB: this checkpoint needs 24 GB", id="too little memory"),
        pytest.param({"mem_fraction": 0.92}, "vram-cliff: mem fraction 0.92", id="cliff by fraction"),
        pytest.param({"max_mamba": 80}, "vram-cliff: mem fraction 0.88 with 80 mamba slots", id="cliff by slots"),
        pytest.param({"max_mamba": 4}, "mamba-slots: 4 slots, and one request takes 5", id="no slot"),
        pytest.param({"chunk": 2048}, "mamba-slots: 262144 tokens / chunk 2048 = 128.0", id="chunk"),
        pytest.param({"pool_tokens": 1000}, "pool: a session of 262144 tokens cannot fit", id="small pool"),
        pytest.param({"group_size": 48}, "group size 48 does not divide head size 256", id="group"),
        pytest.param({"weights": 8 * GB}, "context 262144 does not fit", id="context"),
        pytest.param({"weights": 11 * GB}, "no memory is left for KV", id="nothing left"),
    ],
)
def test_combinations_known_to_break_are_refused_with_the_reason(
    moe: ModelConfig, changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(moe, **changes)


def test_dense_and_two_sized_models_have_refusals_of_their_own(tmp_path: Path, dense: ModelConfig) -> None:
    assert "a dense model has no experts" in refusal(dense, ep=2)
    two = read_model_config(write_config(tmp_path, TWO_SIZES, max_position_embeddings=8192))
    assert "two-head-sizes: full layers have heads of 512, sliding ones of 256" in refusal(two)
    assert "states no context length" in refusal(read_model_config(write_config(tmp_path, PLAIN)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mixed_chunk": True}, "can restore a stale state"),
        ({"strategy": MambaStrategy.NO_BUFFER}, "no_buffer disables the overlap scheduler"),
        ({"max_requests": 40}, "--max-requests 40 is more than can run at once: 8 is set (40 slots, 5 per request)"),
        ({"context": 262145, "chunk": 8192}, "more than the model's own 262144"),
        ({"group_size": 128}, "two groups per head (group size 128)"),
        ({}, "--disable-prefill-cuda-graph"),
    ],
)
def test_doubtful_combinations_are_warned_about(dense: ModelConfig, changes: dict[str, Any], text: str) -> None:
    assert warning(dense, text, **changes)
    assert not warning(dense, text, vram=24 * GB, max_requests=8)


def test_mixed_chunk_and_no_buffer_are_no_trap_together(dense: ModelConfig) -> None:
    changes = {"mixed_chunk": True, "strategy": MambaStrategy.NO_BUFFER}
    assert not warning(dense, "stale state", **changes)
    command = build_recipe(dense, replace(CARD, **changes)).command
    assert "--enable-mixed-chunk" in command
    assert command[command.index("--max-running-requests") + 1] == "12"


def test_mixed_chunk_on_moe_is_allowed_with_its_history(moe: ModelConfig, dense: ModelConfig) -> None:
    assert "--enable-mixed-chunk" in build_recipe(moe, replace(CARD, mixed_chunk=True)).command
    assert warning(moe, "crashed a hand-merged MoE server", mixed_chunk=True)
    assert warning(moe, "can restore a stale state", mixed_chunk=True)
    assert not warning(dense, "crashed", mixed_chunk=True)
    assert not warning(moe, "crashed")


@pytest.mark.parametrize(
    ("changes", "running", "graphs"),
    [({}, "12", "1 2 4 8 12"), ({"max_requests": 3}, "3", "1 2 3"), ({"max_requests": 16}, "12", "1 2 4 8 12"),
     ({"max_mamba": 5, "chunk": 65536}, "1", "1")],
)  # fmt: skip
def test_the_concurrency_that_is_set_is_the_one_that_runs(
    moe: ModelConfig, changes: dict[str, Any], running: str, graphs: str
) -> None:
    found = values(build_recipe(moe, replace(CARD, **changes)))
    assert (found["--max-running-requests"], found["--cuda-graph-bs"]) == (running, graphs)


def test_shared_layers_are_warned_about(tmp_path: Path) -> None:
    assert warning(plain(tmp_path, num_kv_shared_layers=1), "1 KV-shared layers")


def test_every_setting_says_why_and_the_fixed_ones_are_marked(moe: ModelConfig) -> None:
    recipe = build_recipe(moe, replace(CARD, wsl=True))
    settings = (*recipe.environment, *recipe.arguments)
    assert all(len(setting.why) > 8 and "\n" not in setting.why for setting in settings)
    fixed = {setting.name for setting in settings if setting.fixed}
    assert fixed >= {"--ep-size", "--attention-backend", "--mem-fraction-static", "--max-mamba-cache-size"}
    assert "LD_LIBRARY_PATH" in fixed
    assert "--context-length" not in fixed


def test_the_script_runs_and_passes_the_command_on(moe: ModelConfig, tmp_path: Path) -> None:
    """A stand-in for python prints what it is started with."""
    awkward = '/m/it\'s "here" $HOME'
    recipe = build_recipe(moe, replace(CARD, model_path=awkward, rotations_dir="/r r", wsl=True))
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$SGLANG_OSCAR_K_ROTATION_PATH"\n')
    (bin_dir / "python").chmod(0o755)
    script = tmp_path / "launch.sh"
    script.write_text(as_sh(recipe))
    run = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, env={"PATH": f"{bin_dir}:/usr/bin:/bin"}, check=True
    )
    expected = [*recipe.command[1:], "/r r/k_rotation_hadamard_hd256.pt"]
    assert run.stdout.splitlines() == expected
    assert awkward in expected


def test_the_script_mentions_wsl_where_it_is_not(moe: ModelConfig) -> None:
    without, with_wsl = as_sh(build_recipe(moe, CARD)), as_sh(build_recipe(moe, replace(CARD, wsl=True)))
    assert "# export LD_LIBRARY_PATH=" in without
    assert "\nexport LD_LIBRARY_PATH=" not in without
    assert "\nexport LD_LIBRARY_PATH=" in with_wsl
    assert ":/usr/lib/wsl/lib" in with_wsl


def test_the_unit_quotes_for_systemd(moe: ModelConfig) -> None:
    request = replace(CARD, model_path='/m/50% "x" $y\n', rotations_dir="/r r", wsl=True)
    unit = as_systemd(build_recipe(moe, request)).splitlines()
    assert "[Service]" in unit
    assert 'Environment="SGLANG_OSCAR_K_ROTATION_PATH=/r r/k_rotation_hadamard_hd256.pt"' in unit
    assert "Environment=LD_LIBRARY_PATH=/usr/lib/wsl/lib" in unit
    start = next(entry for entry in unit if entry.startswith("ExecStart="))
    assert '--model-path "/m/50%% \\"x\\" $$y\\x0a" --tp-size 2' in start


def test_data_holds_the_command_that_the_script_runs(moe: ModelConfig) -> None:
    recipe = build_recipe(moe, CARD)
    data = as_data(recipe)
    assert data["launch"][:3] == ["python", "-m", "sglang.launch_server"]
    assert shlex.join(data["launch"]).endswith("--cuda-graph-bs 1 2 4 8 12")
    assert data["arguments"][0] == {
        "name": "--tp-size",
        "value": "2",
        "why": "heads and weights are split over the GPUs",
        "fixed": True,
        "script": None,
    }


def test_the_fit_is_checked_where_it_can_be(tmp_path: Path, moe: ModelConfig) -> None:
    assert build_recipe(moe, replace(CARD, weights=6 * GB)).profile.startswith("Escha-W2 MoE")
    undescribed = plain(tmp_path, layer_types=["mamba", "attention"] * 2)
    assert build_recipe(undescribed, replace(CARD, weights=11 * GB)).warnings
