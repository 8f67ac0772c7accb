"""Getting a stock sglang wheel from the package index, whatever interpreter and platform this is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from escha_oscar.errors import SourceError

#: One fixed file per release: newer ones are built per interpreter, and only their Python sources matter here.
_TAGS = (
    "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=none",
    "--platform=manylinux_2_34_x86_64", "--platform=any",
)  # fmt: skip
_TIMEOUT_S = 600


def download_stock_wheel(version: str, folder: Path) -> Path:
    """Download the sglang wheel of ``version`` into ``folder`` and return its path.

    Raises SourceError where there is no pip, no network or no such release.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", *_TAGS]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    try:
        run = subprocess.run(
            [*command, "--dest", str(folder), f"sglang=={version}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(version, f"no answer in {_TIMEOUT_S} s") from None
    found = sorted(folder.glob(f"sglang-{version}-*.whl"))
    if run.returncode or not found:
        reason = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "pip failed")
        raise _unavailable(version, reason.strip())
    return found[0]


def _unavailable(version: str, reason: str) -> SourceError:
    return SourceError(
        f"the stock wheel sglang {version} cannot be downloaded",
        sought=f"sglang=={version}",
        found=reason,
        hint="escha-oscar demo --wheel FILE",
    )
