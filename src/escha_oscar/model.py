"""Frozen records that travel through the tool: what is mapped, what is planned, what was found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Action(str, Enum):
    """What happens to one file that the pull request touches."""

    COPY = "copy"
    MERGE = "merge"
    SKIP = "skip"


class Origin(str, Enum):
    """Where a symbol is written: in the pull request, or by us because no source has it."""

    PR = "pr"
    GLUE = "glue"


class SymbolKind(str, Enum):
    """The kind of definition that must stand in the merged file."""

    FUNCTION = "function"
    TRITON_KERNEL = "triton-kernel"
    CLASS = "class"
    METHOD = "method"
    ENV_FIELD = "env-field"
    DATACLASS_FIELD = "dataclass-field"
    CHOICE = "choice"
    FLAG = "flag"


@dataclass(frozen=True)
class Symbol:
    """One definition that has to arrive.

    ``name`` is dotted for methods and fields (``MHATokenToKVPool.get_oscar_rotation``). A *public* symbol is required
    whatever the source; an internal one (``public=False``) is the pull request's own helper and is required only
    where the pull request is the source.
    """

    name: str
    kind: SymbolKind
    origin: Origin = Origin.PR
    public: bool = True


@dataclass(frozen=True)
class Row:
    """One file of the pull request: its path there, the places it can have in a wheel, and what to do with it.

    Paths are relative to site-packages and begin with ``sglang/``. ``pr_paths`` and ``wheel_paths`` are tried in order.
    """

    action: Action
    pr_paths: tuple[str, ...]
    wheel_paths: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    reason: str = ""
    in_article: bool = True


@dataclass(frozen=True)
class Pin:
    """The one commit that the mapping was written for; validated on construction."""

    repository: str
    pull_request: int
    commit: str
    prefix: str = "python"

    def __post_init__(self) -> None:
        """Refuse anything but a full 40-hex commit id: a branch or a short id can move."""
        if len(self.commit) != 40 or set(self.commit) - set("0123456789abcdef"):
            raise ValueError(f"a pin needs a full 40-hex commit id, got {self.commit!r}")


@dataclass(frozen=True)
class SourceId:
    """Which tree symbols were taken from: ``kind`` is ``pr`` or ``bundled``."""

    kind: str
    description: str
    commit: str | None = None
    repository: str | None = None


@dataclass(frozen=True)
class Target:
    """An installed runtime, found without importing it.

    ``site_packages`` is resolved; ``dist_info`` is the owner's metadata directory; ``family`` is a name of
    ``mapping.wheels`` (``escha-moe``, ``escha-dense``, ``upstream``) or ``unknown``.
    """

    site_packages: Path
    distribution: str
    version: str
    dist_info: Path
    family: str
    warnings: tuple[str, ...] = ()


class Change(str, Enum):
    """How one file of the target comes to its new content."""

    MERGE = "merge"
    COPY = "copy"
    PLACE = "place"
    CREATE = "create"
    RECORD = "record"


@dataclass(frozen=True)
class PlannedFile:
    """One file to write: ``before`` is None where the file does not exist yet."""

    path: str
    change: Change
    before: bytes | None
    after: bytes

    @property
    def before_sha256(self) -> str | None:
        """Return the digest of the bytes that must be on disk before the write, or None for an absent file."""
        return None if self.before is None else sha256(self.before)

    @property
    def after_sha256(self) -> str:
        """Return the digest of the bytes to write."""
        return sha256(self.after)


@dataclass(frozen=True)
class SymbolUse:
    """Where one symbol of the merged tree came from; ``why`` is set where the first choice did not serve."""

    path: str
    symbol: str
    taken_from: str
    why: str = ""


@dataclass(frozen=True)
class Repair:
    """A named defect that the source had and that was mended."""

    name: str
    path: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """Everything an integration will do, decided in memory; ``files`` holds only files whose bytes change."""

    target: Target
    source: SourceId
    kernels: str
    files: tuple[PlannedFile, ...]
    symbols: tuple[SymbolUse, ...] = ()
    repairs: tuple[Repair, ...] = ()
    verbatim: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def after(self, path: str) -> bytes | None:
        """Return the planned bytes of ``path``, or None where the plan does not touch it."""
        return next((f.after for f in self.files if f.path == path), None)


class Severity(str, Enum):
    """How much a finding weighs: an error fails the run, a warning is printed, info is a fact."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One result of a check: a stable kebab-case ``code``, a place, expected against found, one next command."""

    severity: Severity
    code: str
    message: str
    path: str | None = None
    line: int | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Report:
    """The findings of one verification and how many checks ran."""

    findings: tuple[Finding, ...] = ()
    checks: int = 0
    skipped: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Return whether no finding is an error."""
        return not any(f.severity is Severity.ERROR for f in self.findings)


def sha256(data: bytes) -> str:
    """Return the hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Graft:
    """The text of one definition to transplant, dedented."""

    name: str
    text: str
    taken_from: str


@dataclass(frozen=True)
class Chosen:
    """What one merged file receives: definitions by name, further helpers, import lines, and the report of it."""

    grafts: Mapping[str, Graft]
    helpers: tuple[Graft, ...] = ()
    imports: tuple[str, ...] = ()
    uses: tuple[SymbolUse, ...] = ()
    repairs: tuple[Repair, ...] = ()

    def text(self, name: str) -> str:
        """Return the text of one graft."""
        return self.grafts[name].text

    def members(self, owner: str) -> list[Graft]:
        """Return the grafts that belong into class ``owner``."""
        return [g for name, g in self.grafts.items() if name.startswith(f"{owner}.")]


@dataclass(frozen=True)
class Context:
    """What a transform is given besides the module.

    ``path`` is the file being merged; ``chosen`` holds the text of every definition that arrives there.

    ``extra_env`` are environment fields that transplanted code reads (name -> default expression);
    ``extend_takes_scales`` says whether the base's extend kernel has ``k_scale`` and ``v_scale``.
    """

    path: str
    chosen: Chosen = field(default_factory=lambda: Chosen({}))
    extra_env: Mapping[str, str] = field(default_factory=dict)
    extend_takes_scales: bool = True
