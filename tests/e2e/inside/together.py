"""Run several programs in one process: ``main`` takes ``{program: spec}`` and returns ``{program: answer}``."""

from __future__ import annotations

import importlib
from typing import Any


def main(specs: dict[str, Any]) -> dict[str, Any]:
    """Import sglang once for all of them."""
    return {program: importlib.import_module(f"inside.{program}").main(spec) for program, spec in specs.items()}
