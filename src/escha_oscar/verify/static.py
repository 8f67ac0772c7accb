"""Level static: is the merge complete and consistent, judged from the text of the tree alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from escha_oscar.model import Finding, Report, Severity
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.tree import Tree
from escha_oscar.verify.checks import backends, pools
from escha_oscar.verify.checks.calls import check_calls
from escha_oscar.verify.checks.construction import check_constructed, python_files
from escha_oscar.verify.checks.imports_resolve import check_imports
from escha_oscar.verify.checks.names import check_duplicates, check_undefined
from escha_oscar.verify.checks.scope import Scope, make_scope
from escha_oscar.verify.checks.symbols import Presence, check_files, check_symbols, presences
from escha_oscar.verify.codes import finding

Check = Callable[[Scope, Resolver], Iterable[Finding]]

#: Cheapest first. A tree that fails in syntax or is not merged at all stops before this table.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("files", lambda scope, _: check_files(scope)),
    ("duplicates", lambda scope, _: check_duplicates(scope)),
    ("constexprs", lambda scope, _: backends.check_constexprs(scope)),
    ("fp16", lambda scope, _: backends.check_fp16(scope)),
    ("dtype branch", lambda scope, _: backends.check_dtype_branch(scope)),
    ("cell size", lambda scope, _: backends.check_cell_size(scope)),
    ("backend", lambda scope, _: backends.check_backend(scope)),
    ("head tile", lambda scope, _: backends.check_head_tile(scope)),
    ("pool", lambda scope, _: pools.check_pool(scope)),
    ("hybrid", lambda scope, _: pools.check_hybrid(scope)),
    ("constructions", lambda scope, _: pools.check_constructions(scope)),
    ("head dim", lambda scope, _: pools.check_head_dim(scope)),
    ("registrations", lambda scope, _: backends.check_registrations(scope)),
    ("undefined names", lambda scope, _: check_undefined(scope)),
    ("imports", check_imports),
    ("calls", check_calls),
    ("constructed", lambda scope, _: check_constructed(scope)),
)


def check_tree(
    tree: Tree,
    *,
    source_kind: str | None = None,
    changed: Iterable[str] | None = None,
    base: Tree | None = None,
    escha: bool = False,
) -> Report:
    """Return every static finding about ``tree``, which may be on disk or only planned.

    ``source_kind`` is ``pr``, ``bundled`` or None (judge by what is there); ``changed`` are the paths that the merge
    wrote; ``base`` is the tree before it, whose own faults do not count; ``escha`` says that the runtime is an Escha
    build, whose registrations must still be there.
    """
    scope = make_scope(tree, source_kind=source_kind, changed=changed, base=base, escha=escha)
    resolver = Resolver(scope.index, exact=scope.files)
    broken = [*_check_syntax(scope), *_check_empty(scope)]
    states = presences(scope, resolver)
    if not broken and not any(state.present for state in states):
        return Report((_not_merged(scope),), checks=1)
    found = [*broken, *check_symbols(states)]
    for _, check in CHECKS:
        found.extend(check(scope, resolver))
    skipped = ("constructed",) if python_files(tree) is None else ()
    return Report(tuple(_ordered(found)), checks=len(CHECKS) + 3 - len(skipped), skipped=skipped)


def symbol_states(tree: Tree) -> list[Presence]:
    """Return where each mapped symbol of an existing, parsable file stands in ``tree``."""
    scope = make_scope(tree, source_kind=None, changed=None, base=None, escha=False)
    return presences(scope, Resolver(scope.index))


def _ordered(found: Iterable[Finding]) -> list[Finding]:
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    unique = dict.fromkeys(found)
    return sorted(unique, key=lambda f: (rank[f.severity], f.path or "", f.line or 0, f.code))


def _check_syntax(scope: Scope) -> Iterator[Finding]:
    for path in scope.files:
        failure = scope.index.failure(path)
        line, reason = (failure.line, failure.reason) if failure is not None else _compile(scope, path)
        if reason:
            yield finding(
                "syntax",
                f"does not compile: {reason}",
                path=path,
                line=line,
                expected="Python that compiles",
                found=reason,
                hint="escha-oscar revert",
            )


def _compile(scope: Scope, path: str) -> tuple[int | None, str]:
    """Compile one module: some faults (a return outside a function) only show there."""
    module = scope.index.module(path)
    try:
        if module is not None:
            compile(module, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno, error.msg
    except (ValueError, RecursionError, TypeError) as error:
        return None, str(error)
    return None, ""


def _check_empty(scope: Scope) -> Iterator[Finding]:
    for path in scope.files:
        module = scope.index.module(path)
        if module is not None and not module.body and not path.endswith("/__init__.py"):
            yield finding(
                "file-empty",
                "the file has no code",
                path=path,
                expected="the merged module",
                found=f"{len(scope.index.read(path) or b'')} bytes without a statement",
                hint="escha-oscar revert && escha-oscar integrate",
            )


def _not_merged(scope: Scope) -> Finding:
    there = scope.tree.exists("sglang")
    return finding(
        "not-merged",
        "not merged: none of the mapped symbols is in the tree",
        path="sglang",
        expected="the symbols of `escha-oscar mapping`",
        found="a tree without OSCAR INT2" if there else "no sglang/ folder here",
        hint="escha-oscar integrate --dry-run",
    )
