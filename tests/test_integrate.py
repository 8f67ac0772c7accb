"""The main job on a small installed fork: prepare decides and verifies, carry_out writes all of it or nothing."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest

from escha_oscar import integrate
from escha_oscar.errors import ApplyError, DriftError, TargetError
from escha_oscar.installed.revert import revert
from escha_oscar.installed.status import Condition
from escha_oscar.integrate import Outcome, carry_out, prepare
from escha_oscar.merge.files import Sources
from escha_oscar.merge.plan import Options, build_plan
from escha_oscar.model import Finding, Report, Severity, Target
from escha_oscar.progress import NoProgress
from escha_oscar.source.bundled import Bundled
from escha_oscar.target.locate import locate
from escha_oscar.tree import MemoryTree
from tests.support import forks
from tests.support.environments import condition, snapshot, without_state
from tests.support.pr_tree import MemorySource
from tests.support.wheels import make_site_packages
from tests.transforms.test_server_args import CONSTANT


def install(folder: Path, files: forks.Files = forks.OLD) -> Target:
    site = make_site_packages(folder, files)
    return locate(site_packages=site, python=None, allow_upstream=False)


def prepared(target: Target, pr: MemorySource | None = None) -> Outcome:
    return prepare(target, Sources(pr, Bundled.open()), Options(), NoProgress())


@pytest.mark.parametrize(
    ("layout", "pr"),
    [
        pytest.param(forks.OLD, MemorySource(), id="older layout, pull request"),
        pytest.param(forks.NEW, None, id="newer layout, bundled"),
    ],
)
def test_a_fork_is_integrated_and_reverted_to_the_byte(
    layout: forks.Files, pr: MemorySource | None, tmp_path: Path
) -> None:
    target = install(tmp_path, layout)
    before = snapshot(target.site_packages)
    outcome = prepared(target, pr)
    assert outcome.report.ok, outcome.report.findings
    assert snapshot(target.site_packages) == before
    done = carry_out(outcome, NoProgress())
    assert done.applied is not None and not done.applied.already
    for file in outcome.plan.files:
        assert (target.site_packages / file.path).read_bytes() == file.after
    assert condition(target.site_packages) is Condition.INTEGRATED
    revert(target.site_packages, force=False, progress=NoProgress())
    assert without_state(snapshot(target.site_packages)) == before


@functools.cache
def _planned_once(kind: str) -> Outcome:
    tree = MemoryTree(forks.encoded(forks.OLD))
    target = Target(Path("/x"), "escha", "1.0.2+qwen3moe", Path("/x/escha-1.0.2+qwen3moe.dist-info"), "escha-moe")
    pr = MemorySource() if kind == "pr" else None
    return Outcome(build_plan(target, tree, Sources(pr, Bundled.open())), Report())


def ready(target: Target, kind: str = "bundled") -> Outcome:
    """Return what ``prepare`` gives for the older layout, planned once for all tests."""
    outcome = _planned_once(kind)
    return dataclasses.replace(outcome, plan=dataclasses.replace(outcome.plan, target=target))


def test_a_second_run_is_planned_from_the_originals_and_writes_nothing(tmp_path: Path) -> None:
    target = install(tmp_path)
    first = carry_out(prepared(target), NoProgress())
    before = snapshot(target.site_packages)
    times = {p: p.stat().st_mtime_ns for p in target.site_packages.rglob("*") if p.is_file()}
    again = carry_out(prepared(target), NoProgress())
    assert again.applied is not None and again.applied.already
    assert again.plan.files == first.plan.files
    assert snapshot(target.site_packages) == before
    assert {p: p.stat().st_mtime_ns for p in target.site_packages.rglob("*") if p.is_file()} == times


def test_an_edited_file_is_refused_by_name_and_merged_into_with_force(tmp_path: Path) -> None:
    target = install(tmp_path)
    edited = target.site_packages / "sglang/srt/environ.py"
    edited.write_bytes(edited.read_bytes() + b"# a note of the owner\n")
    before = snapshot(target.site_packages)
    with pytest.raises(DriftError) as refused:
        prepared(target)
    assert "sglang/srt/environ.py" in refused.value.message and "--force" in (refused.value.hint or "")
    assert snapshot(target.site_packages) == before
    outcome = prepare(target, Sources(None, Bundled.open()), Options(), NoProgress(), force=True)
    carry_out(outcome, NoProgress())
    assert edited.read_bytes().endswith(b"# a note of the owner\n")
    revert(target.site_packages, force=False, progress=NoProgress())
    assert without_state(snapshot(target.site_packages)) == before


def test_another_source_replaces_the_first_integration(tmp_path: Path) -> None:
    target = install(tmp_path)
    before = snapshot(target.site_packages)
    carry_out(ready(target), NoProgress())
    done = carry_out(ready(target, "pr"), NoProgress())
    assert done.applied is not None and not done.applied.already
    text = (target.site_packages / forks.DECODE).read_text(encoding="utf-8")
    assert text.count("def decode_attention_fwd_quantized(") == 1
    assert "_fwd_grouped_kernel_stage1_quant_int2" in text
    revert(target.site_packages, force=False, progress=NoProgress())
    assert without_state(snapshot(target.site_packages)) == before


def test_a_plan_with_an_error_is_not_written(tmp_path: Path) -> None:
    target = install(tmp_path)
    before = snapshot(target.site_packages)
    failed = dataclasses.replace(
        ready(target), report=Report((Finding(Severity.ERROR, "undefined-name", "x is not defined"),))
    )
    assert carry_out(failed, NoProgress()) is failed
    assert carry_out(failed, NoProgress(), tmp_path / "overlay") is failed
    assert snapshot(target.site_packages) == before
    assert not (tmp_path / "overlay").exists()


def test_verification_sees_the_planned_tree(tmp_path: Path) -> None:
    files = {**forks.OLD, forks.QUANTIZATION: "BASE_QUANTIZATION_METHODS = {}\n"}
    outcome = prepared(install(tmp_path, files))
    assert not outcome.report.ok
    assert any("escha" in finding.message for finding in outcome.report.findings)


HABITS: dict[str, forks.Files] = {
    "choices in a constant": {**forks.OLD, forks.SERVER_ARGS: CONSTANT},
    "carriage returns everywhere": {path: text.replace("\n", "\r\n") for path, text in forks.NEW.items()},
}


@pytest.mark.parametrize("files", HABITS.values(), ids=HABITS)
def test_a_fork_of_other_habits_passes_verification(files: forks.Files, tmp_path: Path) -> None:
    outcome = prepared(install(tmp_path, files))
    assert outcome.report.findings == ()
    ends = {file.path: file.after.count(b"\n") - file.after.count(b"\r\n") for file in outcome.plan.files}
    for path in forks.MARKS.keys() & ends.keys():
        assert ends[path] == 0 or "\r\n" not in files[path], path


def test_an_overlay_holds_the_whole_merged_tree_and_leaves_the_wheel_alone(tmp_path: Path) -> None:
    target = install(tmp_path)
    before = snapshot(target.site_packages)
    overlay = tmp_path / "overlay"
    done = carry_out(ready(target), NoProgress(), overlay)
    assert (done.applied, done.overlay) == (None, overlay)
    assert snapshot(target.site_packages) == before
    assert (overlay / forks.QUANTIZATION).read_text(encoding="utf-8") == forks.OLD[forks.QUANTIZATION]
    for file in done.plan.files:
        assert (overlay / file.path).read_bytes() == file.after


def test_a_tree_that_differs_from_the_verified_plan_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = install(tmp_path)
    before = snapshot(target.site_packages)
    outcome = ready(target)
    real = integrate.DiskTree.read

    def flipped(self: integrate.DiskTree, path: str) -> bytes | None:
        return b"flipped" if path == forks.POOL else real(self, path)

    monkeypatch.setattr(integrate.DiskTree, "read", flipped)
    with pytest.raises(ApplyError):
        carry_out(outcome, NoProgress())
    monkeypatch.undo()
    assert without_state(snapshot(target.site_packages)) == before


def test_a_file_changed_between_plan_and_write_is_refused(tmp_path: Path) -> None:
    target = install(tmp_path)
    outcome = ready(target)
    (target.site_packages / forks.POOL).write_text("changed = 1\n", encoding="utf-8")
    before = snapshot(target.site_packages)
    with pytest.raises(TargetError, match="changed since the plan was made"):
        carry_out(outcome, NoProgress())
    assert without_state(snapshot(target.site_packages)) == before
