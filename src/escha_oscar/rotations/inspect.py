"""Judge a rotation file: its form, its kind, its orthogonality, and whether it covers a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from escha_oscar.rotations._torch import torch_module
from escha_oscar.rotations.files import RotationFile
from escha_oscar.rotations.hadamard import hadamard_matrix, largest_block, orthogonality_error
from escha_oscar.serving.model_config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

_BOUND = 1e-6
_HALF_BOUND = 1e-3  # what rounding to bf16 or fp16 alone can cost


class Role(str, Enum):
    """Which cache a file rotates."""

    K = "k"
    V = "v"


@dataclass(frozen=True)
class Finding:
    """One remark on a file; errors decide the verdict."""

    level: Literal["error", "warning"]
    message: str


@dataclass(frozen=True)
class Inspection:
    """What a rotation file holds.

    ``kind`` is identity, hadamard, uniform (one other matrix for all layers) or calibrated (layers or heads differ).
    """

    path: str
    layers: tuple[int, ...]
    head_dims: tuple[int, ...]
    per_head: bool
    kv_heads: tuple[int, ...]
    dtypes: tuple[str, ...]
    kind: str
    string_keys: bool
    orthogonality_error: float
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True where nothing speaks against using the file."""
        return all(finding.level != "error" for finding in self.findings)


def inspect_rotation(file: RotationFile, model: ModelConfig | None = None, role: Role | None = None) -> Inspection:
    """Judge a loaded file, alone or against a model; ``role`` says which head size counts where K and V differ."""
    errors = _orthogonality(file.layers)
    matrices = tuple(file.layers.values())
    kind = _kind(matrices)
    findings = [*_numeric_findings(file, errors, kind)]
    if model is not None:
        findings += _coverage(file.layers, model)
        findings += _shapes(file.layers, model, role)
    return Inspection(
        path=file.path,
        layers=tuple(file.layers),
        head_dims=tuple(sorted({matrix.shape[-1] for matrix in matrices})),
        per_head=any(matrix.dim() == 3 for matrix in matrices),
        kv_heads=tuple(sorted({matrix.shape[0] for matrix in matrices if matrix.dim() == 3})),
        dtypes=tuple(sorted({str(matrix.dtype).removeprefix("torch.") for matrix in matrices})),
        kind=kind,
        string_keys=file.string_keys,
        orthogonality_error=max(errors.values()),
        findings=tuple(findings),
    )


def _orthogonality(layers: Mapping[int, Tensor]) -> dict[int, float]:
    """Measure each layer; a matrix equal to the one before it is not measured again."""
    torch = torch_module()
    errors: dict[int, float] = {}
    before: tuple[Tensor, float] | None = None
    for layer, matrix in layers.items():
        known = before is not None and before[0].dtype == matrix.dtype and torch.equal(before[0], matrix)
        error = before[1] if before is not None and known else orthogonality_error(matrix)
        errors[layer], before = error, (matrix, error)
    return errors


def _kind(matrices: Sequence[Tensor]) -> str:
    torch = torch_module()
    planes = [plane for matrix in matrices for plane in matrix.reshape(-1, *matrix.shape[-2:])]
    first = planes[0]
    if any(plane.dtype != first.dtype or not torch.equal(plane, first) for plane in planes[1:]):
        return "calibrated"
    dim = first.shape[-1]
    if torch.equal(first.float(), torch.eye(dim)):
        return "identity"
    if largest_block(dim) == 1:
        return "uniform"
    plain = hadamard_matrix(dim, block=True).to(first.dtype)
    return "hadamard" if torch.allclose(first.float(), plain.float(), rtol=0, atol=_BOUND) else "uniform"


def _numeric_findings(file: RotationFile, errors: Mapping[int, float], kind: str) -> Iterator[Finding]:
    for layer, matrix in file.layers.items():
        bound = _HALF_BOUND if matrix.element_size() < 4 else _BOUND
        if errors[layer] > bound:
            yield Finding("error", f"layer {layer} is not orthogonal: |R R^T - I| = {errors[layer]:.1e} > {bound:.0e}")
    if kind == "identity":
        yield Finding(
            "warning", "identity matrices: no smoothing, and the merged runtime has no Hadamard to fall back on"
        )
    narrow = sorted({str(matrix.dtype).removeprefix("torch.") for matrix in file.layers.values()} - {"float32"})
    if narrow:
        yield Finding("warning", f"stored as {', '.join(narrow)}: the runtime's loader was written for float32")
    if len({matrix.dim() for matrix in file.layers.values()}) > 1:
        yield Finding("error", "some layers are shared and some per head: loaders stack them into one tensor")


def _coverage(layers: Mapping[int, Tensor], model: ModelConfig) -> Iterator[Finding]:
    missing = [layer for layer in model.kv_layer_ids if layer not in layers]
    if missing:
        local = tuple(layers) == tuple(range(len(model.kv_layer_ids)))
        why = (
            f"; ids {spell(tuple(layers))} look local, and keys are global ids {spell(model.kv_layer_ids)}"
            if local
            else ""
        )
        yield Finding("error", f"layers that hold KV are missing: {spell(missing)}{why}")
    draft = [layer for layer in model.mtp_layer_ids if layer not in layers]
    if draft:
        yield Finding("warning", f"MTP layer {spell(draft)} is not covered: INT2 KV runs without speculative decoding")


def _shapes(layers: Mapping[int, Tensor], model: ModelConfig, role: Role | None) -> Iterator[Finding]:
    full, sliding = set(model.full_attention_ids), set(model.sliding_ids)
    for layer in sorted((full | sliding) & set(layers)):
        shape, matrix = (model.full if layer in full else model.sliding), layers[layer]
        sizes = {Role.K: {shape.head_dim}, Role.V: {shape.v_head_dim}, None: {shape.head_dim, shape.v_head_dim}}[role]
        if matrix.shape[-1] not in sizes:
            name = f"{role.value.upper()} heads" if role else "heads"
            wanted = " or ".join(str(size) for size in sorted(sizes))
            yield Finding(
                "error", f"layer {layer} rotates heads of {matrix.shape[-1]}, {name} of this model are {wanted}"
            )
        if matrix.dim() == 3 and matrix.shape[0] != shape.kv_heads:
            yield Finding(
                "error", f"layer {layer} has {matrix.shape[0]} per-head matrices for {shape.kv_heads} KV heads"
            )


def spell(ids: Sequence[int]) -> str:
    """Write ids as ranges: ``3, 7-9, 12``; an even stride as ``3,7..39``."""
    steps = {b - a for a, b in itertools.pairwise(ids)}
    if len(ids) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ids[0]},{ids[1]}..{ids[-1]}"
    runs: list[list[int]] = []
    for layer in ids:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
