"""Any tree, any plans, any order: revert gives the first tree back, and a plan's result does not depend on history."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import revert
from escha_oscar.model import Change, Plan, PlannedFile, SourceId, Target
from tests.support.environments import INFO, NAME, VERSION, snapshot, without_state
from tests.support.wheels import make_site_packages

_NAMES = [
    "sglang/a.py",
    "sglang/b.py",
    "sglang/sub/c.py",
    "sglang/sub/deep/d.py",
    "sglang/other/e.json",
    "sglang/f.pyi",
]
_BYTES = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"x = 1\r\n", b"\xef\xbb\xbfx = 1", b"x\x0cy\n", b"\xe9"])
)
_TREE = st.dictionaries(st.sampled_from(_NAMES), _BYTES, max_size=5)


def _plan(site: Path, stock: Mapping[str, bytes], after: Mapping[str, bytes]) -> Plan:
    files = tuple(PlannedFile(p, Change.MERGE, stock.get(p), data) for p, data in after.items() if stock.get(p) != data)
    return Plan(Target(site, NAME, VERSION, site / INFO, "escha-moe"), SourceId("bundled", "bundled"), "native", files)


@settings(max_examples=40)
@given(stock=_TREE, plans=st.lists(_TREE, min_size=1, max_size=3), mode=st.sampled_from([0o644, 0o600, 0o755, 0o444]))
def test_history_leaves_no_trace(stock: dict[str, bytes], plans: list[dict[str, bytes]], mode: int) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        site, alone = (make_site_packages(Path(folder).resolve(), {"sglang/__init__.py": "", **stock},
                                          name=NAME, version=VERSION) for folder in (one, two))  # fmt: skip
        for path in stock:
            for place in (site, alone):
                (place / path).chmod(mode)
        before = snapshot(site)
        for after in plans:
            apply_plan(_plan(site, stock, after))
        last = _plan(alone, stock, plans[-1])
        apply_plan(last)
        if last.files:
            assert without_state(snapshot(site)) == without_state(snapshot(alone))
        for place in (site, alone):
            revert(place)
            assert snapshot(place) == before
