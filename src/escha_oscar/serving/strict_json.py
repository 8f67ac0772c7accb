"""JSON from strangers: bounded size and depth, no NaN, no duplicate keys, and errors that know their line."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from escha_oscar.errors import UsageError

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
_MAX_NUMBER_CHARS = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CONTROL = frozenset("{}[],:")

JsonPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file: ``root`` is the JSON object, ``lines`` maps each key's path to its line (from 1)."""

    path: str
    root: dict[str, Any]
    lines: dict[JsonPath, int]

    def error(self, at: JsonPath, message: str, *, sought: str | None = None, found: str | None = None) -> UsageError:
        """Build the error for the value at a JSON path, with the file and the line of its nearest known key."""
        place = at
        while place and place not in self.lines:
            place = place[:-1]
        return UsageError(
            f"{dotted(at)}: {message}", path=self.path, line=self.lines.get(place), sought=sought, found=found
        )


def dotted(at: JsonPath) -> str:
    """Write a JSON path as people do: ``text_config.layer_types[3]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at)
    return text.lstrip(".") or "(root)"


def load(path: Path) -> Document:
    """Read one JSON object from a regular file.

    Raises UsageError, with path and line where they are known, for anything that is not one finite,
    unambiguous, reasonably sized and nested UTF-8 JSON object.
    """
    text = _decode(_read(path), str(path))
    lines = _Scan(str(path), text).run()
    try:
        root = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error.msg}", path=str(path), line=error.lineno) from error
    if not isinstance(root, dict):
        raise UsageError("not a JSON object", path=str(path), sought="{...}", found=type_name(root))
    return Document(str(path), root, lines)


def type_name(value: object) -> str:
    """Name a JSON value's type in JSON's own words."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _read(path: Path) -> bytes:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "name the config.json in the checkpoint's folder"
        raise UsageError(f"cannot be read: {reason}", path=str(path), hint=hint) from error
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(
                "is a directory",
                path=str(path),
                sought="the config.json inside it",
                hint=f"--config {path}/config.json",
            )
        if not stat.S_ISREG(mode):
            raise UsageError("is not a regular file", path=str(path))
        with os.fdopen(handle, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES >> 20} MiB", path=str(path))
    if not data.strip():
        raise UsageError("is empty", path=str(path), sought="one JSON object")
    return data


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise UsageError("is not UTF-8", path=path, line=line, found=found) from error


@dataclass
class _Frame:
    """One open object or array while scanning."""

    is_object: bool
    keys: set[str] = field(default_factory=set)
    at: str | int = 0
    wants_key: bool = True


@dataclass
class _Scan:
    """One pass over the tokens: depth, duplicate keys and non-finite numbers, which ``json`` lets through."""

    path: str
    text: str
    stack: list[_Frame] = field(default_factory=list)
    lines: dict[JsonPath, int] = field(default_factory=dict)

    def run(self) -> dict[JsonPath, int]:
        """Scan everything; syntax errors are left to the real parser."""
        for token, line in self._tokens():
            if token in _CONTROL:
                self._control(token, line)
            elif token.startswith('"'):
                self._string(token, line)
            else:
                self._word(token, line)
        return self.lines

    def _tokens(self) -> Iterator[tuple[str, int]]:
        line, last = 1, 0
        for match in _TOKEN.finditer(self.text):
            line += self.text.count("\n", last, match.start())
            last = match.start()
            yield match.group(), line

    def _control(self, token: str, line: int) -> None:
        if token in "{[":
            if len(self.stack) >= MAX_DEPTH:
                raise UsageError(f"nested deeper than {MAX_DEPTH} levels", path=self.path, line=line)
            self.stack.append(_Frame(token == "{"))
        elif token in "}]":
            if self.stack:
                self.stack.pop()
        elif self.stack and token == ",":
            frame = self.stack[-1]
            frame.wants_key = True
            if not frame.is_object and isinstance(frame.at, int):
                frame.at += 1
        elif self.stack:
            self.stack[-1].wants_key = False

    def _string(self, token: str, line: int) -> None:
        if not (self.stack and self.stack[-1].is_object and self.stack[-1].wants_key):
            return
        frame = self.stack[-1]
        try:
            key = str(json.loads(token))
        except ValueError:
            return  # a bad escape: the parser that runs next reports it
        frame.at = key
        where = tuple(open_frame.at for open_frame in self.stack)
        if key in frame.keys:
            first = self.lines[where]
            raise UsageError(f"{dotted(where)}: key appears twice (first on line {first})", path=self.path, line=line)
        frame.keys.add(key)
        self.lines[where] = line

    def _word(self, token: str, line: int) -> None:
        if token.lstrip("-") in ("NaN", "Infinity"):
            raise UsageError(f"{token} is not a JSON number", path=self.path, line=line)
        if token[:1] not in "-0123456789":
            return
        if len(token) > _MAX_NUMBER_CHARS:
            raise UsageError(f"number of {len(token)} characters", path=self.path, line=line)
        try:
            overflow = abs(float(token)) == float("inf")
        except ValueError:
            return
        if overflow:
            raise UsageError(f"number out of range: {token}", path=self.path, line=line)
