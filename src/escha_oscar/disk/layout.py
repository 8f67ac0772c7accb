"""Where things lie: the state directory and what is in it, and the paths of a package that this tool may write."""

from __future__ import annotations

import re

from escha_oscar.errors import TargetError
from escha_oscar.tree import checked

STATE_DIR = ".escha-oscar"
#: What is remembered of an integration; replacing it is the commit of a transaction.
STATE_FILE = f"{STATE_DIR}/state.json"
#: There while a transaction runs, or where one was cut off.
JOURNAL_FILE = f"{STATE_DIR}/journal"
LOCK_FILE = f"{STATE_DIR}/lock"
#: Backups to stay, backups of one transaction, and edits of users that ``--force`` kept; files named by digest.
ORIGINALS = f"{STATE_DIR}/originals"
UNDO = f"{STATE_DIR}/undo"
SAVED = f"{STATE_DIR}/saved"

#: A placed or merged file; nothing that Python runs at start-up or loads as a binary.
_SUFFIXES = (".py", ".pyi", ".json", ".typed")
_RECORD = re.compile(r"[A-Za-z0-9_.+!-]+\.dist-info/RECORD")
_CACHE = re.compile(r"sglang/(?:[^/]+/)*__pycache__/[^/]+\.pyc")


def allowed(path: str) -> str:
    """Return ``path`` if this tool may write it: a source below ``sglang/``, its bytecode, or a RECORD.

    Raises TargetError for anything else, ``..`` and absolute paths included.
    """
    plain = str(checked(path)) == path and path.isprintable()
    source = path.startswith("sglang/") and path.endswith(_SUFFIXES)
    if not plain or not (source or _CACHE.fullmatch(path) or _RECORD.fullmatch(path)):
        raise TargetError("not a path that this tool writes", path=repr(path), sought="a source file below sglang/")
    return path


def allowed_folder(path: str) -> str:
    """Return ``path`` if it is a folder at or below ``sglang/``."""
    if str(checked(path)) != path or not path.startswith("sglang/"):
        raise TargetError("not a folder that this tool makes", path=repr(path), sought="a folder below sglang/")
    return path
