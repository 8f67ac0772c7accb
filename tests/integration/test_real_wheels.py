"""The whole job through the command line, on the stock releases that the two Escha wheels stand close to."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from escha_oscar.mapping import copies
from escha_oscar.mapping.wheels import KERNELS_DIR
from escha_oscar.merge.blast import check_blast_radius
from escha_oscar.target import record
from escha_oscar.transforms import TRANSFORMS
from tests.integration.conftest import Release, integrate, typed
from tests.support import forks, pr_tree
from tests.support.environments import snapshot, without_state
from tests.support.pull_request import make_pull_repository

pytestmark = pytest.mark.network
CopyOf = Callable[[Path], Path]


def merged_paths(release: Release) -> set[str]:
    return {t.TARGET for t in TRANSFORMS if (release.pristine / t.TARGET).is_file()}


def test_every_file_arrives_and_nothing_is_found_wrong(release: Release) -> None:
    code, answer = release.ran.code, release.ran.answer
    assert (code, answer["written"]) == (0, True)
    assert [f for f in answer["findings"] if f["severity"] == "error"] == []
    changes = {file["path"]: file["change"] for file in answer["files"]}
    assert {p for p, c in changes.items() if c == "merge"} == merged_paths(release)
    assert {p for p, c in changes.items() if c == "copy"} == {row.wheel_paths[0] for row in copies()}
    assert {p for p, c in changes.items() if c == "create"} == {"sglang/QuantKernel/__init__.py"}
    assert all(p.startswith(KERNELS_DIR) for p, c in changes.items() if c == "place")


def test_the_merged_tree_passes_verification_and_is_called_integrated(release: Release) -> None:
    levels = ("--level", "files", "--level", "static")
    verified = typed("verify", "--site-packages", release.merged, *levels)
    assert (verified.code, verified.answer["ok"]) == (0, True), verified.answer
    status = typed("status", "--site-packages", release.merged)
    assert status.code == 0
    assert status.answer["condition"] == "integrated"


def test_only_the_planned_files_differ_from_the_wheel(release: Release) -> None:
    before, after = snapshot(release.pristine), without_state(snapshot(release.merged))
    planned = {file["path"] for file in release.ran.answer["files"]}
    differ = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    files = {path for path in differ if after.get(path, before.get(path, ("", 0, "")))[0] == "file"}
    assert {path for path in files if not path.endswith(".dist-info/RECORD")} == planned
    for path in planned & before.keys():
        assert after[path][1] == before[path][1], f"the mode of {path} changed"


def test_what_is_merged_stays_inside_the_declared_edits(release: Release) -> None:
    for transform in TRANSFORMS:
        if transform.TARGET in merged_paths(release):
            before = (release.pristine / transform.TARGET).read_bytes()
            check_blast_radius(transform.TARGET, before, release.after(transform.TARGET), transform.TOUCHES)
            lost = set(before.splitlines()) - set(release.after(transform.TARGET).splitlines())
            assert len(lost) <= 8, (transform.TARGET, lost)


def test_a_second_run_writes_nothing(release: Release) -> None:
    def times() -> dict[str, tuple[int, int]]:
        stats = {p: p.stat() for p in release.merged.rglob("*") if p.is_file()}
        return {str(p): (s.st_mtime_ns, s.st_ino) for p, s in stats.items()}

    before = times()
    again = integrate(release.merged)
    assert (again.code, again.answer["written"], again.answer["already_integrated"]) == (0, False, True)
    assert times() == before


def test_a_dry_run_leaves_the_tree_alone_and_its_diff_makes_the_merged_one(release: Release, copy_of: CopyOf) -> None:
    site = copy_of(release.pristine)
    before = snapshot(site)
    dry = integrate(site, "--dry-run", "--diff")
    assert (dry.code, dry.answer["dry_run"], dry.answer["written"]) == (0, True, False)
    assert snapshot(site) == before
    apply_diff(dry.answer["diff"], site)
    planned = {file["path"] for file in dry.answer["files"]}
    assert planned == {file["path"] for file in release.ran.answer["files"]}
    for path in planned:
        assert (site / path).read_bytes() == release.after(path), path


def apply_diff(text: str, site: Path) -> None:
    """Apply a diff as users do; files are unlinked first, for ``patch`` may write in place."""
    for path in {line[6:] for line in text.splitlines() if line.startswith("--- a/")}:
        data = (site / path).read_bytes()
        (site / path).unlink()
        (site / path).write_bytes(data)
    command = ["patch", "-p1", "--silent"] if shutil.which("patch") else ["git", "apply"]
    subprocess.run(command, cwd=site, input=text.encode(), check=True)
    assert not list(site.glob("sglang/**/*.rej")) and not list(site.glob("sglang/**/*.orig"))


def test_an_overlay_is_a_whole_merged_tree(release: Release, copy_of: CopyOf, tmp_path: Path) -> None:
    site, overlay = copy_of(release.pristine), tmp_path / "overlay"
    before = snapshot(site)
    ran = integrate(site, "--overlay", overlay)
    assert (ran.code, ran.answer["overlay"]) == (0, str(overlay))
    assert without_state(snapshot(site)) == before
    for path in release.merged.glob("sglang/**/*"):
        if path.is_file():
            assert (overlay / path.relative_to(release.merged)).read_bytes() == path.read_bytes(), path


def test_revert_puts_every_byte_and_mode_back(release: Release, copy_of: CopyOf) -> None:
    site = copy_of(release.merged)
    shared = snapshot(release.merged)
    assert typed("revert", "--site-packages", site).code == 0
    assert without_state(snapshot(site)) == snapshot(release.pristine)
    assert typed("status", "--site-packages", site).answer["condition"] == "pristine"
    assert snapshot(release.merged) == shared, "a hard-linked file was written in place"


#: file -> (a line of every release, what a fork has put there).
MARKS = {
    forks.ENVIRON: ("class Envs:\n", 'class Envs:\n    ESCHA_TWO_BIT = EnvBool(True)  # フォーク\n'),
    forks.SERVER_ARGS: ('"bfloat16", "fp4_e2m1"', '"bfloat16", "escha_kv", "fp4_e2m1"'),
    forks.RUNNER: (
        '        elif self.server_args.kv_cache_dtype == "fp4_e2m1":\n',
        '        elif self.server_args.kv_cache_dtype == "escha_kv":\n            self.kv_cache_dtype = torch.int8\n'
        '        elif self.server_args.kv_cache_dtype == "fp4_e2m1":\n',
    ),
    forks.MIXIN: (
        "class ModelRunnerKVCacheMixin:\n",
        "class ModelRunnerKVCacheMixin:\n    ESCHA_RESERVE = 64\n\n    def escha_reserve(self):\n        return 64\n\n",
    ),
    forks.POOL: (
        "class KVCache(abc.ABC):\n",
        'class KVCache(abc.ABC):\n    ESCHA_POOLS = {"escha_kv": torch.int8}  # フォーク\n\n',
    ),
    forks.BACKEND: (
        "class TritonAttnBackend(AttentionBackend):\n",
        "class TritonAttnBackend(AttentionBackend):\n    def escha_plan(self):\n        return self\n\n",
    ),
    forks.DECODE: (
        "def _decode_grouped_att_m_fwd(\n",
        "# フォークの表\nESCHA_TILES = (8, 16)\n\n\ndef _decode_grouped_att_m_fwd(\n",
    ),
}  # fmt: skip


def test_what_a_fork_has_planted_in_the_seven_files_survives(release: Release, copy_of: CopyOf) -> None:
    site = copy_of(release.pristine)
    planted: dict[str, bytes | None] = {}
    for path, (old, new) in MARKS.items():
        text = (site / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, path
        planted[path] = text.replace(old, new).encode()
    (info,) = site.glob("*.dist-info/RECORD")
    planted[str(info.relative_to(site))] = record.with_rows(info.read_bytes(), planted)
    for path, data in planted.items():
        (site / path).unlink()
        (site / path).write_bytes(data or b"")
    assert integrate(site).code == 0
    for path, (old, new) in MARKS.items():
        text = (site / path).read_text(encoding="utf-8")
        assert text.count(new) == 1, path
        assert text.replace(new, old).encode() == release.after(path), path


def test_a_local_repository_serves_as_the_pull_request(release: Release, copy_of: CopyOf, tmp_path: Path) -> None:
    site = copy_of(release.pristine)
    pull = make_pull_repository(tmp_path / "pr.git", pr_tree.FILES)
    ran = integrate(site, "--pr-repo", pull.path, "--pr-commit", pull.pinned)
    assert (ran.code, ran.answer["written"], ran.answer["source"]["commit"]) == (0, True, pull.pinned), ran.answer
    taken = {use["symbol"]: use["taken_from"] for use in ran.answer["symbols"]}
    assert taken["decode_attention_fwd_quantized"] == "pr"
    assert taken["load_oscar_rotations"] == "bundled"
    assert taken["_safe_block_h"] == "glue"
    assert {"rebound-constexpr", "head-tile"} <= {repair["name"] for repair in ran.answer["repairs"]}
    decode = ast.parse((site / forks.DECODE).read_bytes())
    names = [node.name for node in decode.body if isinstance(node, ast.FunctionDef)]
    assert len(set(names)) == len(names)
    levels = ("--level", "files", "--level", "static")
    assert typed("verify", "--site-packages", site, *levels).code == 0
    assert typed("revert", "--site-packages", site).code == 0
    assert without_state(snapshot(site)) == snapshot(release.pristine)
