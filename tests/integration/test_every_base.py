"""The releases between the two that are taken through the command line: planned and verified in memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from escha_oscar.merge.files import Sources
from escha_oscar.merge.plan import build_plan
from escha_oscar.model import Change, Severity, Target
from escha_oscar.source.bundled import Bundled
from escha_oscar.transforms import TRANSFORMS
from escha_oscar.tree import MemoryTree, planned
from escha_oscar.verify.static import check_tree
from tests.e2e import rig
from tests.support.pr_tree import MemorySource

pytestmark = pytest.mark.network


@pytest.mark.parametrize("release", [base for base in rig.BASES if base not in rig.RELEASES])
def test_every_anchor_matches_and_the_planned_tree_passes(release: str) -> None:
    with zipfile.ZipFile(rig.stock_wheel(release)) as wheel:
        tree = MemoryTree({name: wheel.read(name) for name in wheel.namelist() if name.endswith(".py")})
    target = Target(Path("/x"), "sglang", release, Path(f"/x/sglang-{release}.dist-info"), "upstream")
    plan = build_plan(target, tree, Sources(MemorySource(), Bundled.open()))
    merged = {file.path for file in plan.files if file.change is Change.MERGE}
    assert merged == {t.TARGET for t in TRANSFORMS if tree.read(t.TARGET) is not None}
    report = check_tree(planned(plan, tree), source_kind="pr", changed=[f.path for f in plan.files], base=tree)
    assert [finding for finding in report.findings if finding.severity is Severity.ERROR] == []
