"""Every finding that verification can make: its stable code, its level and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from escha_oscar.model import Finding, Severity


class Level(str, Enum):
    """The levels of verification, cheapest first."""

    FILES = "files"
    STATIC = "static"
    IMPORTS = "imports"
    NUMERICS = "numerics"
    LOG = "log"
    LIVE = "live"


@dataclass(frozen=True)
class Code:
    """One kind of finding; ``cannot_tell`` marks those that leave the question open (exit 8 where nothing failed)."""

    name: str
    level: Level
    severity: Severity
    meaning: str
    cannot_tell: bool = False


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def _codes(level: Level, *rows: tuple[str, Severity, str]) -> tuple[Code, ...]:
    return tuple(Code(name, level, severity, meaning) for name, severity, meaning in rows)


def _open(level: Level, *rows: tuple[str, str]) -> tuple[Code, ...]:
    return tuple(Code(name, level, _WARNING, meaning, cannot_tell=True) for name, meaning in rows)


_FILES = (
    *_codes(
        Level.FILES,
        ("not-merged-yet", _ERROR, "Every mapped file has the bytes that the wheel's RECORD lists."),
        ("not-merged-any-more", _ERROR, "The wheel was installed anew since the integration."),
        ("file-edited", _ERROR, "A file of the integration was changed by somebody else."),
        ("file-restored", _ERROR, "A file of the integration has its original bytes again."),
        ("file-gone", _ERROR, "A file of the integration was deleted."),
        ("interrupted", _ERROR, "A run was cut off and has to be resolved first."),
        ("record-damaged", _ERROR, "The integration's record is damaged."),
        ("no-record", _INFO, "A merge by hand or by another tool: no hashes are recorded."),
        ("shadowed", _ERROR, "Another sglang comes first on the import path."),
        ("two-owners", _ERROR, "Two distributions own sglang/, so either can undo the other."),
        ("owner-unclear", _WARNING, "No installed distribution owns sglang/: a reinstall would not be noticed."),
        ("overlay", _INFO, "A shadow tree, and the wheel behind it is the one that it was made from."),
        ("overlay-stale", _ERROR, "The wheel behind a shadow tree was replaced since."),
        ("leftover", _WARNING, "A file of an older integration or patch run lies about."),
    ),
    *_open(
        Level.FILES,
        ("running", "Another process is changing the environment right now."),
        ("record-unreadable", "The integration's record may not be read by this user."),
    ),
)

_STATIC = _codes(
    Level.STATIC,
    ("not-merged", _ERROR, "None of the mapped symbols is there: the tree is a stock one."),
    ("file-missing", _ERROR, "A file of the mapping is not in the tree."),
    ("file-empty", _ERROR, "A merged, copied or placed file has no code."),
    ("syntax", _ERROR, "A file cannot be parsed or compiled."),
    ("symbol-missing", _ERROR, "A mapped symbol has no definition of the right kind in the right scope."),
    ("symbol-kind", _ERROR, "A mapped symbol is defined, but as something else or in another scope."),
    ("dtype-branch-missing", _ERROR, "Nothing chooses the string dtype int2 in the model runner."),
    ("pool-int2-missing", _ERROR, "The KV pool has no int2 allocation, store or rotation path."),
    ("backend-int2-missing", _ERROR, "The triton backend does not dispatch extend or decode on int2."),
    ("head-tile-clamp-missing", _ERROR, "A grouped decode launcher can let one head tile cover two KV heads."),
    ("constexpr-bound-twice", _ERROR, "A Triton kernel binds one constexpr twice and does not compile."),
    ("fp16-not-accepted", _ERROR, "The clip launcher asserts a dtype set without float16, which Escha runs."),
    ("cell-size", _ERROR, "The bytes per token are computed from the element size of a string dtype."),
    ("cell-size-without-scales", _WARNING, "The int2 bytes per token leave out scales and zeros."),
    ("duplicate-definition", _ERROR, "One name is defined twice in the same block; the second one wins in silence."),
    ("undefined-name", _ERROR, "A name inside a function is defined nowhere; it fails only when it runs."),
    ("unresolved-import", _ERROR, "An import names a module or symbol that the tree does not have."),
    ("call-signature", _ERROR, "A call does not fit the definition that it reaches."),
    ("never-constructed", _ERROR, "A class that carries the merge is constructed nowhere, so it never runs."),
    ("sibling-never-constructed", _WARNING, "A patched class outside the mapping is constructed nowhere."),
    ("hybrid-forwarding", _ERROR, "HybridLinearKVPool does not forward something that the int2 path asks for."),
    ("hybrid-branch", _ERROR, "The hybrid branch of the pool choice does not select the int2 pool."),
    ("pool-arguments", _ERROR, "A pool construction that can be int2 is not given the group size."),
    ("packed-head-dim", _ERROR, "v_head_dim is read from the width of a packed buffer (a quarter of the head)."),
    ("escha-registration", _ERROR, "The escha entries of the quantization registry are gone."),
    ("no-base", _INFO, "The tree before the merge cannot be read, so faults that it had count too."),
)

_IMPORTS = (
    *_codes(
        Level.IMPORTS,
        ("imports-ok", _INFO, "The merge imports and its environment configures it."),
        ("imports-incomplete", _ERROR, "ImportError inside sglang: something of the merge is missing."),
        ("imports-broken", _ERROR, "Importing the merge raises something else."),
        ("imports-elsewhere", _ERROR, "The interpreter imports another sglang than the one that is verified."),
        ("not-configured", _WARNING, "Merged, but the rotation variables are unset; an error with --configured."),
        ("misconfigured", _ERROR, "One rotation variable is unset, or a variable has an unusable value."),
        ("kv-shared-layers", _WARNING, "The model has layers that share another layer's KV; int2 refuses those."),
        ("rotation-file", _ERROR, "A rotation file is absent, unreadable, of another head size, or lacks a layer."),
    ),
    *_open(
        Level.IMPORTS,
        ("imports-cannot-tell", "No driver, a missing dependency, or no answer: the merge itself is not judged."),
    ),
)

_NUMERICS = (
    *_codes(
        Level.NUMERICS,
        ("numerics-ok", _INFO, "Store, dequantise, decode and extend agree with torch, head by head."),
        ("numerics-wrong", _ERROR, "A kernel's result differs from torch; the heads are named."),
        ("numerics-failed", _ERROR, "A kernel raised."),
    ),
    *_open(
        Level.NUMERICS,
        ("numerics-no-kernels", "The tree has no INT2 kernels to run: neither placed ones nor its own."),
        ("numerics-cannot-tell", "No torch, no triton, or no answer from the interpreter."),
    ),
)

_LOG = _codes(
    Level.LOG,
    ("log-int2-in-effect", _INFO, "A pool has exactly the size of int2; says in which form it was counted."),
    ("log-int2-off", _ERROR, "A pool has the dtype or the size of another format: int2 was dropped."),
    ("log-int2-not-asked", _ERROR, "The server was started with another --kv-cache-dtype."),
    ("log-size-mismatch", _ERROR, "A pool's size fits no format for this config, tp and group size."),
    ("log-arguments-differ", _ERROR, "The log shows another tp or group size than the command line."),
    ("log-draft-pool", _INFO, "A draft model has a pool of its own; it is kept apart."),
    ("log-out-of-memory", _ERROR, "The server ran out of device memory, at the start or on the first long prefill."),
    ("log-invalid-launch", _ERROR, "A kernel launch was refused (mixed chunks with INT2 on the MoE wheel)."),
    ("log-prefill-graph", _WARNING, "A prefill graph is captured next to int2; too much for a 12 GB card."),
    ("log-mamba-slots", _WARNING, "The pool holds more prefill chunks than there are mamba slots."),
    ("log-overlap-disabled", _WARNING, "The overlap schedule is off, as mamba no_buffer makes it."),
    ("log-mixed-chunk", _WARNING, "Mixed chunks with extra_buffer on a hybrid model restore stale state."),
    ("log-window-ignored", _WARNING, "Variables of the mixed-precision window are set and have no effect."),
    ("log-concurrency-clamped", _WARNING, "Fewer requests run at once than were asked for."),
    ("log-pool-capped", _WARNING, "The pool is capped, or smaller than one context."),
) + _open(
    Level.LOG,
    ("log-no-allocation", "The log has no pool allocation line."),
    ("log-cannot-compare", "A pool's size does not tell int2 from another format, or nothing to compare is known."),
)

_LIVE = _codes(
    Level.LIVE,
    ("live-in-effect", _INFO, "The server runs int2 and its pool has exactly that size."),
    ("live-int2-off", _ERROR, "The server runs with another kv_cache_dtype."),
    ("live-group-size", _ERROR, "The server runs with another group size than --group-size."),
    ("live-size", _ERROR, "The pool's size is not that of int2 for this config."),
    ("live-pool-below-context", _WARNING, "The pool holds fewer tokens than one context."),
    ("live-completion", _ERROR, "One short completion failed."),
    ("live-degenerate", _ERROR, "The completion repeats one character, a sign of NaN in attention."),
) + _open(
    Level.LIVE,
    ("live-unreachable", "The server cannot be asked: refused, too slow, or no JSON."),
    ("live-cannot-compare", "The server or the command line does not say enough to judge the pool's size."),
)

CODES: dict[str, Code] = {code.name: code for code in (*_FILES, *_STATIC, *_IMPORTS, *_NUMERICS, *_LOG, *_LIVE)}


def finding(
    name: str,
    message: str,
    *,
    path: str | None = None,
    line: int | None = None,
    expected: str | None = None,
    found: str | None = None,
    hint: str | None = None,
    severity: Severity | None = None,
) -> Finding:
    """Return a finding of a registered code; the code decides the severity unless one is given.

    Raises KeyError for a code that is not registered.
    """
    code = CODES[name]
    return Finding(severity or code.severity, name, message, path, line, expected, found, hint)
