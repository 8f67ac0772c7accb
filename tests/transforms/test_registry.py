"""The folder of transforms, their registry, their targets, the mapping and their tests are the same set."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from escha_oscar import transforms
from escha_oscar.mapping import merges, row_for
from escha_oscar.transforms import TRANSFORMS

SOURCE = Path(transforms.__file__).parent
TESTS = Path(__file__).parent
NAMES = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("_")}
#: Files that the pull request changes elsewhere or not at all: the cell size of newer bases, and the chunk cap.
NO_ROW = {"pool_configurator", "scheduler", "schedule_policy"}
#: What a pure function from module to module may import.
ALLOWED = {"__future__", "collections", "dataclasses", "libcst", "re", "textwrap", "types", "typing", "escha_oscar"}


def name_of(transform: ModuleType) -> str:
    return transform.__name__.rpartition(".")[2]


def test_the_registry_lists_the_folder() -> None:
    assert sorted(map(name_of, TRANSFORMS)) == sorted(NAMES)


def test_every_transform_has_a_test_of_its_name() -> None:
    assert {f"test_{name}" for name in NAMES} <= {path.stem for path in TESTS.glob("test_*.py")}


def test_every_merged_row_has_one_transform() -> None:
    rows = {row.wheel_paths[0] for row in merges()}
    assert sorted(t.TARGET for t in TRANSFORMS if name_of(t) not in NO_ROW) == sorted(rows)


def test_the_environment_registry_is_merged_last() -> None:
    assert name_of(TRANSFORMS[-1]) == "environ"


@pytest.mark.parametrize("transform", TRANSFORMS, ids=name_of)
def test_a_transform_is_named_for_its_target_and_declares_its_radius(transform: ModuleType) -> None:
    assert Path(transform.TARGET).stem.endswith(name_of(transform))
    assert transform.TOUCHES
    assert len(set(transform.TOUCHES)) == len(transform.TOUCHES)
    row = row_for(transform.TARGET)
    assert row is None or row.wheel_paths[0] == transform.TARGET


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.stem)
def test_transforms_import_nothing_that_does_anything(path: Path) -> None:
    nodes = [n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in nodes:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        assert {module.split(".")[0] for module in modules} <= ALLOWED
