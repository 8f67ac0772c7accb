"""The parts of the rig that need no download: stubs, the cache, mutated copies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import rig


def ran(code: str) -> subprocess.CompletedProcess[str]:
    program = f"from inside import stubs\nstubs.install()\n{code}"
    return subprocess.run([sys.executable, "-c", program], cwd=rig.HERE, capture_output=True, text=True, check=False)


def test_a_stub_imports_with_any_attribute() -> None:
    code = "from sgl_kernel.deep.inside import kernel, Mode\nprint(Mode.FAST.__name__, issubclass(kernel, stubs.Stub))"
    assert ran(code).stdout == "FAST True\n"


def test_a_stub_that_is_called_raises_with_its_name() -> None:
    done = ran("import sgl_kernel\nsgl_kernel.gemm(1, out=2)")
    assert done.returncode == 1
    assert "RuntimeError: sgl_kernel.gemm is a stub and was called" in done.stderr


def test_what_is_not_listed_is_not_stubbed() -> None:
    assert "No module named 'sgl_kernels'" in ran("import sgl_kernels").stderr


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESCHA_OSCAR_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_part_is_built_once_and_again_when_an_input_changes(cache: Path) -> None:
    source, built = cache / "input", []

    def build(place: Path) -> None:
        built.append(place)
        (place / "out").write_text(source.read_text())

    for text in ("one", "one", "two"):
        source.write_text(text)
        place = rig._cached("trees", "x", [source], build)
        assert (place / "out").read_text() == text
    assert len(built) == 2


def test_a_build_that_fails_leaves_nothing_behind(cache: Path) -> None:
    def build(place: Path) -> None:
        (place / "half").touch()
        raise AssertionError("no network")

    with pytest.raises(AssertionError, match="no network"):
        rig._cached("trees", "x", [], build)
    assert list((cache / "cache" / "trees").iterdir()) == []


def test_a_mutation_touches_the_copy_alone_and_must_match(tmp_path: Path) -> None:
    original = tmp_path / "tree" / "sglang" / "a.py"
    original.parent.mkdir(parents=True)
    original.write_text("x = 1\n")
    whole = rig.Rig("0", tmp_path / "tree", tmp_path)
    mutant = whole.mutated(tmp_path / "mutant", "sglang/a.py", lambda text: text.replace("1", "2"))
    assert (mutant.tree / "sglang/a.py").read_text() == "x = 2\n"
    assert original.read_text() == "x = 1\n"
    with pytest.raises(AssertionError, match=r"did not match anything in sglang/a\.py"):
        whole.mutated(tmp_path / "other", "sglang/a.py", lambda text: text.replace("3", "4"))
