"""One operation on one small environment, in a process of its own: ``driver.py apply|again|revert|recover SITE``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def main(operation: str, site: Path) -> int:
    """Run the operation; return the exit code that the command line would give."""
    from escha_oscar.apply import apply_plan
    from escha_oscar.errors import EschaOscarError
    from escha_oscar.recovery import recover
    from escha_oscar.revert import revert
    from tests.support.environments import MERGED_AGAIN, make_plan

    work = {
        "apply": lambda: apply_plan(make_plan(site), verify=lambda root: None),
        "again": lambda: apply_plan(make_plan(site, MERGED_AGAIN), verify=lambda root: None),
        "revert": lambda: revert(site),
        "recover": lambda: recover(site),
    }
    try:
        work[operation]()
    except EschaOscarError as error:
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
