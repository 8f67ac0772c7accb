"""The house rules: who may import whom and what, no cycles, and how long a function and a file may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import escha_oscar

ROOT = Path(escha_oscar.__file__).parent
#: Files that are data, or laid out for another tree.
TABLES = ("donor/", "kernels/", "mapping/table.py")
#: What each room may import of the package besides itself. Rooms stand in the order of the data flow.
ROOMS = {
    "errors": set[str](),
    "model": set[str](),
    "progress": set[str](),
    "tree": {"errors", "model"},
    "mapping": {"model"},
    "source": {"errors", "mapping", "model", "progress", "tree"},
    "target": {"errors", "mapping", "model", "tree"},
    "symbols": {"tree"},
    "transforms": {"errors", "mapping", "model"},
    "merge": {"errors", "mapping", "model", "progress", "source", "symbols", "transforms", "tree"},
    "disk": {"errors", "model", "progress", "tree"},
    "installed": {"disk", "errors", "model", "progress", "target", "tree"},
    "serving": {"errors"},
    "kernels": set[str](),
    "rotations": {"errors", "kernels", "progress", "serving"},
    "verify": {"disk", "errors", "installed", "mapping", "model", "serving", "symbols", "target", "tree"},
    "integrate": {"errors", "installed", "merge", "model", "progress", "target", "tree", "verify"},
}
EVERY_ROOM = {*ROOMS, "demo", "cli"}
#: Packages of others, and the rooms that know them.
PACKAGES = {
    "click": {"cli"},
    "rich": {"cli"},
    "libcst": {"merge", "transforms"},
    "git": {"source"},
    "packaging": {"target", "mapping"},
    "pyflakes": {"verify"},
    "torch": {"kernels", "rotations", "verify", "cli"},  # cli: the name of a type alone
    "triton": {"kernels", "verify"},
}


def modules() -> dict[str, Path]:
    """Return every module of the package but the bundled tree, by its dotted name below the package."""
    files = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")))
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path
        for path in files
        if path.parts[0] not in ("donor", "__init__.py", "__main__.py")
    }


MODULES = modules()


def room_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the dotted names that a module imports, late ones included, relative ones made absolute."""
    path = MODULES[module]
    package = ["escha_oscar", *path.relative_to(ROOT).parent.parts]
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def own_imports(module: str) -> Iterator[str]:
    """Yield the modules of the package that ``module`` imports."""
    for name in imports_of(module):
        below = name.removeprefix("escha_oscar.")
        if below in MODULES and name != below and below != module:
            yield below


def test_every_module_lies_in_a_known_room() -> None:
    assert {room_of(module) for module in MODULES} == EVERY_ROOM


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_upstream(room: str) -> None:
    others = {room_of(seen) for module in MODULES if room_of(module) == room for seen in own_imports(module)} - {room}
    assert others <= ROOMS[room]


def test_no_module_imports_itself_over_others() -> None:
    order = TopologicalSorter({module: set(own_imports(module)) - {room_of(module)} for module in MODULES})
    order.prepare()  # raises CycleError, which names the circle


def test_names_with_an_underscore_stay_in_their_room() -> None:
    strangers = [
        f"{module} imports {seen}"
        for module in MODULES
        for seen in own_imports(module)
        if "._" in f".{seen}" and room_of(seen) != room_of(module)
    ]
    assert strangers == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_known_only_where_it_is_needed(package: str) -> None:
    users = {
        room_of(module) for module in MODULES if any(name.partition(".")[0] == package for name in imports_of(module))
    }
    assert users
    assert users <= PACKAGES[package]


def test_no_other_package_is_imported() -> None:
    first = {name.partition(".")[0] for module in MODULES for name in imports_of(module)}
    assert first - set(sys.stdlib_module_names) - {"escha_oscar", *PACKAGES} == set()


def functions() -> Iterator[tuple[str, int]]:
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}.{node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_no_function_is_too_long() -> None:
    lengths = [(name, count) for name, count in functions() if room_of(name) != "kernels"]
    assert len(lengths) > 500
    assert [(name, count) for name, count in lengths if count > 60] == []


def test_no_file_is_too_long() -> None:
    counts = {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in MODULES.values()}
    assert {name: n for name, n in counts.items() if n > 450 and not name.startswith(TABLES)} == {}
