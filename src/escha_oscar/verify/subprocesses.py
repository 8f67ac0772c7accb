"""Running a probe in the target's interpreter: a question in a file, an answer in a file, bounded in time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBES = Path(__file__).parent / "probes"
_TAIL = 500


@dataclass(frozen=True)
class Answered:
    """What came of a probe: its answer, or None with the ``reason`` why there is none."""

    data: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class Interpreter:
    """The server's interpreter; ``site_packages`` is put first on its path where the user named a folder."""

    python: Path
    site_packages: Path | None = None

    def ask(self, probe: str, spec: Mapping[str, Any], timeout: float) -> Answered:
        """Run ``probes/<probe>.py`` in an empty folder and return its answer."""
        with tempfile.TemporaryDirectory(prefix="escha-oscar-") as folder:
            asked, answered = Path(folder, "spec.json"), Path(folder, "answer.json")
            asked.write_text(json.dumps(spec), encoding="utf-8")
            command = [str(self.python), str(PROBES / f"{probe}.py"), str(asked), str(answered)]
            try:
                done = subprocess.run(
                    command, cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return Answered(None, f"no answer within {timeout:.0f} s")
            except OSError as error:
                return Answered(None, f"the interpreter cannot be run: {error.strerror or error}")
            return _answer(answered, done)

    def _environment(self) -> dict[str, str]:
        """Return the caller's environment: the server's variables are part of what is asked about."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
        if self.site_packages is not None:
            before = os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join([str(self.site_packages), *([before] if before else [])])
        return environment


def _answer(path: Path, done: subprocess.CompletedProcess[bytes]) -> Answered:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return Answered(data)
    except (OSError, ValueError, RecursionError):
        pass
    words = done.stderr.decode("utf-8", "replace").strip()[-_TAIL:]
    ended = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return Answered(None, f"the probe ended without an answer ({ended}): {words}")


def python_of(site_packages: Path) -> Path | None:
    """Return the interpreter of the environment that ``site_packages`` lies in, or None where it is in none."""
    for root in (site_packages.parents[2], site_packages.parents[1]) if len(site_packages.parents) > 2 else ():
        for name in ("bin/python", "bin/python3", "Scripts/python.exe"):
            candidate = root / name
            if (root / "pyvenv.cfg").is_file() and os.access(candidate, os.X_OK):
                return candidate
    return None
