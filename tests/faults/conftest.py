"""The fault tests' option, shared trees and closing line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import matrix

LEFT_OUT = pytest.StashKey[int]()


@pytest.fixture(autouse=True, scope="session")
def strace() -> None:
    """Fail, and never skip, where these tests run without strace."""
    matrix.require_strace()


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> bool:
    """Return whether ``--faults=all`` was given."""
    return bool(request.config.getoption("--faults") == "all")


@pytest.fixture
def stock(tmp_path: Path) -> matrix.Snapshot:
    """Return the environment before anything was done to it."""
    return matrix.prepare("apply", tmp_path).old


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that any user may pass through."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine cannot set up: tests of root elsewhere, and all of these where strace is absent.

    Where the folder is named on the command line nothing is left out for want of strace: the tests fail then.
    """
    if os.geteuid() != 0:
        _leave_out(config, items, [item for item in items if item.get_closest_marker("root")])
    named = any("faults" in argument for argument in config.args)
    if shutil.which("strace") is None and not named:
        here = Path(__file__).parent
        config.stash[LEFT_OUT] = _leave_out(config, items, [item for item in items if here in item.path.parents])


def _leave_out(config: pytest.Config, items: list[pytest.Item], unwanted: list[pytest.Item]) -> int:
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]
    return len(unwanted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults were injected and whether any lost a byte, or that strace is missing for them."""
    left_out = terminalreporter.config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"{left_out} fault-injection tests left out: install strace, then pytest tests/faults"
        )
    counts = matrix.TALLY.counts
    if not counts:
        return
    failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    kinds = ", ".join(f"{kind.partition('=')[2]} {count}" for kind, count in sorted(counts.items()))
    verdict = "none lost a byte" if not failed else f"{failed} tests FAILED"
    terminalreporter.write_line(f"faults injected: {sum(counts.values())} ({kinds}); {verdict}")
