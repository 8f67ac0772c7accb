"""Proof that a merge stayed inside its declared blast radius: every other definition keeps its bytes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from escha_oscar.errors import AnchorError

#: Names of ``TOUCHES`` that are not definitions: new import lines, definitions that were not there before, and a
#: module-level list that gets ``int2`` as its last choice.
IMPORTS, ADDED, CHOICE = "<imports>", "<added>", "<choice>"
_LOOSE = "<loose>"


def check_blast_radius(path: str, before: bytes, after: bytes, touches: Iterable[str]) -> None:
    """Raise AnchorError where something outside ``touches`` changed, vanished or appeared, or a loose line was lost."""
    allowed = set(touches)
    old, new = units(before), units(after)
    for name, lines in old.items():
        if name in allowed or new.get(name) == lines:
            continue
        if CHOICE in allowed and _gained_choice(lines, new.get(name, [])):
            continue
        if not name.endswith(_LOOSE) or not _only_added(lines, new.get(name, []), name, allowed):
            raise _outside(path, name, "changed" if name in new else "removed")
    for name in (name for name in new if name not in old):
        declared = ADDED in allowed or name in allowed or name.partition(".")[0] in allowed
        if not declared or name.endswith("'"):
            raise _outside(path, name, "added")


def _outside(path: str, name: str, what: str) -> AnchorError:
    return AnchorError(
        f"the merge {what} {name}, outside its declared edits",
        path=path,
        sought=f"{name} with unchanged bytes",
        found=what,
        hint="escha-oscar integrate --dry-run --diff",
    )


def _gained_choice(old: Sequence[bytes], new: Sequence[bytes]) -> bool:
    before, after = _listed(old), _listed(new)
    return before is not None and after == [*before, "int2"]


def _listed(lines: Sequence[bytes]) -> list[object] | None:
    """Return the elements of a constant that is a list of literals, or None for anything else."""
    try:
        node = ast.parse(b"".join(lines)).body[0]
        value = ast.literal_eval(node.value) if isinstance(node, ast.Assign) else None
    except (SyntaxError, ValueError, IndexError):
        return None
    return value if isinstance(value, list) else None


def _only_added(old: Sequence[bytes], new: Sequence[bytes], name: str, allowed: set[str]) -> bool:
    """Return whether ``old`` lines all stand in ``new`` in their order, and every further line may be there."""
    owner = name.removesuffix(_LOOSE).rstrip(".")
    if owner in allowed:
        return True
    rest = iter(new)
    extra: list[bytes] = []
    for line in old:
        for candidate in rest:
            if candidate == line:
                break
            extra.append(candidate)
        else:
            return False
    extra += list(rest)
    return all(_harmless(line, allowed) for line in extra)


def _harmless(line: bytes, allowed: set[str]) -> bool:
    text = line.strip()
    is_import = text.startswith((b"import ", b"from "))
    return not text or text.startswith(b"#") or (is_import and IMPORTS in allowed)


def units(data: bytes) -> dict[str, list[bytes]]:
    """Return the lines of each function, method and module constant, and of each scope's loose statements, by name.

    Repeated names are numbered; together the units hold every line of the file, the last one with its newline even
    where the file has none: what is added below it needs one.
    """
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\n", b"\r")):
        lines[-1] += b"\r\n" if lines[0].endswith(b"\r\n") else b"\n"
    spans: dict[str, list[bytes]] = {}
    owner_of = [_LOOSE] * len(lines)
    for name, first, last in _spans(ast.parse(data).body, ""):
        while name in spans:
            name += "'"
        spans[name] = []
        owner_of[first - 1 : last] = [name] * (last - first + 1)
    for line, name in zip(lines, owner_of, strict=True):
        spans.setdefault(name, []).append(line)
    return spans


def _spans(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield outer scopes before inner ones, so that the innermost owner of a line is assigned last."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            assert node.end_lineno is not None
            if isinstance(node, ast.ClassDef):
                yield f"{prefix}{node.name}.{_LOOSE}", first, node.end_lineno
                yield from _spans(node.body, f"{prefix}{node.name}.")
            else:
                yield f"{prefix}{node.name}", first, node.end_lineno
        elif isinstance(node, ast.Assign) and not prefix and isinstance(node.targets[0], ast.Name):
            assert node.end_lineno is not None
            yield node.targets[0].id, node.lineno, node.end_lineno
