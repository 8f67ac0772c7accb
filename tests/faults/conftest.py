"""The fault tests' option, shared trees and closing line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import matrix


@pytest.fixture(autouse=True, scope="session")
def strace() -> None:
    """Fail, and never skip, where strace is absent."""
    matrix.require_strace()


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> bool:
    """Return whether ``--faults=all`` was given."""
    return bool(request.config.getoption("--faults") == "all")


@pytest.fixture
def stock(tmp_path: Path) -> matrix.Snapshot:
    """Return the environment before anything was done to it."""
    return matrix.prepare("apply", tmp_path).old


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only root can set up (mounts, immutable bits, other users) where we are not root."""
    if os.geteuid() == 0:
        return
    rooted = [item for item in items if item.get_closest_marker("root")]
    config.hook.pytest_deselected(items=rooted)
    items[:] = [item for item in items if item not in rooted]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults were injected and whether any lost a byte."""
    counts = matrix.TALLY.counts
    if not counts:
        return
    failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    kinds = ", ".join(f"{kind.partition('=')[2]} {count}" for kind, count in sorted(counts.items()))
    verdict = "none lost a byte" if not failed else f"{failed} tests FAILED"
    terminalreporter.write_line(f"faults injected: {sum(counts.values())} ({kinds}); {verdict}")
