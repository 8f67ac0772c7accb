"""The whole pipeline on a stock wheel in a folder of its own: unpack, integrate, verify, rotations, revert, compare."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from escha_oscar.errors import EschaOscarError, MissingExtraError
from escha_oscar.installed.revert import revert
from escha_oscar.integrate import Outcome, carry_out, prepare
from escha_oscar.merge.files import Sources
from escha_oscar.merge.plan import Options
from escha_oscar.progress import Progress
from escha_oscar.target.locate import locate
from escha_oscar.target.record import is_record
from escha_oscar.target.unpack import unpack_wheel
from escha_oscar.tree import DiskTree
from escha_oscar.verify.static import check_tree

#: The shape of Qwen3.6-35B-A3B: 40 layers, every fourth with full attention, 16 query and 2 KV heads of 256.
CONFIG = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "head_dim": 256,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "hidden_size": 2048,
        "full_attention_interval": 4,
    },
}


@dataclass
class Step:
    """One step of the demo: what was done, what came out, how long it took."""

    name: str
    result: str = ""
    seconds: float = 0.0


@dataclass
class Demo:
    """Runs the steps in ``folder``, which the caller owns and removes."""

    folder: Path
    wheel: Path
    sources: Sources
    progress: Progress
    steps: list[Step] = field(default_factory=list)

    def run(self) -> list[Step]:
        """Run every step in order; raises EschaOscarError where one does not hold."""
        site = self._unpack()
        before = fingerprint(site)
        outcome = self._integrate(site)
        self._verify(site, outcome)
        self._again(site)
        self._rotations()
        self._revert(site)
        self._compare(site, before)
        return self.steps

    @contextmanager
    def _step(self, name: str) -> Iterator[Step]:
        self.progress.step(name)
        step = Step(name)
        started = time.monotonic()
        yield step
        step.seconds = time.monotonic() - started
        self.steps.append(step)

    def _unpack(self) -> Path:
        with self._step("unpack") as step:
            site = self.folder / "site-packages"
            unpack_wheel(self.wheel, site)
            step.result = f"{self.wheel.name} into a folder of its own"
        return site

    def _integrate(self, site: Path) -> Outcome:
        with self._step("integrate") as step:
            target = locate(site_packages=site, python=None, allow_upstream=True)
            outcome = carry_out(prepare(target, self.sources, Options(), self.progress), self.progress)
            if not outcome.report.ok:
                raise _failed("the merged tree did not pass verification", outcome.report.findings[0].message)
            kinds = [file.change.value for file in outcome.plan.files]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            step.result = f"{len(kinds)} files: {counts} ({outcome.plan.source.description})"
        return outcome

    def _verify(self, site: Path, outcome: Outcome) -> None:
        with self._step("verify") as step:
            report = check_tree(DiskTree(site), source_kind=outcome.plan.source.kind)
            errors = [f for f in report.findings if f.severity.value == "error"]
            if errors:
                raise _failed("the tree on disk did not pass verification", errors[0].message)
            step.result = f"{report.checks} static checks, no errors"

    def _again(self, site: Path) -> None:
        with self._step("integrate again") as step:
            target = locate(site_packages=site, python=None, allow_upstream=True)
            outcome = carry_out(prepare(target, self.sources, Options(), self.progress), self.progress)
            if outcome.applied is None or not outcome.applied.already:
                raise _failed("a second integration was not a no-op", "files were written")
            step.result = "nothing to do, nothing written"

    def _rotations(self) -> None:
        with self._step("rotations") as step:
            config = self.folder / "config.json"
            config.write_text(json.dumps(CONFIG), encoding="utf-8")
            try:
                step.result = write_rotations(config, self.folder)
            except MissingExtraError:
                step.result = "left out: torch is not installed here (pip install 'escha-oscar[torch]')"

    def _revert(self, site: Path) -> None:
        with self._step("revert") as step:
            summary = revert(site, force=False, progress=self.progress)
            restored = [path for path in summary.restored if not is_record(path)]
            step.result = f"{len(restored)} files put back, {len(summary.removed)} removed"

    def _compare(self, site: Path, before: str) -> None:
        with self._step("compare") as step:
            after = fingerprint(site)
            if after != before:
                raise _failed("the reverted tree differs from the wheel", after)
            step.result = f"byte-identical to the wheel (sha256 {before[:16]})"


def write_rotations(config: Path, folder: Path) -> str:
    """Write the Hadamard K and V files of the model at ``config``; raises MissingExtraError without torch."""
    from escha_oscar import rotations
    from escha_oscar.serving.model_config import read_model_config

    model = read_model_config(config)
    matrix = rotations.hadamard_matrix(model.head_dim)
    layers = {layer: matrix for layer in range(model.num_layers)}
    names = [rotations.file_name(role, "hadamard", model.head_dim) for role in "kv"]
    rotations.write_rotation_files({folder / name: (layers, "hadamard") for name in names})
    return f"{' and '.join(names)}: {model.num_layers} layers of {model.head_dim} x {model.head_dim}"


def fingerprint(folder: Path) -> str:
    """Return one SHA-256 over the relative path, mode and bytes of every file below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_mode:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _failed(message: str, found: str) -> EschaOscarError:
    return EschaOscarError(message, found=found, hint="escha-oscar demo --keep DIR")
