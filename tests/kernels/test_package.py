"""The package is placed verbatim in another tree, so it has to stand on its own there."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import escha_oscar

PACKAGE = Path(escha_oscar.__file__).parent / "kernels"
FILES = sorted(PACKAGE.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_is_licensed_documented_and_imports_only_torch_and_triton(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module.split(".")[0]]
        else:
            continue
        assert set(names) <= {"torch", "triton", *sys.stdlib_module_names}, names


def test_runs_from_another_package(tmp_path):
    target = tmp_path / "elsewhere" / "attention" / "oscar_int2"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import torch; from elsewhere.attention.oscar_int2 import dequantize, store_kv;"
        "from elsewhere.attention.oscar_int2.reference import quantize, unpack;"
        "codes, sz = quantize(torch.randn(5, 1, 64), 32);"
        "dense = dequantize(codes, sz, torch.arange(5), head_dim=64, dtype=torch.float32);"
        "assert dense.isfinite().all()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=tmp_path)
