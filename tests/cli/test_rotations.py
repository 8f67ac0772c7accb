from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from escha_oscar.cli import main
from escha_oscar.rotations import hadamard_matrix
from tests.rotations.test_calibrate import drawn, dump, outlier_along_a_hadamard_row, outlier_that_the_fit_gathers
from tests.support.checkpoints import DENSE, MOE, PLAIN, TWO_SIZES, write_config

UNCALIBRATED = (
    "uncalibrated, the same matrix in every layer; whether calibration pays: measure on your checkpoint "
    "with a discriminating long-context test (a needle test cannot tell them apart)"
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: object) -> tuple[int, str, str]:
        code = main(["rotations", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_config_gives_two_files_and_two_export_lines(run: Any, tmp_path: Path) -> None:
    config, out_dir = write_config(tmp_path, MOE), tmp_path / "it's here"
    code, out, err = run("--config", config, "--out-dir", out_dir)
    assert (code, err) == (0, UNCALIBRATED + "\n")
    lines = out.splitlines()
    assert lines[:3] == [
        "# head_dim 256",
        "# layers 40",
        "# layers that hold KV: 10 of 40: 3,7..39 (from full_attention_interval)",
    ]
    quoted = "'" + str(out_dir).replace("'", "'\"'\"'")
    assert lines[-2:] == [
        f"export SGLANG_OSCAR_K_ROTATION_PATH={quoted}/k_rotation_hadamard_hd256.pt'",
        f"export SGLANG_OSCAR_V_ROTATION_PATH={quoted}/v_rotation_hadamard_hd256.pt'",
    ]
    assert names(out_dir) == ["k_rotation_hadamard_hd256.pt", "v_rotation_hadamard_hd256.pt"]
    state = torch.load(out_dir / "k_rotation_hadamard_hd256.pt", weights_only=True)
    assert list(state["layers"]) == list(range(40))
    assert torch.equal(state["layers"][39]["rotation"], hadamard_matrix(256))


def test_output_stays_a_shell_script_whatever_the_folder_is_called(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("--head-dim", 4, "--num-layers", 1, "--out-dir", tmp_path / "a\nexit 9")
    script = f'{out}\ntest -f "$SGLANG_OSCAR_K_ROTATION_PATH" && test -f "$SGLANG_OSCAR_V_ROTATION_PATH"'
    assert code == 0
    assert subprocess.run(["bash", "-euc", script], check=False).returncode == 0


def test_json_describes_the_files(run: Any, tmp_path: Path) -> None:
    code, out, err = run("--config", write_config(tmp_path, DENSE), "--out-dir", tmp_path / "out", "--json")
    data = json.loads(out)
    assert (code, err, data["ok"]) == (0, "", True)
    assert (data["head_dim"], data["v_head_dim"], data["num_layers"]) == (256, 256, 64)
    assert data["kv_layers"] == list(range(3, 64, 4))
    assert [(f["role"], f["variable"]) for f in data["files"]] == [
        ("k", "SGLANG_OSCAR_K_ROTATION_PATH"),
        ("v", "SGLANG_OSCAR_V_ROTATION_PATH"),
    ]
    assert data["warnings"][1:] == ["MTP layer 64 is not covered: INT2 KV runs without speculative decoding"]


def test_by_hand_and_again_gives_the_same_bytes(run: Any, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        code, out, _ = run("--head-dim", 64, "--num-layers", 3, "--out-dir", tmp_path / folder)
        assert (code, out.splitlines()[:2]) == (0, ["# head_dim 64", "# layers 3"])
    name = "v_rotation_hadamard_hd64.pt"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_k_and_v_files_carry_their_own_size(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, PLAIN, head_dim=256, v_head_dim=128)
    code, out, _ = run("--config", config, "--out-dir", tmp_path / "out")
    assert (code, out.splitlines()[0]) == (0, "# head_dim 256 (K) and 128 (V)")
    assert names(tmp_path / "out") == ["k_rotation_hadamard_hd256.pt", "v_rotation_hadamard_hd128.pt"]


def test_an_odd_k_size_is_refused_and_blocks_are_offered(run: Any, tmp_path: Path) -> None:
    config, out_dir = write_config(tmp_path, PLAIN, head_dim=192, v_head_dim=128), tmp_path / "out"
    code, out, err = run("--config", config, "--out-dir", out_dir)
    assert (code, out) == (2, "")
    assert err.startswith("error[usage]: K head size 192 is not a power of two\n")
    assert "next: --block-hadamard uses 3 blocks of 64" in err
    assert not out_dir.exists()
    code, out, err = run("--config", config, "--out-dir", out_dir, "--block-hadamard")
    assert code == 0
    assert "K is rotated in 3 blocks of 64: outliers are spread within a block only" in err
    assert "V is rotated" not in err


def test_two_head_sizes_are_refused(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, TWO_SIZES)
    code, out, err = run("--config", config)
    assert (code, out) == (2, "")
    assert "two head sizes: 512 in full-attention layers, 256 in sliding ones" in err


def test_shared_layers_and_derived_sizes_are_mentioned(run: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, PLAIN, num_kv_shared_layers=2)
    code, out, err = run("--config", config, "--out-dir", tmp_path / "out")
    assert (code, out.splitlines()[0]) == (0, "# head_dim 64 (hidden_size / heads)")
    assert "2 KV-shared layers" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param((), "say which model", id="nothing"),
        pytest.param(("--head-dim", 64), "say which model", id="half"),
        pytest.param(("--head-dim", 0, "--num-layers", 1), "0 is not in the range", id="zero"),
        pytest.param(("--head-dim", 96, "--num-layers", 1), "K head size 96 is not a power of two", id="96"),
        pytest.param(("--head-dim", 7, "--num-layers", 1), "K no Hadamard matrix of size 7", id="7"),
        pytest.param(("--head-dim", 8192, "--num-layers", 1), "no Hadamard matrix of size 8192", id="8192"),
        pytest.param(("--head-dim", 1024, "--num-layers", 4096), "would be 17179869184 bytes", id="too much"),
        pytest.param(("--config", "c", "--head-dim", 64), "--config already states", id="both"),
        pytest.param(("file.pt",), "files are read with --inspect", id="file without inspect"),
        pytest.param(("--inspect",), "files are read with --inspect", id="inspect without file"),
        pytest.param(("--inspect", "f", "--calibrate", "d"), "are two commands", id="two commands"),
        pytest.param(("--inspect", "f", "--block-hadamard"), "are for writing", id="inspect with blocks"),
        pytest.param(("--per-head", "--config", "c"), "need --calibrate", id="per head alone"),
        pytest.param(("--config", "absent.json"), "absent.json: cannot be read", id="no config"),
        pytest.param(("--inspect", "absent.pt"), "absent.pt: cannot be read", id="no file"),
        pytest.param(("--calibrate", "absent"), "absent: cannot be read", id="no dumps"),
    ],
)
def test_bad_options_exit_2_in_text_and_json(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err
    code, out, err = run(*args, "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["exit_code"]) == (2, "", False, 2)
    place = f"{data['error']['path']}: " if data["error"].get("path") else ""
    assert message in place + data["error"]["message"]
    assert names(tmp_path) == []


def test_without_torch_the_extra_is_named(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run("--head-dim", 64, "--num-layers", 1, "--out-dir", tmp_path)
    assert (code, out) == (2, "")
    assert "error[missing-extra]" in err
    assert "next: pip install 'escha-oscar[torch]'" in err


def test_inspect_judges_each_file(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, MOE)
    run("--config", config, "--out-dir", tmp_path)
    short = {"layers": {str(i): {"rotation": hadamard_matrix(256)} for i in range(39)}}
    torch.save(short, "k_short.pt")
    good = ("k_rotation_hadamard_hd256.pt", "v_rotation_hadamard_hd256.pt")
    code, out, err = run("--inspect", *good, "--config", config)
    assert (code, err) == (0, "")
    assert (
        out
        == """\
Rotation files
  file                          kind      layers  head_dim  form    dtype    keys  |R R^T - I|  verdict
  k_rotation_hadamard_hd256.pt  hadamard  0-39         256  shared  float32  int   0.0e+00      ok
  v_rotation_hadamard_hd256.pt  hadamard  0-39         256  shared  float32  int   0.0e+00      ok
"""
    )
    code, out, err = run("--inspect", good[0], "k_short.pt", "--config", config)
    assert (code, err) == (1, "")
    assert "k_short.pt                    hadamard  0-38         256  shared  float32  str   0.0e+00      FAIL" in out
    assert out.splitlines()[-1] == "error: k_short.pt: layers that hold KV are missing: 39"


def test_inspect_as_json_reports_an_unsafe_file_as_a_finding(run: Any, tmp_path: Path) -> None:
    unsafe = tmp_path / "k_bad.pt"
    unsafe.write_bytes(b"hello")
    code, out, err = run("--inspect", unsafe, "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["exit_code"]) == (1, "", False, 1)
    assert data["files"][0]["findings"][0]["message"].startswith("is no rotation file; found: ")
    code, out, _ = run("--inspect", unsafe)
    assert (code, out.splitlines()[2].split()[-1]) == (1, "FAIL")


def test_inspect_warns_of_a_torch_with_a_known_flaw(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("--head-dim", 64, "--num-layers", 1, "--out-dir", tmp_path)
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    path = tmp_path / "k_rotation_hadamard_hd64.pt"
    code, _, err = run("--inspect", path)
    assert code == 0
    assert "CVE-2026-24747" in err
    assert "CVE-2026-24747" in json.loads(run("--inspect", path, "--json")[1])["warnings"][0]


def test_calibrate_writes_what_is_better_and_says_by_how_much(run: Any, tmp_path: Path) -> None:
    dump(tmp_path / "dumps", 3, {1: outlier_along_a_hadamard_row(1)})
    dump(tmp_path / "dumps", 7, {1: outlier_along_a_hadamard_row(2)})
    code, out, err = run("--calibrate", tmp_path / "dumps", "--out-dir", tmp_path / "out", "--group-size", 16)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "# Relative INT2 error on held-out rows"
    assert [row.split()[1] for row in lines[2:5]] == ["3", "7", "mean"]
    assert lines[-1].startswith("export SGLANG_OSCAR_V_ROTATION_PATH=")
    assert all(row.startswith(("#", "export ")) for row in lines)
    assert err.startswith("calibrating 2 layers\ncalibrated files written; worse than Hadamard on 0 of 2")
    assert "no accuracy claim" in err
    assert names(tmp_path / "out") == ["k_rotation_calibrated_hd32.pt", "v_rotation_calibrated_hd32.pt"]
    written = tmp_path / "out" / "k_rotation_calibrated_hd32.pt"
    report = json.loads(run("--inspect", written, "--json")[1])["files"][0]
    assert (report["kind"], report["layers"], report["ok"]) == ("calibrated", [3, 7], True)


def test_calibrate_per_head_as_json(run: Any, tmp_path: Path) -> None:
    dump(tmp_path / "dumps", 3, {1: outlier_along_a_hadamard_row(1)})
    code, out, err = run("--calibrate", tmp_path / "dumps", "--out-dir", tmp_path / "out", "--per-head", "--json")
    data = json.loads(out)
    assert (code, err, data["better_than_hadamard"], len(data["files"])) == (0, "", True, 2)
    layer = data["layers"][0]
    assert (layer["layer"], layer["rows"], layer["held_out_rows"]) == (3, 48, 12)
    assert layer["calibrated"]["attention"] < layer["hadamard"]["attention"]
    state = torch.load(tmp_path / "out" / "k_rotation_calibrated_hd32.pt", weights_only=True)
    assert (state["format_version"], state["layers"][3]["rotation"].shape) == (2, (2, 32, 32))


def test_calibrate_writes_nothing_that_is_worse_than_hadamard(run: Any, tmp_path: Path) -> None:
    dump(tmp_path / "dumps", 3, {1: outlier_that_the_fit_gathers(1)})
    code, out, err = run("--calibrate", tmp_path / "dumps", "--out-dir", tmp_path / "out")
    assert code == 1
    assert "calibrated is worse than Hadamard on held-out rows" in err
    assert "export" not in out
    assert not (tmp_path / "out").exists()
    code, out, err = run("--calibrate", tmp_path / "dumps", "--out-dir", tmp_path / "out", "--json")
    data = json.loads(out)
    assert (code, err, data["ok"], data["files"], data["better_than_hadamard"]) == (1, "", False, [], False)


def test_calibrate_is_held_against_the_config(run: Any, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    for layer in (0, 1):
        dump(dumps, layer, {1: drawn(layer)})
    config = write_config(tmp_path, PLAIN, num_hidden_layers=3, head_dim=32)
    code, out, err = run("--calibrate", dumps, "--config", config, "--out-dir", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "the dumps lack layers that hold KV: 2" in err
    config = write_config(tmp_path, PLAIN, num_hidden_layers=2, head_dim=64)
    code, out, err = run("--calibrate", dumps, "--config", config, "--out-dir", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "layer 0's dumped head sizes are not the model's" in err
    assert "found: 32 (K) and 32 (V)" in err
