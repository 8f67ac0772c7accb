"""The demo on a wheel file made by the tests: every step holds, and a step that does not says so."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from escha_oscar import demo
from escha_oscar.demo import Demo, fingerprint, write_rotations
from escha_oscar.errors import EschaOscarError
from escha_oscar.integrate import Outcome
from escha_oscar.merge.files import Sources
from escha_oscar.model import Finding, Report, Severity, Target
from escha_oscar.progress import NoProgress
from escha_oscar.source.bundled import Bundled
from tests.support import forks
from tests.support.wheels import make_wheel

STEPS = ["unpack", "integrate", "verify", "integrate again", "rotations", "revert", "compare"]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[], Demo]:
    def make() -> Demo:
        wheel = make_wheel(tmp_path, forks.OLD, name="sglang", version="0.5.9")
        folder = tmp_path / "work"
        folder.mkdir()
        return Demo(folder, wheel, Sources(None, Bundled.open()), NoProgress())

    return make


@pytest.fixture
def planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the tests of later steps the planning, which is the same each time."""
    real = demo.prepare

    def prepare(target: Target, *rest: object) -> Outcome:
        if "outcome" not in _KEPT:
            _KEPT["outcome"] = real(target, *rest)  # type: ignore[arg-type]
        outcome = _KEPT["outcome"]
        return dataclasses.replace(outcome, plan=dataclasses.replace(outcome.plan, target=target))

    monkeypatch.setattr(demo, "prepare", prepare)


_KEPT: dict[str, Outcome] = {}


@pytest.fixture
def no_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "write_rotations", lambda config, folder: "two files")


def test_every_step_runs_and_says_what_it_did(run: Callable[[], Demo], no_rotations: None) -> None:
    steps = run().run()
    assert [step.name for step in steps] == STEPS
    results = {step.name: step.result for step in steps}
    assert "sglang-0.5.9" in results["unpack"]
    assert "9 merge" in results["integrate"] and "3 copy" in results["integrate"]
    assert "no errors" in results["verify"]
    assert results["integrate again"] == "nothing to do, nothing written"
    assert results["rotations"] == "two files"
    assert results["compare"].startswith("byte-identical to the wheel")
    assert all(step.seconds >= 0 for step in steps)


def test_rotations_are_left_out_with_a_word_where_torch_is_missing(
    run: Callable[[], Demo], monkeypatch: pytest.MonkeyPatch, planned_once: None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    results = {step.name: step.result for step in run().run()}
    assert results["rotations"].startswith("left out: torch is not installed")


def test_the_rotations_are_those_of_the_shown_model(tmp_path: Path) -> None:
    import json

    import torch

    config = tmp_path / "config.json"
    config.write_text(json.dumps(demo.CONFIG), encoding="utf-8")
    said = write_rotations(config, tmp_path)
    files = sorted(tmp_path.glob("*.pt"))
    assert len(files) == 2 and all(file.name in said for file in files)
    layers = torch.load(files[0], weights_only=True)["layers"]
    assert sorted(map(int, layers)) == list(range(40))
    assert "40 layers of 256 x 256" in said


def failed_report(*args: object, **options: object) -> Report:
    return Report((Finding(Severity.ERROR, "undefined-name", "cdiv is not defined"),), checks=1)


def test_a_failed_verification_of_the_plan_stops_the_demo(
    run: Callable[[], Demo], monkeypatch: pytest.MonkeyPatch, planned_once: None
) -> None:
    real = demo.prepare
    monkeypatch.setattr(demo, "prepare", lambda *args: dataclasses.replace(real(*args), report=failed_report()))
    check_stops(run(), "the merged tree did not pass verification", "cdiv is not defined", STEPS[:1])


def test_a_failed_verification_of_the_tree_stops_the_demo(
    run: Callable[[], Demo], monkeypatch: pytest.MonkeyPatch, planned_once: None
) -> None:
    monkeypatch.setattr(demo, "check_tree", failed_report)
    check_stops(run(), "the tree on disk did not pass verification", "cdiv is not defined", STEPS[:2])


def test_a_second_run_that_writes_stops_the_demo(
    run: Callable[[], Demo], monkeypatch: pytest.MonkeyPatch, planned_once: None
) -> None:
    real, calls = demo.carry_out, [0]

    def forgetful(*args: object) -> object:
        calls[0] += 1
        done = real(*args)  # type: ignore[arg-type]
        return done if calls[0] == 1 else dataclasses.replace(done, applied=None)

    monkeypatch.setattr(demo, "carry_out", forgetful)
    check_stops(run(), "a second integration was not a no-op", "files were written", STEPS[:3])


def test_a_byte_that_is_not_back_stops_the_demo(
    run: Callable[[], Demo], monkeypatch: pytest.MonkeyPatch, no_rotations: None, planned_once: None
) -> None:
    real = demo.revert

    def careless(site: Path, **options: object) -> object:
        summary = real(site, **options)  # type: ignore[arg-type]
        (site / forks.POOL).write_text("x = 1\n", encoding="utf-8")
        return summary

    monkeypatch.setattr(demo, "revert", careless)
    check_stops(run(), "the reverted tree differs from the wheel", "", STEPS[:6])


def check_stops(made: Demo, message: str, found: str, done: list[str]) -> None:
    with pytest.raises(EschaOscarError, match=message) as caught:
        made.run()
    assert found in str(caught.value.found)
    assert caught.value.hint == "escha-oscar demo --keep DIR"
    assert [step.name for step in made.steps] == done


def test_a_fingerprint_sees_names_modes_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a/x.py"
    file.write_bytes(b"1")
    file.chmod(0o644)
    seen = {fingerprint(tmp_path)}
    file.chmod(0o755)
    seen.add(fingerprint(tmp_path))
    file.write_bytes(b"2")
    seen.add(fingerprint(tmp_path))
    file.rename(tmp_path / "a/y.py")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 4
    assert fingerprint(tmp_path) in seen
