"""After integrate and after revert a fresh interpreter runs the code that is on disk, whatever was compiled before."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escha_oscar.disk import bytecode
from escha_oscar.disk.fsops import Root
from escha_oscar.errors import ApplyError, TargetError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import revert
from tests.support.environments import FILES, MERGED, MERGED_AGAIN, POOL, make_environment, make_plan, snapshot

_SHOW = "import sglang.srt.mem_cache.memory_pool as m; print(m.pool())"
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
#: Same length as the stock file, so that size and time cannot tell them apart.
SAME_SIZE = {POOL: b"def pool():\r\n    return 'int2!'\r\n"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = make_environment(tmp_path)
    os.utime(site / POOL, (1_000_000_000, 1_000_000_000))
    return site


def _run(site: Path, *options: str, prefix: Path | None = None, write: bool = False) -> str:
    env = {"PYTHONPATH": str(site), **({"PYTHONPYCACHEPREFIX": str(prefix)} if prefix else {})}
    flags = [*options, *([] if write else ["-B"])]
    done = subprocess.run([sys.executable, *flags, "-c", _SHOW], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _ours(site: Path) -> dict[str, tuple[str, int, str]]:
    """Return the tree less what the interpreter compiled of files that are not merged."""
    return {
        name: entry
        for name, entry in snapshot(site).items()
        if "__pycache__/__init__." not in name and name != "sglang/__pycache__"
    }


@pytest.mark.parametrize("options", [[], ["-O"], ["-OO"]], ids=["plain", "-O", "-OO"])
@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode), ids=lambda mode: mode.name)
def test_no_compiled_form_of_the_old_code_runs(
    site: Path, options: list[str], mode: py_compile.PycInvalidationMode
) -> None:
    level = len("".join(options).replace("-", ""))
    py_compile.compile(str(site / POOL), optimize=level, invalidation_mode=mode, doraise=True)
    stock = _ours(site)
    assert _run(site, *options) == "stock"
    apply_plan(make_plan(site))
    assert _run(site, *options, write=True) == "int2"
    revert(site)
    assert _run(site, *options) == "stock"
    assert _ours(site) == stock


def test_new_code_of_the_same_size_in_the_same_second_gets_another_time(site: Path) -> None:
    stock_time = time.time_ns() + 3600 * 10**9  # an installer's clock may be ahead of ours
    os.utime(site / POOL, ns=(stock_time, stock_time))
    assert _run(site, write=True) == "stock"
    apply_plan(make_plan(site, SAME_SIZE))
    assert (site / POOL).stat().st_size == len(FILES[POOL])
    assert (site / POOL).stat().st_mtime_ns - stock_time >= 10**9
    assert _run(site) == "int2!"


def test_a_cache_prefix_that_we_share_is_cleaned(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "prefix"
    cached = prefix / site.resolve().relative_to("/") / Path(POOL).with_name("memory_pool.cpython-399.pyc")
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"stale")
    other = cached.with_name("memory_pool_host.cpython-399.pyc")
    other.write_bytes(b"of another module")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(prefix))
    apply_plan(make_plan(site))
    assert not cached.exists()
    assert other.exists()


def test_unchecked_bytecode_below_a_prefix_does_not_run(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "prefix"
    monkeypatch.setattr(sys, "pycache_prefix", str(prefix))
    cached = importlib.util.cache_from_source(str(site / POOL))
    py_compile.compile(str(site / POOL), cfile=cached, invalidation_mode=UNCHECKED, doraise=True)
    assert _run(site, prefix=prefix) == "stock"
    apply_plan(make_plan(site))
    assert _run(site, prefix=prefix) == "int2"
    py_compile.compile(str(site / POOL), cfile=cached, invalidation_mode=UNCHECKED, doraise=True)
    revert(site)
    assert _run(site, prefix=prefix) == "stock"


def test_bytecode_written_while_we_verify_does_not_survive_the_undo(site: Path) -> None:
    stock = snapshot(site)

    def compile_and_refuse(root: Path) -> None:
        for path in MERGED:
            py_compile.compile(str(root / path), invalidation_mode=UNCHECKED, doraise=True)
        raise TargetError("refused")

    with pytest.raises(ApplyError):
        apply_plan(make_plan(site), verify=compile_and_refuse)
    assert snapshot(site) == stock
    assert _run(site) == "stock"


def test_bytecode_of_a_first_plan_does_not_outlive_a_second(site: Path) -> None:
    stock = snapshot(site)
    apply_plan(make_plan(site))
    for path in MERGED:
        py_compile.compile(str(site / path), invalidation_mode=UNCHECKED, doraise=True)
    apply_plan(make_plan(site, {**MERGED_AGAIN, POOL: MERGED[POOL].replace(b"'int2'", b"'again'")}))
    assert _run(site) == "again"
    revert(site)
    assert snapshot(site) == stock


def test_only_compiled_forms_of_the_very_module_are_found(tmp_path: Path) -> None:
    cache = tmp_path / "sglang/__pycache__"
    cache.mkdir(parents=True)
    ours = ["a.cpython-311.pyc", "a.cpython-312.opt-1.pyc", "a.cpython-312.opt-2.pyc", "a.pypy39.pyc"]
    for name in (*ours, "ab.cpython-311.pyc", "a.cpython-311.pyc.tmp", "a.txt", "b.cpython-311.pyc"):
        (cache / name).write_bytes(b"")
    assert bytecode.beside(Root(tmp_path), "sglang/a.py") == tuple(f"sglang/__pycache__/{name}" for name in ours)
    assert bytecode.beside(Root(tmp_path), "sglang/a.json") == ()
