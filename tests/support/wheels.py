"""Stand-ins for installed wheels of the family: a site-packages folder and a wheel file, each with a true RECORD."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from escha_oscar.target import record

DECODE = "sglang/srt/layers/attention/triton_ops/decode_attention.py"

#: The least that a tree of the family has; lay other files over it.
SKELETON: dict[str, str] = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/environ.py": "",
    DECODE: "",
}


def make_site_packages(
    tmp_path: Path, files: Mapping[str, str | bytes], *, name: str = "escha", version: str = "1.0.2+qwen3moe"
) -> Path:
    """Write ``files`` (paths relative to site-packages) as an installed distribution and return the folder.

    Call it twice with different names for two distributions in one folder. Nothing is added to ``files`` but the
    metadata: begin with ``SKELETON`` for a tree that ``target.locate`` accepts.
    """
    root = tmp_path / "site-packages"
    for path, content in wheel_content(files, name, version).items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def make_wheel(
    tmp_path: Path, files: Mapping[str, str | bytes], *, name: str = "escha", version: str = "1.0.2+qwen3moe"
) -> Path:
    """Write ``files`` as a wheel file and return its path."""
    wheel = tmp_path / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in wheel_content(files, name, version).items():
            archive.writestr(path, content)
    return wheel


def wheel_content(files: Mapping[str, str | bytes], name: str, version: str) -> dict[str, bytes]:
    """Return ``files`` with METADATA, WHEEL and RECORD of the distribution, RECORD last."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    everything = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    content = {path: data.encode() if isinstance(data, str) else data for path, data in everything.items()}
    content[f"{info}/RECORD"] = record.with_rows(f"{info}/RECORD,,\n".encode(), content)
    return content
