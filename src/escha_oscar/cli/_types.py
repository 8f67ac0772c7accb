"""Option types that click has not."""

from __future__ import annotations

import math
from typing import Any

import click


class Fraction(click.FloatRange):
    """A finite number above 0, at most 1 (click's own range lets NaN through)."""

    name = "fraction"

    def __init__(self) -> None:
        super().__init__(0.0, 1.0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse and check one value."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range 0<x<=1.", param, ctx)
        return number
