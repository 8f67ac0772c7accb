"""Shared fixtures."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A deadline would measure how busy the machine is; a database would need a checkout that can be written to.
settings.register_profile("steady", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--faults``: how much of the fault matrix (tests/faults) to run."""
    parser.addoption(
        "--faults",
        choices=("sample", "all"),
        default="sample",
        help="fault matrix: a sample of the rarer kinds, or all",
    )
