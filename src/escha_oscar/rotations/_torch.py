"""The one place where this package imports torch, late and with a message for those who have none."""

from __future__ import annotations

import re
from typing import Any

from escha_oscar.errors import MissingExtraError

#: Older releases run code from a file even with ``weights_only=True``.
MINIMUM = (2, 6)
#: Older releases can corrupt memory on a crafted file.
ADVISED = (2, 10)


def torch_module() -> Any:
    """Import torch; raises MissingExtraError where there is none or it is too old to load files safely."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            "this command needs torch", found=str(error), hint="pip install 'escha-oscar[torch]'"
        ) from error
    if version_of(torch) < MINIMUM:
        raise MissingExtraError(
            f"torch {torch.__version__} loads rotation files unsafely",
            sought=f"torch >= {MINIMUM[0]}.{MINIMUM[1]}",
            hint="pip install 'escha-oscar[torch]'",
        )
    return torch


def version_of(torch: Any) -> tuple[int, int]:
    """Return torch's (major, minor)."""
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def loading_warning() -> str | None:
    """Say so where this torch has a known flaw in loading files that it did not write."""
    torch = torch_module()
    if version_of(torch) >= ADVISED:
        return None
    return f"torch {torch.__version__} can corrupt memory on a crafted file (CVE-2026-24747): load only files you trust"
