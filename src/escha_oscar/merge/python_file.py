"""A Python file's bytes as text and as a module; what would not come back byte for byte is refused by name."""

from __future__ import annotations

import codecs
import io
import tokenize

import libcst as cst

from escha_oscar.errors import AnchorError

#: Ten times the largest file that is merged; parsing takes time and memory in proportion.
_LARGEST_FILE = 4 << 20


def parse(data: bytes, path: str) -> cst.Module:
    """Parse a file of the target; refuses by name what does not come back byte for byte."""
    decoded(data, path)
    try:
        module = cst.parse_module(data)
    except cst.ParserSyntaxError as error:
        raise AnchorError("the file does not parse", path=path, line=error.raw_line, found=error.message) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise AnchorError("the file cannot be parsed", path=path, found=type(error).__name__) from None
    if module.bytes != data:
        raise AnchorError("the file does not survive parsing byte for byte; it is left alone", path=path)
    return module


def decoded(data: bytes, path: str) -> str:
    """Return the text of a Python file in its declared encoding; raises AnchorError for bad bytes and for size."""
    if len(data) > _LARGEST_FILE:
        raise AnchorError(
            "the file is too large", path=path, sought=f"{_LARGEST_FILE} bytes at most", found=str(len(data))
        )
    # In the first two lines a bad byte already trips the detector, which does not say where it is.
    encoding, problem = "utf-8", None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, LookupError) as error:
        problem = str(error)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        start = error.start + (len(codecs.BOM_UTF8) if encoding == "utf-8-sig" else 0)
        found = f"byte 0x{data[start]:02x} at offset {start}"
        line = data.count(b"\n", 0, start) + 1
        raise AnchorError("the file is not valid text", path=path, line=line, found=found) from None
    if problem is not None:
        raise AnchorError(f"the file has no usable encoding: {problem}", path=path, line=1)
    return text
