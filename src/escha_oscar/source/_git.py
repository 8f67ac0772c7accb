"""Running git through GitPython with an environment of our own: no user config, no hooks, no prompts, limits kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from escha_oscar.errors import SourceError

BUNDLED_HINT = "escha-oscar integrate --source bundled (needs neither git nor a network)"
_DROPPED = ("SSH_ASKPASS", "XDG_CONFIG_HOME")
_POLL_SECONDS = 0.25
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
)


@dataclass(frozen=True)
class Result:
    """How one git command ended; ``why`` says so when a limit stopped it."""

    status: int
    stdout: bytes
    stderr: str
    why: str = ""

    @property
    def reason(self) -> str:
        """Return what git complained of, or the limit that stopped it."""
        words = [line for line in self.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        fatal = [line.strip() for line in words if line.startswith(("fatal:", "error:", "remote: fatal:"))]
        return self.why or "; ".join(fatal or words[-1:] or [f"git ended with status {self.status}"])[:500]


@dataclass(frozen=True)
class Limits:
    """What a running command may use: seconds, and what ``check`` says about it (a reason to stop, or '')."""

    seconds: float
    check: Callable[[], str] = lambda: ""


def run(repository: Path, args: Sequence[str], *, protocol: str, limits: Limits) -> Result:
    """Run ``git --git-dir=repository ARGS`` over the one allowed ``protocol`` and return how it ended.

    Raises SourceError only where git cannot be started.
    """
    with start(repository, args, protocol=protocol) as process:
        deadline = time.monotonic() + limits.seconds
        while True:
            try:
                stdout, stderr = process.communicate(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                why = limits.check() or ("" if time.monotonic() < deadline else f"no end after {limits.seconds:.0f} s")
                if why:
                    return Result(-1, b"", "", why)
                continue
            return Result(process.returncode, stdout, stderr.decode("utf-8", "replace"))


@contextlib.contextmanager
def start(repository: Path, args: Sequence[str], *, protocol: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Start git with pipes and yield the process; it and its children are gone when the block ends.

    ``protocol`` is the one transport git may use; '' means none.
    """
    command = [*_environment(repository, protocol), "git", f"--git-dir={repository}", *_options(), *args]
    process = _popen(repository, command)
    try:
        yield process
    finally:
        _end(process)


def _popen(repository: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start ``command`` through GitPython; git's absence can surface while GitPython is imported."""
    try:
        for program in ("git", "env"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"no {program} on PATH")
        from git.cmd import Git

        wrapped = Git(repository.parent).execute(
            command, istream=subprocess.PIPE, as_process=True, shell=False, start_new_session=True
        )
    except (ImportError, OSError) as error:
        raise SourceError(
            "git is missing", sought="a git executable", found=str(error).strip().split("\n")[0],
            hint=f"install git, or: {BUNDLED_HINT}",
        ) from error  # fmt: skip
    process: subprocess.Popen[bytes] = wrapped.proc  # type: ignore[assignment]
    wrapped.proc = None  # ours to end: the wrapper would end it as soon as it goes out of scope
    return process


def _environment(repository: Path, protocol: str) -> list[str]:
    """Return an ``env`` prefix: GitPython adds to the environment but cannot take from it."""
    dropped = [name for name in os.environ if name.startswith("GIT_") or name in _DROPPED]
    settings = {
        "HOME": str(repository.parent),
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    unset = [word for name in dropped for word in ("-u", name)]
    return ["env", *unset, *(f"{name}={value}" for name, value in settings.items())]


def _options() -> list[str]:
    return [word for setting in _CONFIG for word in ("-c", setting)]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
