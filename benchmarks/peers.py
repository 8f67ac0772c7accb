"""Load kernels of other trees from one file each, without their package: the things that ours are measured against."""

import importlib.util
import re
import sys
import tempfile
import types
from pathlib import Path


def _stub(name, **members):
    module = types.ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    sys.modules.setdefault(name, module)


def _rename_second_constexpr(source):
    """Rename the constexpr that the authors' grouped kernel binds twice in one body, which newer Triton refuses."""
    declaration = "NUM_GROUPS_QUARTER: tl.constexpr"
    first = source.find(declaration)
    second = source.find(declaration, first + 1)
    if second < 0:
        return source
    end = source.find("\n@triton.jit", second)
    end = len(source) if end < 0 else end
    tail = re.sub(r"\bNUM_GROUPS_QUARTER\b", "NUM_GROUPS_QUARTER_V", source[second:end])
    return source[:second] + tail + source[end:]


def load(path, name):
    """Import the kernel file at ``path`` as module ``name``, with the few sglang names it asks for stubbed."""
    _stub("sglang")
    _stub("sglang.srt")
    _stub("sglang.srt.utils", is_hip=lambda: False, is_cuda=lambda: True)
    _stub("sglang.srt.environ", envs=types.SimpleNamespace())
    # Triton reads a kernel's text from its file, so the renamed text needs one.
    copy = Path(tempfile.mkdtemp()) / f"{name}.py"
    copy.write_text(_rename_second_constexpr(Path(path).read_text()))
    spec = importlib.util.spec_from_file_location(name, copy)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
