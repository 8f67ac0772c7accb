"""Integrate, verify and revert every source on every base, and print the matrix as Markdown.

    python -m tests.integration.matrix --repo PATH --prefix DIR --branch NAME... --wheels DIR

``--wheels`` holds stock sglang wheels; without ``--repo`` only the bundled source runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from escha_oscar.cli import main
from escha_oscar.demo import fingerprint
from escha_oscar.target.unpack import unpack_wheel


def run(*argv: str) -> tuple[int, dict[str, Any]]:
    """Run one command with --json and return its exit code and object."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*argv, "--json"])
    return code, json.loads(out.getvalue())


def cell(wheel: Path, source: list[str]) -> tuple[str, str]:
    """Integrate, verify and revert one wheel; return the base and what came out."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site-packages"
        unpack_wheel(wheel, site)
        before = fingerprint(site)
        where = ["--site-packages", str(site)]
        code, made = run("integrate", *where, "--allow-upstream", *source)
        if code:
            return wheel.name.split("-")[1], f"integrate {code}: {made['error']['message']}"
        checked, _ = run("verify", *where, "--level", "files", "--level", "static")
        undone, _ = run("revert", *where)
        same = "byte-identical" if fingerprint(site) == before else "DIFFERENT"
        counts = Counter(use["taken_from"] for use in made["symbols"])
        origin = ", ".join(f"{counts[kind]} {kind}" for kind in ("pr", "bundled", "glue") if counts[kind])
        names = sorted({repair["name"] for repair in made["repairs"]})
        fallbacks = sorted({f"{u['symbol']} ({u['why']})" for u in made["symbols"] if u["why"]})
        note = f"integrate {code}, verify {checked}, revert {undone} ({same}) | {origin} | {', '.join(names)}"
        return wheel.name.split("-")[1], f"{note} | {'; '.join(fallbacks) or '-'}"


def commit_of(repo: Path, branch: str) -> str:
    """Return the full commit id of a branch."""
    command = ["git", "-C", str(repo), "rev-parse", f"{branch}^{{commit}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def sources(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return every source to try: its name and its options."""
    found = [("bundled", ["--source", "bundled"])]
    for branch in options.branch:
        commit = commit_of(options.repo, branch)
        place = ["--pr-repo", str(options.repo), "--pr-prefix", options.prefix, "--pr-commit", commit]
        found.append((f"{branch} ({commit[:9]})", place))
    return found


def matrix(options: argparse.Namespace) -> None:
    """Print one row for each source and base."""
    print("| source | base | result | symbols from | repairs | taken from the bundled tree, and why |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, source in sources(options):
        for wheel in sorted(options.wheels.glob("sglang-*.whl")):
            base, result = cell(wheel, source)
            print(f"| {name} | {base} | {result} |")
            sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--prefix", default="python")
    parser.add_argument("--branch", action="append", default=[])
    parser.add_argument("--wheels", type=Path, required=True)
    matrix(parser.parse_args())
