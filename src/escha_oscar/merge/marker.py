"""The one comment line that every merged file carries: that it was changed, by what, from where."""

from __future__ import annotations

import libcst as cst

from escha_oscar import __version__
from escha_oscar.mapping import PIN


def marker(source: str) -> str:
    """Return the one comment line that every merged file carries (Apache-2.0 section 4(b) change notice)."""
    return (
        f"# Changed by escha-oscar {__version__}: OSCAR INT2 KV cache of sglang PR #{PIN.pull_request} merged in"
        f" ({source}); change notice of Apache-2.0 section 4(b)."
    )


def is_marked(module: cst.Module) -> bool:
    """Return whether the module's header carries the marker comment."""
    return any(_is_marker(line) for line in module.header)


def _is_marker(line: cst.EmptyLine) -> bool:
    text = line.comment.value if line.comment else ""
    return "escha-oscar" in text and f"PR #{PIN.pull_request}" in text


def with_marker(module: cst.Module, source: str) -> cst.Module:
    """Add the marker comment at the end of the module's header, once."""
    if is_marked(module):
        return module
    line = cst.EmptyLine(indent=False, comment=cst.Comment(marker(source)))
    return module.with_changes(header=[*module.header, line])
