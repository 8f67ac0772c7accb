"""The main job: locate, plan, verify the plan, write it as one transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from escha_oscar.errors import DriftError, EschaOscarError
from escha_oscar.installed.apply import AppliedSummary, apply_plan
from escha_oscar.installed.overlay import write_overlay
from escha_oscar.installed.pristine import pristine_tree
from escha_oscar.merge.files import Sources
from escha_oscar.merge.plan import Options, build_plan
from escha_oscar.model import Plan, Report, Target
from escha_oscar.progress import Progress
from escha_oscar.target import record
from escha_oscar.target.drift import differing
from escha_oscar.target.owner import required_imports
from escha_oscar.tree import DiskTree, Tree, planned
from escha_oscar.verify.static import check_tree


@dataclass(frozen=True)
class Outcome:
    """What an integration came to: ``applied`` is None after a dry run, an overlay or a failed verification."""

    plan: Plan
    report: Report
    applied: AppliedSummary | None = None
    overlay: Path | None = None


def prepare(target: Target, sources: Sources, options: Options, progress: Progress, *, force: bool = False) -> Outcome:
    """Plan the integration from the target's pristine files and verify the plan in memory; writes nothing.

    Raises DriftError where a file to be merged was edited since the wheel was installed; with ``force`` the edited
    bytes are merged into, and a later revert restores them.
    """
    tree = pristine_tree(target.site_packages)
    plan = build_plan(target, tree, sources, options, progress, required_imports(target.dist_info))
    edited = _edited(plan, tree)
    if edited and not force:
        raise DriftError(
            f"edited since the wheel was installed: {', '.join(edited)}",
            path=str(target.site_packages / edited[0]),
            sought="the wheel's own bytes, by RECORD",
            hint="escha-oscar integrate --force (merges into the edited files; revert restores them as they are now)",
        )
    progress.step("verifying the plan")
    changed = [file.path for file in plan.files]
    escha = target.distribution == "escha"
    after = planned(plan, tree)
    return Outcome(plan, check_tree(after, source_kind=plan.source.kind, changed=changed, base=tree, escha=escha))


def carry_out(prepared: Outcome, progress: Progress, overlay: Path | None = None, *, force: bool = False) -> Outcome:
    """Write a prepared integration, or a shadow tree at ``overlay``; does nothing where the report has errors.

    ``force`` replaces an older shadow tree whose files were edited.
    """
    if not prepared.report.ok:
        return prepared
    plan = prepared.plan
    if overlay is not None:
        write_overlay(plan, overlay, progress, force=force)
        return replace(prepared, overlay=overlay)
    applied = apply_plan(plan, verify=lambda root: _require_planned(plan, root), progress=progress)
    return replace(prepared, applied=applied)


def _edited(plan: Plan, tree: Tree) -> list[str]:
    """Return the planned files whose bytes are not those that RECORD states."""
    data = tree.read(f"{plan.target.dist_info.name}/RECORD")
    before = {file.path: file.before for file in plan.files if file.before is not None}
    return differing(record.parse(data or b""), before)


def _require_planned(plan: Plan, site_packages: Path) -> None:
    """Raise where the tree on disk is not, byte for byte, the plan that was verified in memory."""
    disk = DiskTree(site_packages)
    wrong = [file.path for file in plan.files if disk.read(file.path) != file.after]
    if wrong:
        raise EschaOscarError("a written file differs from the verified plan", path=str(site_packages / wrong[0]))
