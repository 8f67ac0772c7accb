"""The error tree: each error knows its exit code, its place, what was sought and found, and one next step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Process exit codes; the same on a terminal, in CI and in a service unit."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    TARGET = 3
    ANCHOR = 4
    SOURCE = 5
    ROLLED_BACK = 6
    RECOVERY_NEEDED = 7
    CANNOT_TELL = 8
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass
class EschaOscarError(Exception):
    """Base of all errors a user can meet; the CLI boundary alone prints it and exits.

    ``code`` is a stable kebab-case name, ``sought``/``found`` are short phrases, ``hint`` is one next command.
    """

    message: str
    path: str | None = None
    line: int | None = None
    sought: str | None = None
    found: str | None = None
    hint: str | None = None

    code: ClassVar[str] = "error"
    exit_code: ClassVar[ExitCode] = ExitCode.PROBLEMS

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.path and self.line else self.path
        return f"{place}: {self.message}" if place else self.message


class UsageError(EschaOscarError):
    """Bad option, bad combination of options, or an unusable configuration file."""

    code = "usage"
    exit_code = ExitCode.USAGE


class MissingExtraError(UsageError):
    """A command needs torch or triton and this environment has none."""

    code = "missing-extra"


class TargetError(EschaOscarError):
    """The tree to integrate into is missing, unsupported, ambiguous or changed by somebody else."""

    code = "target"
    exit_code = ExitCode.TARGET


class DriftError(TargetError):
    """A file differs from what was recorded or planned."""

    code = "drift"


class UnreadableError(TargetError):
    """What an integration recorded may not be read by this user."""

    code = "unreadable"
    exit_code = ExitCode.CANNOT_TELL


class LockedError(TargetError):
    """Another process holds the environment's lock."""

    code = "locked"


class AnchorError(EschaOscarError):
    """A structural anchor did not match exactly once; nothing was written."""

    code = "anchor"
    exit_code = ExitCode.ANCHOR


class SymbolError(AnchorError):
    """A mapped symbol is absent from its source or does not fit its callers."""

    code = "symbol"


class SourceError(EschaOscarError):
    """The source tree could not be had, or its content failed a hash."""

    code = "source"
    exit_code = ExitCode.SOURCE


class ApplyError(EschaOscarError):
    """Writing failed; the tree was rolled back to its former bytes."""

    code = "rolled-back"
    exit_code = ExitCode.ROLLED_BACK


class RecoveryError(EschaOscarError):
    """An interrupted run left a journal that has to be resolved first."""

    code = "recovery-needed"
    exit_code = ExitCode.RECOVERY_NEEDED


class StoppedError(EschaOscarError):
    """SIGINT came; what was written is put back."""

    code = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class TerminatedError(StoppedError):
    """SIGTERM came; what was written is put back."""

    code = "terminated"
    exit_code = ExitCode.TERMINATED


class HungUpError(StoppedError):
    """SIGHUP came; what was written is put back."""

    code = "hung-up"
    exit_code = ExitCode.HUNG_UP
