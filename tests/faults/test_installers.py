"""Real installers before, during and after: pip, and uv from PyPI, on environments that share inodes with a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from escha_oscar.errors import ApplyError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import Outcome, revert
from tests.support.environments import CACHE, FILES, INFO, MERGED, NAME, VERSION, condition, make_plan, snapshot
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.network

WHEEL_FILES = {path: data for path, data in FILES.items() if path != CACHE}


@dataclass(frozen=True)
class Uv:
    """The uv program with a cache of its own."""

    program: Path
    cache: Path

    def __call__(self, *words: str | Path) -> str:
        done = subprocess.run([self.program, *words], capture_output=True, text=True, env=self.environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([self.program, *words], stdout=pipe, stderr=pipe, env=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "UV_CACHE_DIR": str(self.cache), "UV_NO_CONFIG": "1", "UV_OFFLINE": "1"}


@pytest.fixture(scope="session")
def uv_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install uv from PyPI into an environment of its own."""
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "uv"], check=True)
    return folder / "bin/uv"


@pytest.fixture
def uv(uv_program: Path, tmp_path: Path) -> Uv:
    return Uv(uv_program, tmp_path / "uv-cache")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, WHEEL_FILES, name=NAME, version=VERSION)


@pytest.fixture
def pip_venv(tmp_path: Path, wheel: Path) -> Iterator[Path]:
    """Return an environment in which pip installed the wheel."""
    venv = tmp_path / "pip-venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    _pip(venv, "install", "--no-deps", "--no-index", wheel)
    yield venv


def _pip(venv: Path, *words: str | Path) -> None:
    subprocess.run([venv / "bin/pip", "--quiet", *words], check=True, capture_output=True)


def _uv_venv(uv: Uv, folder: Path, wheel: Path, mode: str) -> Path:
    uv("venv", "--python", sys.executable, folder)
    uv("pip", "install", "--python", folder / "bin/python", "--no-deps", f"--link-mode={mode}", wheel)
    return _site(folder)


def _site(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix == ".py"}


def test_hard_linked_environments_and_the_cache_keep_their_bytes(uv: Uv, wheel: Path, tmp_path: Path) -> None:
    one, two = (_uv_venv(uv, tmp_path / name, wheel, "hardlink") for name in ("one", "two"))
    files = [path for path in MERGED if path in FILES]
    assert all((one / path).stat().st_ino == (two / path).stat().st_ino for path in files)
    stock, twin, cache = snapshot(one), snapshot(two), _contents(uv.cache)
    summary = apply_plan(make_plan(one))
    assert set(files) <= set(summary.shared)
    assert all((one / path).stat().st_nlink == 1 for path in MERGED)
    assert (snapshot(two), _contents(uv.cache)) == (twin, cache)
    revert(one)
    assert snapshot(one) == stock
    assert (snapshot(two), _contents(uv.cache)) == (twin, cache)
    third = _uv_venv(uv, tmp_path / "three", wheel, "hardlink")
    assert (third / files[0]).read_bytes() == (two / files[0]).read_bytes()


def test_symbolic_links_are_replaced_and_come_back(uv: Uv, wheel: Path, tmp_path: Path) -> None:
    site = _uv_venv(uv, tmp_path / "venv", wheel, "symlink")
    files = [path for path in MERGED if path in FILES]
    assert all((site / path).is_symlink() for path in files)
    stock, cache = snapshot(site), _contents(uv.cache)
    assert set(files) <= set(apply_plan(make_plan(site)).links)
    assert not any((site / path).is_symlink() for path in MERGED)
    assert _contents(uv.cache) == cache
    revert(site)
    assert snapshot(site) == stock
    assert _contents(uv.cache) == cache


@pytest.mark.parametrize("mode", ["hardlink", "symlink", "copy"])
def test_uv_uninstall_leaves_nothing_behind(uv: Uv, wheel: Path, tmp_path: Path, mode: str) -> None:
    site = _uv_venv(uv, tmp_path / "venv", wheel, mode)
    apply_plan(make_plan(site))
    uv("pip", "uninstall", "--python", tmp_path / "venv/bin/python", NAME)
    _nothing_left(site)


