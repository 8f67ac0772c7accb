"""Calls in the files of the merge whose arguments do not fit the definition that they reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from escha_oscar.mapping import merges
from escha_oscar.model import Finding, SymbolKind
from escha_oscar.symbols.index import (
    Exports,
    Function,
    bound_names,
    class_named,
    dotted,
    is_triton_jit,
    mentions,
    method_named,
    statements,
)
from escha_oscar.symbols.resolve import Resolver
from escha_oscar.symbols.signatures import misfit, signature_of
from escha_oscar.verify.checks.scope import Scope
from escha_oscar.verify.codes import finding


@dataclass(frozen=True)
class Reached:
    """A definition that a call reaches, and in which form."""

    function: Function
    path: str
    bound: bool = False
    launch: bool = False


@dataclass
class _Place:
    """Where the walk stands: the file, the class around it and the functions around it, outermost first.

    ``speaks`` says whether this is code of the merge, where something else than the innermost function decides that.
    """

    path: str
    owner: ast.ClassDef | None = None
    functions: list[Function] = field(default_factory=list)
    speaks: bool | None = None


def check_calls(scope: Scope, resolver: Resolver) -> Iterator[Finding]:
    """Report each statically resolvable call that does not fit; calls that the base already makes do not count."""
    methods = _mapped_methods(scope)
    files = frozenset(scope.files)
    walker = _Walker(resolver, methods, files)
    for path in scope.files:
        found = list(walker.misfits(path))
        before = _Walker(Resolver(scope.base), {}, files).misfits(path) if found and scope.base is not None else ()
        known = {(text, why) for _, text, why, _ in before}
        for call, text, why, target in found:
            if (text, why) not in known:
                yield finding(
                    "call-signature",
                    f"call of {target.function.name} does not fit: {why}",
                    path=path,
                    line=call.lineno,
                    expected=f"{target.function.name}({ast.unparse(target.function.args)})"[:300],
                    found=text[:200],
                    hint=f"see {target.path}:{target.function.lineno}",
                )


def _mapped_methods(scope: Scope) -> dict[str, list[Reached]]:
    """Return the mapped methods by bare name: what ``pool.get_raw_key_buffer(...)`` can reach."""
    found: dict[str, list[Reached]] = {}
    for row in merges():
        path = scope.path_of(row)
        module = scope.index.module(path) if path else None
        for symbol in row.symbols if module is not None and path else ():
            owner_name, _, name = symbol.name.rpartition(".")
            owner = class_named(module, owner_name) if module and symbol.kind is SymbolKind.METHOD else None
            method = method_named(owner, name) if owner is not None else None
            if method is not None and path:
                found.setdefault(name, []).append(Reached(method, path, bound=True))
    return found


class _Walker:
    """Visits the calls of one file with the scopes around them."""

    def __init__(self, resolver: Resolver, methods: dict[str, list[Reached]], files: frozenset[str]) -> None:
        """Follow calls into ``files``; into other files only from functions that speak of int2."""
        self.resolver = resolver
        self.methods = methods
        self.files = files
        self._locals: dict[int, Exports] = {}
        self._int2: dict[int, bool] = {}
        self._held: dict[int, dict[str, list[tuple[Function, ast.expr]]]] = {}

    def misfits(self, path: str) -> Iterator[tuple[ast.Call, str, str, Reached]]:
        """Yield call, its text, the reason, and the definition."""
        module = self.resolver.index.module(path)
        for call, place in self._calls(module, _Place(path)) if module is not None else ():
            targets = self._targets(call, place)
            reasons = [(_why(call, target), target) for target in targets]
            if reasons and all(why is not None for why, _ in reasons):
                why, target = reasons[0]
                yield call, ast.unparse(call), str(why), target

    def _calls(self, node: ast.AST, place: _Place) -> Iterator[tuple[ast.Call, _Place]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, place
            if isinstance(child, ast.ClassDef):
                yield from self._calls(child, _Place(place.path, child, []))
            elif isinstance(child, Function):
                yield from self._calls(child, _Place(place.path, place.owner, [*place.functions, child]))
            else:
                yield from self._calls(child, place)

    def _targets(self, call: ast.Call, place: _Place) -> list[Reached]:
        func = call.func
        if isinstance(func, ast.Subscript) and isinstance(func.value, ast.Name):
            found = self._named(func.value.id, place)
            return [Reached(d.function, d.path, launch=True) for d in found if is_triton_jit(d.function)]
        if isinstance(func, ast.Name):
            return [d for d in self._named(func.id, place) if not is_triton_jit(d.function)]
        if isinstance(func, ast.Attribute) and dotted(func.value) == "self" and place.owner is not None:
            return self._on_self(func.attr, place)
        if isinstance(func, ast.Attribute) and not isinstance(func.value, ast.Call):
            return self.methods.get(func.attr, [])
        return []

    def _named(self, name: str, place: _Place) -> list[Reached]:
        for function in reversed(place.functions):
            if name in _parameters(function):
                return []
            node = self._bindings(function).names.get(name)
            if node is not None:
                return self._local(node, name, place)
        bound = self.resolver.index.exports(place.path).names.get(name)
        return self._local(bound, name, place) if bound is not None else []

    def _local(self, node: ast.stmt, name: str, place: _Place) -> list[Reached]:
        if not isinstance(node, ast.ImportFrom):
            return self._reach(place.path, node)
        source = self.resolver.module_file(self.resolver.absolute(place.path, node) or "")
        if source not in self.files and not self._speaks_of_int2(place):
            return []
        found = self.resolver.imported(place.path, node, name)
        return self._reach(found[0], found[1]) if found is not None else []

    def _speaks_of_int2(self, place: _Place) -> bool:
        """Return whether the innermost function is part of the merge by its own words."""
        function = place.functions[-1] if place.functions else None
        if place.speaks is not None or function is None:
            return bool(place.speaks)
        if id(function) not in self._int2:
            self._int2[id(function)] = "int2" in function.name or mentions(function, "int2")
        return self._int2[id(function)]

    def _reach(self, path: str, node: ast.stmt) -> list[Reached]:
        if isinstance(node, Function):
            return [Reached(node, path)]
        if isinstance(node, ast.ClassDef):
            return self._constructor(path, node)
        return []

    def _constructor(self, path: str, owner: ast.ClassDef, depth: int = 5) -> list[Reached]:
        if owner.decorator_list or owner.keywords or method_named(owner, "__new__") is not None:
            return []
        init = method_named(owner, "__init__")
        if init is not None:
            return [Reached(init, path, bound=True)]
        base = owner.bases[0] if owner.bases and depth else None
        found = self.resolver.binding(path, base.id) if isinstance(base, ast.Name) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            return self._constructor(found[0], found[1], depth - 1)
        return []

    def _on_self(self, name: str, place: _Place) -> list[Reached]:
        assert place.owner is not None
        method = method_named(place.owner, name)
        if method is not None:
            return [Reached(method, place.path, bound=True)]
        found: list[Reached] = []
        for function, value in self._assigned(place.owner).get(name, []):
            held = _callable_name(value)
            reached = self._held_by(held, place, function) if held else []
            if not reached:
                return []
            found.extend(reached)
        return found

    def _held_by(self, name: str, place: _Place, function: Function) -> list[Reached]:
        """Return what ``name`` means in the method that stores it."""
        return self._named(name, _Place(place.path, place.owner, [function], self._speaks_of_int2(place)))

    def _assigned(self, owner: ast.ClassDef) -> dict[str, list[tuple[Function, ast.expr]]]:
        """Return what the methods of a class assign to attributes of self."""
        if id(owner) not in self._held:
            found: dict[str, list[tuple[Function, ast.expr]]] = {}
            for function in (n for n, _ in statements(owner.body) if isinstance(n, Function)):
                for attribute, value in _self_assignments(function):
                    found.setdefault(attribute, []).append((function, value))
            self._held[id(owner)] = found
        return self._held[id(owner)]

    def _bindings(self, function: Function) -> Exports:
        if id(function) not in self._locals:
            found = Exports()
            for node, _ in statements(function.body):
                for name in bound_names(node):
                    known = found.names.setdefault(name, node)
                    if known is not node and not isinstance(node, ast.ImportFrom):
                        found.names[name] = node
            self._locals[id(function)] = found
        return self._locals[id(function)]


def _why(call: ast.Call, target: Reached) -> str | None:
    signature = signature_of(target.function, bound=target.bound)
    return None if signature is None else misfit(call, signature, launch=target.launch)


def _parameters(function: Function) -> set[str]:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {a.arg for a in every if a is not None}


def _self_assignments(function: Function) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    yield target.attr, node.value


def _callable_name(value: ast.expr) -> str | None:
    """Return the name behind ``f`` or ``torch.compiler.disable(f)``."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and dotted(value.func).endswith(".disable"):
        value = value.args[0]
    return value.id if isinstance(value, ast.Name) else None
