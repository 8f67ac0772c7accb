"""Import the modules that an integration changes and say where they came from."""

from __future__ import annotations

import importlib


def main(spec: list[str]) -> dict[str, str]:
    """Return the file of each module named in ``spec``."""
    return {name: str(importlib.import_module(name).__file__) for name in spec}
