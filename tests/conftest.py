"""Shared fixtures."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from escha_oscar.serving.model_config import ModelConfig, read_model_config
from tests.support.checkpoints import DENSE, MOE, write_config

# A deadline would measure how busy the machine is; a database would need a checkout that can be written to.
settings.register_profile("steady", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Failures inside shared helpers show what differs; registered before any test imports them.
pytest.register_assert_rewrite("tests.transforms.tools")

# Kernels run on the CPU unless a GPU run (TRITON_INTERPRET=0 pytest -m gpu) says otherwise; read at triton's import.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--faults``: how much of the fault matrix (tests/faults) to run."""
    parser.addoption(
        "--faults",
        choices=("sample", "all"),
        default="sample",
        help="fault matrix: a sample of the rarer kinds, or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that only root can set up; keep notes out of the user's own state folder."""
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="escha-oscar-state-")
    config.add_cleanup(lambda: shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell does to its background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "root: needs root (mounts, immutable bits, other users); left out elsewhere")


@pytest.fixture
def moe(tmp_path: Path) -> ModelConfig:
    """The shape of the MoE checkpoint."""
    return read_model_config(write_config(tmp_path, MOE))


@pytest.fixture
def dense(tmp_path: Path) -> ModelConfig:
    """The shape of the dense checkpoint."""
    return read_model_config(write_config(tmp_path, DENSE))
