"""What a distribution says of itself in its METADATA."""

from __future__ import annotations

from pathlib import Path

from escha_oscar.target.owner import required_imports
from tests.support.environments import INFO
from tests.support.wheels import SKELETON, make_site_packages

METADATA = """\
Metadata-Version: 2.1
Name: escha
Requires-Dist: sgl-kernel==0.3
Requires-Dist: Xgrammar (>=0.1)
Requires-Dist: torch; extra == "gpu"
Provides-Extra: gpu

Requires-Python: said in the description, and ペイロード
"""


def test_required_packages_are_read_from_the_metadata(tmp_path: Path) -> None:
    info = make_site_packages(tmp_path, SKELETON) / INFO
    assert required_imports(info) == frozenset()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    assert required_imports(info) == {"sgl_kernel", "xgrammar", "torch"}
    (info / "METADATA").write_bytes(b"Requires-Dist: a\n\x80\n")
    assert required_imports(info) == {"a"}
    (info / "METADATA").unlink()
    assert required_imports(info) == frozenset()
