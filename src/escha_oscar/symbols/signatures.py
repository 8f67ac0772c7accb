"""Whether one call fits one definition, as far as the text can tell."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from escha_oscar.symbols.index import Function, dotted

#: Options that Triton takes at a launch beside the kernel's own parameters.
LAUNCH_OPTIONS = {
    "num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup", "launch_pdl", "launch_cooperative_grid",
    "waves_per_eu", "matrix_instr_nonkdim", "kpack", "enable_fp_fusion", "extern_libs", "debug",
}  # fmt: skip
#: Decorators that leave the signature as it is written.
_TRANSPARENT = {
    "staticmethod", "classmethod", "abstractmethod", "no_grad", "inference_mode", "range", "compile", "lru_cache",
    "cache", "jit", "disable", "override", "final",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """Parameter names of a definition; ``required`` have no default, ``open_*`` say whether ``*args``/``**kwargs``."""

    positional: tuple[str, ...]
    positional_only: frozenset[str]
    keyword_only: frozenset[str]
    required: frozenset[str]
    open_args: bool
    open_kwargs: bool


def signature_of(function: Function, *, bound: bool = False) -> Signature | None:
    """Return the signature as a caller sees it, or None where a decorator may have changed it.

    ``bound`` drops the first parameter (``self``), except for static methods.
    """
    names = [dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in function.decorator_list]
    if any(name not in _TRANSPARENT for name in names):
        return None
    args = function.args
    every = [a.arg for a in (*args.posonlyargs, *args.args)]
    skip = 1 if bound and "staticmethod" not in names and every else 0
    without_default = every[: len(every) - len(args.defaults)]
    needed = [a.arg for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    return Signature(
        tuple(every[skip:]),
        frozenset(a.arg for a in args.posonlyargs),
        frozenset(a.arg for a in args.kwonlyargs),
        frozenset([*without_default[skip:], *needed]),
        args.vararg is not None,
        args.kwarg is not None,
    )


def misfit(call: ast.Call, signature: Signature, *, launch: bool = False) -> str | None:
    """Return why ``call`` does not fit, or None where it fits or the text cannot tell."""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    unpacked = any(word.arg is None for word in call.keywords)
    given = [word.arg for word in call.keywords if word.arg is not None]
    if launch:
        given = [name for name in given if name not in LAUNCH_OPTIONS]
    count, room = len(call.args), len(signature.positional)
    if not starred and count > room and not signature.open_args:
        return f"{count} positional arguments where {room} are taken"
    known = (set(signature.positional) - signature.positional_only) | signature.keyword_only
    unknown = [name for name in given if name not in known]
    if unknown and not signature.open_kwargs:
        return f"unknown keyword {unknown[0]}"
    filled = set(signature.positional[:count])
    twice = [name for name in given if name in filled] if not starred else []
    if twice:
        return f"{twice[0]} is given twice"
    missing = signature.required - filled - set(given)
    if missing and not starred and not unpacked:
        return f"missing {', '.join(sorted(missing))}"
    return None
