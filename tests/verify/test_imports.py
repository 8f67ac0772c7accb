"""The imports level, run by this interpreter over small packages that fail in one way each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from escha_oscar.model import Report, Severity
from escha_oscar.serving.model_config import ModelConfig, read_model_config
from escha_oscar.verify.codes import CODES, Level
from escha_oscar.verify.imports import K_PATH, V_PATH, check_imports_in
from escha_oscar.verify.subprocesses import Interpreter, python_of
from tests.support.checkpoints import MOE, write_config

POOL = "sglang/srt/mem_cache/memory_pool.py"
DECODE = "sglang/srt/layers/attention/triton_ops/decode_attention.py"

GOOD_POOL = f"""
import os
from dataclasses import dataclass


@dataclass
class OscarRotationConfig:
    k: str
    v: str


def load_oscar_rotation_config():
    paths = []
    for name in ("{K_PATH}", "{V_PATH}"):
        if not os.environ.get(name):
            raise ValueError(name + " is not set")
        paths.append(os.environ[name])
    return OscarRotationConfig(*paths)
"""
GOOD_DECODE = "def decode_attention_fwd_grouped_quant_int2():\n    return 1\n"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (K_PATH, V_PATH, "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def moe(tmp_path: Path) -> ModelConfig:
    return read_model_config(write_config(tmp_path, MOE))


def tree(folder: Path, pool: str = GOOD_POOL, decode: str = GOOD_DECODE, top: str = "") -> Path:
    for path, text in {"sglang/__init__.py": top, POOL: pool, DECODE: decode}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def report(site: Path, **options: object) -> Report:
    return check_imports_in(Interpreter(Path(sys.executable), site), site, **options)  # type: ignore[arg-type]


def codes(site: Path, **options: object) -> list[str]:
    return [f.code for f in report(site, **options).findings]


def test_merged_but_not_configured_is_a_result_of_its_own(tmp_path: Path) -> None:
    site = tree(tmp_path / "site")
    relaxed = report(site)
    assert [(f.code, f.severity) for f in relaxed.findings] == [("not-configured", Severity.WARNING)]
    assert relaxed.ok and K_PATH in relaxed.findings[0].message
    assert not report(site, configured=True).ok


IMPORT_FAULTS = {
    "a missing function": ({"pool": "x = 1\n"}, "imports-broken"),
    "a missing name": ({"pool": "from sglang.srt.mem_cache import nothing\n"}, "imports-incomplete"),
    "a missing module of the tree": ({"pool": "import sglang.QuantKernel.nothing\n"}, "imports-incomplete"),
    "a missing kernel entry point": ({"decode": "x = 1\n"}, "imports-broken"),
    "a name error": ({"decode": "cdiv(1, 2)\n"}, "imports-broken"),
    "a syntax error": ({"decode": "def f(:\n"}, "imports-broken"),
    "no libcuda": (
        {"top": "raise ImportError('libcuda.so.1: cannot open shared object file')\n"},
        "imports-cannot-tell",
    ),
    "no driver": ({"pool": "raise RuntimeError('Found no NVIDIA driver on your system')\n"}, "imports-cannot-tell"),
    "a missing dependency": ({"pool": "import no_such_library_here\n"}, "imports-cannot-tell"),
    "an exit": ({"pool": "raise SystemExit(3)\n"}, "imports-broken"),
    "a crash": ({"pool": "import os\nos._exit(9)\n"}, "imports-cannot-tell"),
    "noise on the way": ({"pool": "print('loading', flush=True)\n" + GOOD_POOL}, "not-configured"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPORT_FAULTS)
def test_each_import_fault_has_its_finding(tmp_path: Path, name: str) -> None:
    changes, code = IMPORT_FAULTS[name]
    found = report(tree(tmp_path / "site", **changes)).findings
    assert [f.code for f in found] == [code]
    assert found[0].message and found[0].hint


def test_a_library_that_raises_at_import_does_not_hide_where_the_tree_is(tmp_path: Path) -> None:
    found = report(tree(tmp_path / "site", decode="from nowhere_at_all import x\n")).findings
    assert CODES[found[0].code].cannot_tell and "nowhere_at_all" in found[0].message


def test_an_import_that_never_ends_is_stopped(tmp_path: Path) -> None:
    site = tree(tmp_path / "site", pool="import time\ntime.sleep(60)\n")
    assert codes(site, timeout=1.0) == ["imports-cannot-tell"]


def test_another_tree_on_the_path_is_told(tmp_path: Path) -> None:
    site, other = tree(tmp_path / "site"), tree(tmp_path / "other")
    found = check_imports_in(Interpreter(Path(sys.executable), other), site).findings
    assert [f.code for f in found] == ["imports-elsewhere"]
    assert str(other) in (found[0].found or "") and str(site) in (found[0].expected or "")


def test_an_interpreter_that_is_none_cannot_tell(tmp_path: Path) -> None:
    site = tree(tmp_path / "site")
    found = check_imports_in(Interpreter(tmp_path / "python"), site).findings
    assert [f.code for f in found] == ["imports-cannot-tell"]


@pytest.mark.parametrize(("given", "named"), [(K_PATH, V_PATH), (V_PATH, K_PATH)])
def test_one_variable_alone_is_an_error_that_names_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, named: str
) -> None:
    monkeypatch.setenv(given, "/rotations/one.pt")
    found = report(tree(tmp_path / "site")).findings
    assert [(f.code, f.severity) for f in found] == [("misconfigured", Severity.ERROR)]
    assert named in found[0].message and "service's environment" in found[0].message


def rotation_file(path: Path, dim: int, layers: range = range(40)) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"layers": {layer: {"rotation": torch.eye(dim)} for layer in layers}}, path)
    return path


def test_rotation_files_are_judged_by_head_size_and_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moe: ModelConfig
) -> None:
    site = tree(tmp_path / "site")
    right = rotation_file(tmp_path / "right.pt", 256)
    monkeypatch.setenv(K_PATH, str(right))
    monkeypatch.setenv(V_PATH, str(right))
    assert codes(site, model=moe) == ["imports-ok"]
    monkeypatch.setenv(K_PATH, str(rotation_file(tmp_path / "other.pt", 128)))
    monkeypatch.setenv(V_PATH, str(tmp_path / "absent.pt"))
    found = [f for f in report(site, model=moe).findings if f.code == "rotation-file"]
    assert [K_PATH in found[0].message, V_PATH in found[1].message] == [True, True]
    assert "swapped" in found[0].message and "service's environment" in found[1].message
    monkeypatch.setenv(K_PATH, str(rotation_file(tmp_path / "short.pt", 256, range(39))))
    monkeypatch.setenv(V_PATH, str(right))
    found = [f for f in report(site, model=moe).findings if f.code == "rotation-file"]
    assert len(found) == 1 and "layer 39" in found[0].message


def test_layers_that_share_kv_are_said_to_be_refused(tmp_path: Path) -> None:
    shared = read_model_config(write_config(tmp_path, MOE, num_kv_shared_layers=4))
    assert codes(tree(tmp_path / "site"), model=shared) == ["not-configured", "kv-shared-layers"]


def test_the_interpreter_of_an_environment_is_found_by_its_folder(tmp_path: Path) -> None:
    site = tmp_path / "venv/lib/python3.12/site-packages"
    site.mkdir(parents=True)
    assert python_of(site) is None
    (tmp_path / "venv/pyvenv.cfg").write_text("")
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    assert python_of(site) == tmp_path / "venv/bin/python"
    assert python_of(Path("/")) is None


def test_every_imports_code_is_met_here() -> None:
    met = {code for _, code in IMPORT_FAULTS.values()}
    met |= {"imports-ok", "imports-elsewhere", "misconfigured", "rotation-file", "kv-shared-layers"}
    assert met == {name for name, code in CODES.items() if code.level is Level.IMPORTS}
