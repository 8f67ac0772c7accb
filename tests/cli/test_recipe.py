from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import main
from tests.support.checkpoints import DENSE, MOE, PLAIN, write_config

TOO_MANY = "--max-requests 16 is more than can run at once: 12 is set (64 slots, 5 per request)"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: object) -> tuple[int, str, str]:
        code = main(["recipe", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def common(folder: Path, config: dict[str, Any] = MOE) -> tuple[object, ...]:
    return "--config", write_config(folder, config), "--tp", 2, "--vram", "12GB"


def test_a_script_is_the_default(run: Any, tmp_path: Path) -> None:
    code, out, err = run(*common(tmp_path), "--no-wsl", "--model-path", "/models/m")
    assert (code, err) == (0, "")
    assert out.startswith("#!/usr/bin/env bash\n# Escha-W2 MoE (escha 1.0.2+qwen3moe)\n")
    assert "  --ep-size 2  # [do not change] with --tp-size alone every GPU holds all experts" in out
    assert "  --context-length 262144  # [tune] the longest session" in out
    assert "(CTXLEN of serve.sh)" in out
    assert out.endswith('exec python -m sglang.launch_server "${args[@]}"\n')


def test_a_unit_for_systemd(run: Any, tmp_path: Path) -> None:
    code, out, err = run(*common(tmp_path), "--format", "systemd", "--wsl", "--max-requests", 16)
    assert (code, err) == (0, f"warning: {TOO_MANY}\n")
    assert "\n[Service]\n" in out
    assert out.splitlines()[-1].startswith("ExecStart=/usr/bin/env python -m sglang.launch_server --model-path ")


@pytest.mark.parametrize("form", [("--format", "json"), ("--json",)])
def test_json_either_way(run: Any, tmp_path: Path, form: tuple[str, ...]) -> None:
    code, out, err = run(*common(tmp_path), *form, "--max-requests", 16)
    data = json.loads(out)
    assert (code, err, data["ok"], data["command"]) == (0, "", True, "recipe")
    assert data["launch"][:3] == ["python", "-m", "sglang.launch_server"]
    assert data["warnings"] == [TOO_MANY]
    assert {"name", "value", "why", "fixed", "script"} == set(data["arguments"][0])


def test_options_reach_the_command(run: Any, tmp_path: Path) -> None:
    options = ("--context", 65536, "--group-size", 64, "--max-requests", 4, "--mem-fraction", 0.8, "--chunk", 8192)
    code, out, _ = run(*common(tmp_path, DENSE), *options, "--mamba-strategy", "no_buffer", "--mixed-chunk")
    assert code == 0
    for flag in ("--context-length 65536", "--mem-fraction-static 0.8", "--mamba-scheduler-strategy no_buffer"):
        assert f"  {flag}  #" in out
    assert "  --enable-mixed-chunk  #" in out
    assert "  --cuda-graph-bs 1 2 4  #" in out


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        pytest.param(MOE, ("--ep", 1), "without expert parallelism copies all experts", id="ep missing"),
        pytest.param(MOE, ("--attention-backend", "flashinfer"), "asserts on the hybrid path on sm_120", id="backend"),
        pytest.param(MOE, ("--chunk", 2048), "128.0 checkpoints for 64 slots", id="slots"),
        pytest.param(MOE, ("--compute-capability", "twelve"), "not a compute capability", id="capability"),
        pytest.param(MOE, ("--vram", "12"), "not a memory size: '12'", id="unit"),
        pytest.param(MOE, ("--weights", "1e9"), "not a memory size: '1e9'", id="weights"),
        pytest.param(MOE, ("--mem-fraction", "nan"), "nan is not in the range", id="fraction"),
        pytest.param(MOE, ("--format", "xml"), "'xml' is not one of", id="format"),
        pytest.param(PLAIN, (), "config.json states no context length", id="no context"),
        pytest.param(MOE, ("--config", "absent.json"), "cannot be read", id="no config"),
    ],
)
def test_refusals_exit_2_in_text_and_json(
    run: Any, tmp_path: Path, config: dict[str, Any], options: tuple[object, ...], message: str
) -> None:
    code, out, err = run(*common(tmp_path, config), *options)
    assert (code, out) == (2, "")
    assert message in err
    code, out, err = run(*common(tmp_path, config), *options, "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["exit_code"]) == (2, "", False, 2)
    assert message in data["error"]["message"]


def test_a_hostile_model_type_cannot_reach_the_script(run: Any, tmp_path: Path) -> None:
    hostile = {**PLAIN, "model_type": "x\nrm -rf /", "max_position_embeddings": 1000}
    code, out, err = run(*common(tmp_path, hostile))
    assert (code, out) == (2, "")
    assert "model_type: is no plain name" in err


def test_wsl_is_recognised_by_its_kernel(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[str | OSError] = ["Linux version 6.6 (Microsoft@WSL2)", "Linux version 6.1", OSError("no /proc")]

    def read_text(*_: object, **__: object) -> str:
        version = versions.pop(0)
        if isinstance(version, OSError):
            raise version
        return version

    arguments = common(tmp_path)
    monkeypatch.setattr(Path, "read_text", read_text)
    found = ["\nexport LD_LIBRARY_PATH=" in run(*arguments)[1] for _ in range(3)]
    assert found == [True, False, False]
