"""docs/guarantees.md names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_the_guarantees_name_exists() -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    short = {f"tests/faults/{name}" for name in re.findall(r"`(test_\w+\.py)`", text)}
    files = short | set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    names = set(re.findall(r"`(test_\w+)`", text))
    assert len(files) >= 10
    assert len(names) >= 6
    assert not [name for name in files if not (ROOT / name).is_file()]
    source = "".join(path.read_text() for path in (ROOT / "tests/faults").glob("test_*.py"))
    assert not [name for name in names if f"def {name}(" not in source]