def test_pip_uninstall_leaves_nothing_behind(pip_venv: Path) -> None:
    site = _site(pip_venv)
    apply_plan(make_plan(site))
    subprocess.run([pip_venv / "bin/python", "-c", "import sglang.srt.mem_cache.memory_pool"], check=True)
    _pip(pip_venv, "uninstall", "--yes", NAME)
    _nothing_left(site)


def test_pip_uninstall_after_revert_leaves_nothing_behind(pip_venv: Path) -> None:
    site = _site(pip_venv)
    before = snapshot(site)
    apply_plan(make_plan(site))
    revert(site)
    assert snapshot(site) == before
    _pip(pip_venv, "uninstall", "--yes", NAME)
    _nothing_left(site)


def test_a_pip_reinstall_is_seen_and_integrated_again(pip_venv: Path, wheel: Path) -> None:
    site = _site(pip_venv)
    apply_plan(make_plan(site))
    _pip(pip_venv, "install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    _seen_and_integrated_again(site)


def test_a_uv_reinstall_is_seen_and_integrated_again(uv: Uv, wheel: Path, tmp_path: Path) -> None:
    site = _uv_venv(uv, tmp_path / "venv", wheel, "hardlink")
    apply_plan(make_plan(site))
    uv("pip", "install", "--python", tmp_path / "venv/bin/python", "--no-deps", "--reinstall", wheel)
    _seen_and_integrated_again(site)


def test_an_upgrade_leaves_no_module_of_ours(pip_venv: Path, tmp_path: Path) -> None:
    site = _site(pip_venv)
    apply_plan(make_plan(site))
    newer = make_wheel(tmp_path, {"sglang/__init__.py": "VERSION = 'newer'\n"}, name=NAME, version="1.0.3+qwen3moe")
    _pip(pip_venv, "install", "--no-deps", "--no-index", "--upgrade", newer)
    assert [str(p.relative_to(site)) for p in (site / "sglang").rglob("*.py")] == ["sglang/__init__.py"]
    assert condition(site).value == "reinstalled"
    assert revert(site).outcome is Outcome.NOTHING


def test_uv_waits_while_we_write(uv: Uv, wheel: Path, tmp_path: Path) -> None:
    site = _uv_venv(uv, tmp_path / "venv", wheel, "hardlink")
    waiting: list[subprocess.Popen[bytes]] = []

    def meanwhile(root: Path) -> None:
        words = ("pip", "install", "--python", tmp_path / "venv/bin/python", "--no-deps", "--reinstall", wheel)
        waiting.append(uv.start(*words))
        with pytest.raises(subprocess.TimeoutExpired):
            waiting[0].wait(timeout=2)
        assert (root / "sglang/srt/environ.py").read_bytes() == MERGED["sglang/srt/environ.py"]

    apply_plan(make_plan(site), verify=meanwhile)
    _, said = waiting[0].communicate(timeout=60)
    assert waiting[0].returncode == 0, said
    assert (site / "sglang/srt/environ.py").read_text() == FILES["sglang/srt/environ.py"]
    assert condition(site).value == "reinstalled"


def test_a_pip_reinstall_while_we_write_keeps_the_new_wheel(pip_venv: Path, wheel: Path) -> None:
    site = _site(pip_venv)
    stock = _contents(site / "sglang")

    def meanwhile(root: Path) -> None:
        _pip(pip_venv, "install", "--no-deps", "--no-index", "--force-reinstall", wheel)

    with pytest.raises(ApplyError):
        apply_plan(make_plan(site), verify=meanwhile)
    assert _contents(site / "sglang") == stock
    assert not (site / ".escha-oscar").exists()
    apply_plan(make_plan(site))
    assert condition(site).value == "integrated"


def _nothing_left(site: Path) -> None:
    assert not (site / "sglang").exists()
    assert not (site / ".escha-oscar").exists()
    assert not (site / INFO).exists()


def _seen_and_integrated_again(site: Path) -> None:
    assert condition(site).value == "reinstalled"
    assert not (site / "sglang/QuantKernel").exists()
    apply_plan(make_plan(site))
    assert condition(site).value == "integrated"
    revert(site)
    assert condition(site).value == "pristine"
