"""One operation on one small environment, in a process of its own.

``driver.py apply|again|revert|recover SITE [UID]``: with UID, as that user (modules are loaded before the change).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def main(operation: str, site: Path, uid: int | None = None) -> int:
    """Run the operation; say what went wrong and return the exit code that the command line would give."""
    from escha_oscar.errors import EschaOscarError
    from escha_oscar.installed.apply import apply_plan
    from escha_oscar.installed.recovery import recover
    from escha_oscar.installed.revert import revert
    from tests.support.environments import MERGED_AGAIN, make_plan

    work = {
        "apply": lambda: apply_plan(make_plan(site), verify=lambda root: None),
        "again": lambda: apply_plan(make_plan(site, MERGED_AGAIN), verify=lambda root: None),
        "revert": lambda: revert(site),
        "recover": lambda: recover(site),
    }
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    try:
        work[operation]()
    except EschaOscarError as error:
        with contextlib.suppress(OSError):  # the fault may be that nothing can be written
            os.write(2, f"{error}; next: {error.hint}; found: {error.found}".encode())
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])))
