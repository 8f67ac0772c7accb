"""A repository shaped like the pull request, written by the tests, and a git server on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from escha_oscar.mapping import ROWS

PULL = 32129
OTHER = "sglang/srt/not_mapped.py"

#: What the pinned commit holds below ``python/``: every mapped file, decode attention at its newer place only.
FILES: dict[str, str] = {
    row.pr_paths[0]: f"# {row.pr_paths[0]} at the pinned commit\n" for row in ROWS
} | {OTHER: "# a file that no row names\n"}  # fmt: skip

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "test" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "test@example.invalid" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
}


def git(repository: Path, *args: str, data: bytes | None = None) -> str:
    """Run git in a bare repository with an environment of its own and return its output."""
    command = ["git", f"--git-dir={repository}", *args]
    done = subprocess.run(command, env=_ENV, input=data, check=True, capture_output=True)
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class PullRepository:
    """A bare repository: ``base`` on main, ``pinned`` on top of it, ``head`` (the pull ref) two commits further."""

    path: Path
    base: str
    pinned: str
    head: str

    def blob(self, path: str, commit: str | None = None) -> str:
        """Return the id of a file below ``python/``."""
        return git(self.path, "rev-parse", f"{commit or self.pinned}:python/{path}")


def make_pull_repository(path: Path, files: Mapping[str, str] = FILES) -> PullRepository:
    """Write the repository at ``path`` without a work tree."""
    subprocess.run(["git", "init", "-q", "--bare", "--template=", str(path)], env=_ENV, check=True)
    base = commit(path, {"README.md": "base\n"})
    tree = {f"python/{name}": text for name, text in files.items()}
    pinned = commit(path, {"README.md": "base\n", **tree}, base)
    later = commit(path, {"README.md": "later\n", **{name: text + "# later\n" for name, text in tree.items()}}, pinned)
    head = commit(path, {"README.md": "head\n"}, later)
    git(path, "update-ref", "refs/heads/main", base)
    git(path, "symbolic-ref", "HEAD", "refs/heads/main")
    git(path, "update-ref", f"refs/pull/{PULL}/head", head)
    return PullRepository(path, base, pinned, head)


def commit(repository: Path, files: Mapping[str, str], parent: str | None = None) -> str:
    """Write one commit that holds exactly ``files`` and return its id."""
    entries = {name: ("100644", "blob", write_blob(repository, text.encode())) for name, text in files.items()}
    return commit_tree(repository, write_tree(repository, entries), parent)


def write_blob(repository: Path, data: bytes) -> str:
    """Write a blob and return its id."""
    return git(repository, "hash-object", "-w", "--stdin", "--no-filters", data=data)


def write_tree(repository: Path, entries: Mapping[str, tuple[str, str, str]]) -> str:
    """Write nested trees from (mode, kind, id) by path and return the root's id; modes may be anything."""
    here: dict[str, tuple[str, str, str]] = {}
    below: dict[str, dict[str, tuple[str, str, str]]] = {}
    for path, entry in entries.items():
        head, _, rest = path.partition("/")
        if rest:
            below.setdefault(head, {})[rest] = entry
        else:
            here[head] = entry
    for name, inner in below.items():
        here[name] = ("040000", "tree", write_tree(repository, inner))
    lines = "".join(f"{mode} {kind} {oid}\t{name}\0" for name, (mode, kind, oid) in here.items())
    return git(repository, "mktree", "--missing", "-z", data=lines.encode())


def commit_tree(repository: Path, tree: str, parent: str | None = None) -> str:
    """Write a commit of ``tree`` and return its id."""
    return git(repository, "commit-tree", tree, "-m", "a commit", *(["-p", parent] if parent else []))


@dataclass
class GitServer:
    """``git http-backend`` on loopback; every request is noted in ``requests``."""

    root: Path
    version: int = 2
    answer: tuple[int, dict[str, str], bytes] | None = None
    hang: bool = False
    requests: list[str] = field(default_factory=list)
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        """Return the address of a repository below the root."""
        return f"http://127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def serving(root: Path) -> Iterator[GitServer]:
    """Serve the repositories below ``root`` until the block ends."""
    state = GitServer(root)
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Hands requests to ``git http-backend`` as a CGI program."""

    state: GitServer

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _serve(self, body: bytes) -> None:
        self.state.requests.append(f"{self.command} {self.path}")
        if self.state.hang:
            self.state.released.wait(30)
            return
        status, headers, content = self.state.answer or self._backend(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _backend(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        env = {
            **_ENV,
            "GIT_PROJECT_ROOT": str(self.state.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        if self.state.version == 2:
            env["GIT_PROTOCOL"] = self.headers.get("Git-Protocol", "")
        done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        return status, headers, content
