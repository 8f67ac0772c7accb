"""Stand-ins for compiled packages that a machine without a GPU cannot have: importable, never callable.

Only names listed here are stubbed. A stub answers any attribute with a class that refuses to be made, so code that
reaches for a missing kernel fails loudly instead of computing something.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

#: CUDA kernels; an image library that needs torch's own build; a shell; a reader of a weight format.
STUBBED = ("sgl_kernel", "torchvision", "IPython", "gguf")


class _Refusing(type):
    """Metaclass: attributes of a stub class are stub classes, so that enums and nested names resolve."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Refusing(name, (cls,), {})


class Stub(metaclass=_Refusing):
    """Base of everything that a stub module hands out."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise RuntimeError(f"{type(self).__module__}.{type(self).__qualname__} is a stub and was called")


class _StubModule(types.ModuleType):
    __version__ = "99.0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = _Refusing(name, (Stub,), {"__module__": self.__name__})
        setattr(self, name, stub)
        return stub


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Put the stubs in front of every other finder."""
    sys.meta_path.insert(0, _Finder())
