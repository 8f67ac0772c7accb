"""Rotation files: ``{"layers": {global layer id: {"rotation": float32 [D, D] or [kv_heads, D, D]}}}``."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escha_oscar.errors import EschaOscarError, UsageError
from escha_oscar.rotations._torch import torch_module

if TYPE_CHECKING:
    from torch import Tensor

#: The most that one written file may hold, and the most that is read.
MAX_BYTES = 4 << 30


class RotationFileError(EschaOscarError):
    """A rotation file is damaged, unsafe to load, or not of the expected form."""

    code = "rotation-file"


@dataclass(frozen=True)
class RotationFile:
    """A loaded file: matrices by global layer id, ascending; ``string_keys`` where ids are stored as text."""

    path: str
    layers: Mapping[int, Tensor]
    string_keys: bool
    objective: str | None


def file_name(role: str, kind: str, head_dim: int) -> str:
    """Name a file by role (``k`` or ``v``), kind and its own head size."""
    return f"{role}_rotation_{kind}_hd{head_dim}.pt"


def write_rotation_files(files: Mapping[Path, tuple[Mapping[int, Tensor], str]]) -> None:
    """Write ``{path: (matrices by layer id, objective)}``, all of them or none, with the same bytes every time.

    Raises UsageError for more than 4 GiB and for a folder that cannot be written; no temporary file remains.
    """
    for path, (layers, _) in files.items():
        size = sum(matrix.numel() * 4 for matrix in layers.values())
        if size > MAX_BYTES:
            raise UsageError(f"would be {size} bytes", path=str(path), sought=f"at most {MAX_BYTES}")
        if path.is_dir():
            raise UsageError("is a directory", path=str(path), sought="a place for a file")
    with contextlib.ExitStack() as stack:
        staged = {}
        for path, (layers, objective) in files.items():
            with _explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                staged[path] = stack.enter_context(_temporary(path))
                _save(staged[path], layers, objective)
        for path, temporary in staged.items():
            with _explained(path):
                temporary.replace(path)
        for folder in {path.parent for path in files}:
            _sync_folder(folder)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", path=str(path)) from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _save(path: Path, layers: Mapping[int, Tensor], objective: str) -> None:
    torch = torch_module()
    ranks = {matrix.dim() for matrix in layers.values()}
    state = {
        "format_version": 2 if 3 in ranks else 1,
        "objective": objective,
        # A clone each: tensors that share storage would be one tensor to whoever changes a loaded file.
        "layers": {layer: {"rotation": matrix.float().clone()} for layer, matrix in sorted(layers.items())},
    }
    with path.open("xb") as stream:
        torch.save(state, stream)  # a stream and not a path: torch puts a path's name into the archive
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_rotation_file(path: Path) -> RotationFile:
    """Load a rotation file onto the CPU, never running code from it.

    Layer ids may be int or str; a layer stored under both must be the same. Raises UsageError where the path is no
    readable file and RotationFileError where its content is not a rotation file.
    """
    state = load_tensors(path, "rotation file")
    layers = state.get("layers") if isinstance(state, dict) else None
    if not isinstance(layers, dict) or not layers:
        raise RotationFileError("is no rotation file", path=str(path), sought='{"layers": {id: {"rotation": tensor}}}')
    found: dict[int, Tensor] = {}
    for key, entry in layers.items():
        layer = _layer_id(path, key)
        matrix = _matrix(path, layer, entry)
        if layer in found and not _same(found[layer], matrix):
            raise RotationFileError(
                f"layer {layer} is stored twice, under {layer} and '{layer}', and differs", str(path)
            )
        found[layer] = matrix
    objective = state.get("objective")
    return RotationFile(
        str(path),
        dict(sorted(found.items())),
        any(isinstance(key, str) for key in layers),
        objective[:80] if isinstance(objective, str) else None,
    )


def load_tensors(path: Path, what: str = "file of plain tensors") -> Any:
    """Load a torch file with ``weights_only=True`` onto the CPU; errors call it ``what``.

    Raises as ``load_rotation_file`` does.
    """
    torch = torch_module()
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=str(path)) from error
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        raise UsageError("is not a regular file of at most 4 GiB", path=str(path))
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen types, and advises to load without the safeguard
        raise RotationFileError(
            f"is no {what}", path=str(path), sought="what torch.save writes", found=_kind(path)
        ) from error


def _kind(path: Path) -> str:
    """Say what a file is that torch could not load."""
    with path.open("rb") as stream:
        head = stream.read(4)
    if not head:
        return "an empty file"
    if zipfile.is_zipfile(path):
        return "an archive that is damaged, or that holds other objects than tensors"
    return "the beginning of an archive: it was cut off" if head == b"PK\x03\x04" else "another kind of file"


def _layer_id(path: Path, key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10:
        return int(key)
    raise RotationFileError(f"layer id {key!r}"[:80], path=str(path), sought="a global layer id, int or str")


def _matrix(path: Path, layer: int, entry: object) -> Tensor:
    torch = torch_module()
    matrix = entry.get("rotation") if isinstance(entry, dict) else None
    if not isinstance(matrix, torch.Tensor):
        raise RotationFileError(f"layer {layer} has no rotation tensor", path=str(path))
    if not is_dense_float(matrix) or matrix.dim() not in (2, 3) or matrix.shape[-1] != matrix.shape[-2]:
        found = f"{matrix.dtype} {list(matrix.shape)}"
        sought = "floating [D, D] or [kv_heads, D, D]"
        raise RotationFileError(f"layer {layer} is no rotation", path=str(path), sought=sought, found=found)
    if matrix.numel() == 0 or not bool(torch.isfinite(matrix).all()):
        raise RotationFileError(f"layer {layer} is empty or not finite", path=str(path))
    return matrix


def is_dense_float(tensor: Tensor) -> bool:
    """True for plain fp16, bf16, fp32 and fp64 tensors; a file may hold sparse, meta and 8-bit ones as well."""
    torch = torch_module()
    known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return tensor.dtype in known and tensor.layout == torch.strided and tensor.device.type == "cpu"


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
