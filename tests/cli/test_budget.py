from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from escha_oscar.cli import main
from tests.support.checkpoints import DENSE, MOE, PLAIN, TWO_SIZES, write_config

Run = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: object) -> Run:
        code = main(["budget", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_moe_report_as_plain_text(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, MOE)
    options = ("--tp", 2, "--group-size", 32, "--tokens", 350257, "--max-mamba", 64, "--max-requests", 16)
    code, out, err = run("--config", config, *options)
    assert (code, err) == (0, "")
    assert (
        out
        == """\
qwen3_5_moe: 10 of 40 layers hold KV, 1 KV head(s) of 256 per GPU at tp 2
KV per GPU; the last two columns are for 350257 tokens
  format  codes B/token/layer  scales  zeros  B/token   GiB  GB (10^9)
  fp16                   1024       0      0    10240  3.34       3.59
  fp8                     512       0      0     5120  1.67       1.79
  int2                    128      64     64     2560  0.84       0.90
Log line, codes only (a hand-merged server): KV Cache is allocated. #tokens: 350257, K size: 0.21 GB, V size: 0.21 GB
Log line, scales and zeros counted (ours): KV Cache is allocated. #tokens: 350257, K size: 0.42 GB, V size: 0.42 GB
Mamba slot: 30.7 MiB per GPU
Slots per request: no_buffer 3, extra_buffer 5, extra_buffer_lazy 4
Concurrency: 12 (64 slots, 5 each with extra_buffer)
Sessions that fit
  tokens  sessions  limited by
    8192        12  concurrency
   32768        10  pool
   65536         5  pool
  131072         2  pool
  196608         1  pool
  262144         1  pool
warning: --max-running-requests 16 will be clamped to 12
"""
    )


def test_json_of_a_dense_model(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, DENSE)
    code, out, err = run("--config", config, "--tp", 2, "--group-size", 64, "--tokens", 210001, "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["command"]) == (0, "", True, "budget")
    assert data["bytes_total"]["int2"] == 1290246144
    assert data["kv_layers"] == list(range(3, 64, 4))
    assert (data["kv_heads_per_gpu"], data["fit"], data["memory"]) == (2, None, None)
    assert data["bytes_per_token_layer"]["int2"]["total"] == 384
    assert any("MTP" in warning for warning in data["warnings"])


def test_vram_gives_pool_slots_and_sessions(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, MOE)
    options = ("--tp", 2, "--group-size", 32, "--vram", "12227MiB", "--weights", "6GB", "--max-mamba", 64)
    code, out, _ = run("--config", config, *options, "--context", 262144, "--json")
    data = json.loads(out)
    free = int(12227 * 2**20 * 0.88) - 6 * 10**9
    assert code == 0
    assert data["fit"]["mamba_bytes"] == 64 * data["mamba"]["slot_bytes"]
    assert data["fit"]["tokens"] == (free - data["fit"]["mamba_bytes"]) // 2560 == data["tokens"]
    assert data["sessions"] == [{"length": 262144, "fit": data["tokens"] // 262144, "clamped": False}]


def test_text_says_what_the_fit_was_made_of(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, PLAIN)
    code, out, _ = run(
        "--config", config, "--vram", "1GiB", "--mem-fraction", 0.5, "--weights", "256MiB", "--context", 1000
    )
    assert code == 0
    per_token = 4 * 2 * (2 * 16 + 2 * 8)
    assert f"Fits: {2**28 // per_token} tokens in 1.00 GiB x 0.5 - 0.25 GiB weights - 0.00 GiB recurrent state" in out
    assert "warning: the fit is an upper bound" in out


def test_weights_are_measured_beside_the_config(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, PLAIN)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 3000)
    code, out, _ = run("--config", config, "--tp", 2, "--vram", "1GiB", "--context", 1000, "--json")
    assert (code, json.loads(out)["memory"]["weights"]) == (0, 1500)


def test_chunks_above_the_slots_are_warned_about(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, DENSE)
    common = ("--config", config, "--tp", 2, "--tokens", 210000, "--max-mamba", 32)
    message = "210000 tokens / chunk 4096 = 51.3 > 32 mamba slots"
    assert message in run(*common, "--chunk", 4096)[1]
    assert "mamba slots: prefix" not in run(*common, "--chunk", 8192)[1]


def test_two_kv_heads_on_four_gpus_are_replicated(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("--config", write_config(tmp_path, MOE), "--tp", 4, "--json")
    assert (code, json.loads(out)["kv_heads_per_gpu"]) == (0, 1)


def test_shared_and_sliding_layers_are_warned_about(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("--config", write_config(tmp_path, TWO_SIZES, num_kv_shared_layers=2), "--context", 1000)
    assert code == 0
    assert "warning: 2 KV-shared layers" in out
    assert "warning: 40 sliding-window layers are counted at full length: an upper bound" in out


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        pytest.param(MOE, ("--group-size", 48), "group size 48 does not divide head size 256", id="group"),
        pytest.param(MOE, ("--group-size", 0), "group size 0 does not divide head size 256", id="group zero"),
        pytest.param(MOE, ("--tp", 0), "0 is not in the range", id="tp zero"),
        pytest.param(DENSE, ("--tp", 3), "4 KV heads cannot be spread over --tp 3", id="tp three"),
        pytest.param(MOE, ("--vram", "12"), "not a memory size: '12'", id="no unit"),
        pytest.param(MOE, ("--vram", "0GB"), "not a memory size: '0GB'", id="nothing"),
        pytest.param(MOE, ("--vram", "12GB"), "the size of the weights is unknown", id="no weights"),
        pytest.param(MOE, ("--weights", "6GB"), "--weights needs --vram", id="weights alone"),
        pytest.param(MOE, ("--vram", "6GB", "--weights", "6GB"), "no memory is left for KV", id="too small"),
        pytest.param(MOE, ("--vram", "9GB", "--tokens", 5), "--vram computes it", id="pool twice"),
        pytest.param(PLAIN, (), "config.json states no context length", id="no context"),
        pytest.param(MOE, ("--mem-fraction", "nan"), "nan is not in the range", id="fraction nan"),
    ],
)
def test_bad_options_exit_2_in_text_and_json(
    run: Any, tmp_path: Path, config: dict[str, Any], options: tuple[object, ...], message: str
) -> None:
    path = write_config(tmp_path, config)
    code, out, err = run("--config", path, *options)
    assert (code, out) == (2, "")
    assert message in err
    code, out, err = run("--config", path, *options, "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["exit_code"]) == (2, "", False, 2)
    assert message in data["error"]["message"]


def test_undescribed_recurrent_state_cannot_be_sized(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, PLAIN, layer_types=["mamba", "attention"] * 2)
    code, out, err = run("--config", config, "--vram", "12GB", "--weights", "1GB", "--context", 1000)
    assert (code, out) == (2, "")
    assert "does not describe the recurrent state" in err


def test_a_broken_config_names_file_and_line(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n"head_dim": NaN}')
    message = f"error[usage]: {path}:2: NaN is not a JSON number\n  next: escha-oscar budget --help\n"
    assert run("--config", path) == (2, "", message)
    code, out, err = run("--config", path, "--json")
    error = json.loads(out)["error"]
    assert (code, err, error["path"], error["line"]) == (2, "", str(path), 2)


@pytest.mark.parametrize("command", [("budget", "--tp", "2"), ("recipe", "--tp", "2", "--vram", "12GB")])
def test_no_torch_is_needed(tmp_path: Path, command: tuple[str, ...]) -> None:
    arguments = [*command, "--config", str(write_config(tmp_path, MOE)), "--json"]
    program = (
        "import sys; from escha_oscar.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]
