"""Refuse a coverage report (JSON) with under 95 % of the branches taken: ``python -m tests.coverage_gate FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LEAST = 0.95


def share(totals: dict[str, Any]) -> float:
    """Return the share of branches taken; raises ValueError where the report counted none."""
    if not totals.get("num_branches"):
        raise ValueError("the report counts no branches")
    return float(totals["covered_branches"] / totals["num_branches"])


def main(path: str) -> int:
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    taken = share(report["totals"])
    print(f"branches taken: {taken:.1%}, at least {LEAST:.0%}")
    worst = sorted(report["files"].items(), key=lambda item: -item[1]["summary"]["missing_branches"])
    for name, file in worst[:5]:
        print(f"  {file['summary']['missing_branches']:3} missing in {name}")
    return 0 if taken >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
