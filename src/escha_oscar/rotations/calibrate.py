"""The OSCAR fit: rotations from dumped Q, K and V, judged beside Hadamard on rows that the fit has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escha_oscar.errors import MissingExtraError, UsageError
from escha_oscar.progress import NoProgress, Progress
from escha_oscar.rotations._torch import torch_module
from escha_oscar.rotations.files import is_dense_float, load_tensors
from escha_oscar.rotations.hadamard import hadamard_matrix
from escha_oscar.serving.budget import scale_groups

if TYPE_CHECKING:
    from torch import Tensor

#: Share of each chunk's rows, at its end, that the fit does not see.
HELD_OUT = 0.2
#: Rows of one chunk that the attention-output error is measured on.
_ATTENTION_ROWS = 512
#: A first chunk this short is the server's warm-up request and not text.
_WARM_UP_ROWS = 16


@dataclass(frozen=True)
class Errors:
    """Relative INT2 errors on held-out rows: ``|x - x'|^2 / |x|^2`` of K, of V and of the attention output."""

    k: float
    v: float
    attention: float


@dataclass(frozen=True)
class LayerFit:
    """One layer's matrices ``[D, D]`` or ``[kv_heads, D, D]``, float32, and both kinds' held-out errors."""

    layer: int
    k: Tensor
    v: Tensor
    rows: int
    held_out_rows: int
    calibrated: Errors
    hadamard: Errors


def calibrate(
    dumps: Path,
    *,
    per_head: bool = False,
    group_size: int | None = None,
    layers: frozenset[int] | None = None,
    progress: Progress | None = None,
) -> tuple[LayerFit, ...]:
    """Fit every dumped layer (or those named) from ``layer_<id>/{q,k,v}/<chunk>.pt``, rows ``[tokens, heads, D]``.

    ``group_size`` is that of the INT2 quantiser that judges the fit. Raises UsageError for a dump that is incomplete,
    empty or of shapes that do not belong together.
    """
    progress = progress or NoProgress()
    found = [folder for folder in _layer_folders(dumps) if layers is None or folder[0] in layers]
    if not found:
        raise UsageError("no layer to calibrate", path=str(dumps), sought="layer_<id>/{q,k,v}/<chunk>.pt")
    fits = []
    progress.step(f"calibrating {len(found)} layers")
    for done, (layer, folder) in enumerate(found, 1):
        fits.append(_fit_layer(layer, folder, per_head, group_size))
        progress.advance(done, len(found))
    return tuple(fits)


def mean_errors(fits: tuple[LayerFit, ...], kind: str) -> Errors:
    """Average one kind's errors (``calibrated`` or ``hadamard``) over the layers."""
    errors: list[Errors] = [getattr(fit, kind) for fit in fits]
    means = [sum(getattr(e, name) for e in errors) / len(errors) for name in ("k", "v", "attention")]
    return Errors(*means)


@dataclass(frozen=True)
class _Chunk:
    """Rows of one dumped chunk: q ``[T, q_heads, D]``, k ``[T, kv_heads, D]``, v ``[T, kv_heads, Dv]``, float64."""

    q: Tensor
    k: Tensor
    v: Tensor

    def part(self, start: int, stop: int) -> _Chunk:
        """A range of rows."""
        return _Chunk(self.q[start:stop], self.k[start:stop], self.v[start:stop])

    @property
    def rows(self) -> int:
        """Tokens."""
        return int(self.q.shape[0])

    @property
    def cut(self) -> int:
        """The first held-out row; at least one row stays on each side."""
        return min(self.rows - 1, max(1, round(self.rows * (1 - HELD_OUT))))


def _layer_folders(dumps: Path) -> list[tuple[int, Path]]:
    try:
        folders = [path for path in dumps.iterdir() if path.is_dir() and path.name.startswith("layer_")]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=str(dumps)) from error
    numbered = [(path.name.removeprefix("layer_"), path) for path in folders]
    return sorted((int(number), path) for number, path in numbered if number.isdecimal() and len(number) < 10)


def _chunks(folder: Path) -> Iterator[_Chunk]:
    """Yield the chunks one by one, so that a dump larger than memory can be fitted."""
    names = {part: _chunk_ids(folder / part) for part in ("q", "k", "v")}
    if not names["q"] or len({tuple(ids) for ids in names.values()}) > 1:
        found = ", ".join(f"{part}: {len(ids)}" for part, ids in names.items())
        raise UsageError("the q, k and v chunks do not pair", path=str(folder), found=found)
    for chunk_id in names["q"]:
        chunk = _read_chunk(folder, chunk_id)
        if chunk.rows < 2 or (chunk_id == names["q"][0] and len(names["q"]) > 1 and chunk.rows < _WARM_UP_ROWS):
            continue
        yield chunk


def _chunk_ids(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.pt") if path.stem.isdecimal() and len(path.stem) < 10)


def _read_chunk(folder: Path, chunk_id: int) -> _Chunk:
    torch = torch_module()
    tensors = {}
    for part in ("q", "k", "v"):
        path = folder / part / f"{chunk_id}.pt"
        tensor = load_tensors(path)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 3 or not is_dense_float(tensor):
            found = (
                f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            )
            raise UsageError("no dumped rows", path=str(path), sought="floating [tokens, heads, D]", found=found)
        if not bool(torch.isfinite(tensor).all()):
            raise UsageError("rows are not finite", path=str(path))
        tensors[part] = tensor.double()
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    paired = q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1] and q.shape[2] == k.shape[2]
    if not paired or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in tensors.items())
        raise UsageError(f"chunk {chunk_id}: q, k and v do not belong together", path=str(folder), found=shapes)
    return _Chunk(q, k, v)


def _fit_layer(layer: int, folder: Path, per_head: bool, group_size: int | None) -> LayerFit:
    query, rows, held = _query_covariance(folder)
    value = _value_covariance(folder, query)
    for role, dim in (("K", query.shape[-1]), ("V", value.shape[-1])):
        if dim & (dim - 1) or dim < 4:
            raise UsageError(f"{role} head size {dim} of layer {layer} is no power of two", path=str(folder))
        scale_groups(dim, group_size)
    k, v = _rotations(query, per_head), _rotations(value, per_head)
    plain_k, plain_v = hadamard_matrix(k.shape[-1]), hadamard_matrix(v.shape[-1])
    kinds = {"calibrated": (k, v), "hadamard": (plain_k, plain_v)}
    errors = _held_out_errors(folder, kinds, group_size)
    return LayerFit(layer, k, v, rows, held, errors["calibrated"], errors["hadamard"])


def _query_covariance(folder: Path) -> tuple[Tensor, int, int]:
    """Mean ``q^T q`` of each KV head's query group, ``[kv_heads, D, D]``, with the rows fitted and held out."""
    total: Any = None
    rows = held = 0
    for chunk in _chunks(folder):
        kept = chunk.part(0, chunk.cut)
        grouped = kept.q.unflatten(1, (chunk.k.shape[1], -1))
        products = torch_module().einsum("thgd,thge->hde", grouped, grouped) / grouped.shape[2]
        if total is not None and total.shape != products.shape:
            raise UsageError("chunks of different shapes", path=str(folder))
        total = products if total is None else total + products
        rows, held = rows + kept.rows, held + chunk.rows - kept.rows
    if total is None:
        raise UsageError("no chunk with rows", path=str(folder))
    return total / rows, rows, held


def _value_covariance(folder: Path, query: Tensor) -> Tensor:
    """Covariance of V, each row weighted by its key's score energy ``k^T C_q k``; ``[kv_heads, Dv, Dv]``."""
    torch = torch_module()
    total: Any = 0.0
    weight: Any = 0.0
    for chunk in _chunks(folder):
        kept = chunk.part(0, chunk.cut)
        energy = torch.einsum("thd,hde,the->th", kept.k, query, kept.k)
        total = total + torch.einsum("th,thd,the->hde", energy, kept.v, kept.v)
        weight = weight + energy.sum(0)
    return total / weight.clamp(min=1e-12)[:, None, None]


def _rotations(covariance: Tensor, per_head: bool) -> Tensor:
    """Compose R H P from covariances ``[kv_heads, D, D]``; shared heads are averaged first. Float32.

    R holds the eigenvectors by ascending eigenvalue, P puts the columns into bit-reversed order.
    """
    torch = torch_module()
    source = covariance if per_head else covariance.mean(0, keepdim=True)
    dim = source.shape[-1]
    _, vectors = torch.linalg.eigh((source + source.transpose(-1, -2)) / 2)
    composed = (_signed(vectors) @ hadamard_matrix(dim).double())[..., bit_reversal(dim)]
    left, _, right = torch.linalg.svd(composed)  # the nearest orthogonal matrix
    matrices: Tensor = (left @ right).float()
    return matrices if per_head else matrices[0]


def _signed(vectors: Tensor) -> Tensor:
    """Fix the sign of each eigenvector, which is arbitrary: its largest element is positive."""
    largest = vectors.abs().argmax(dim=-2, keepdim=True)
    return vectors * vectors.gather(-2, largest).sign()


def bit_reversal(dim: int) -> list[int]:
    """Return the bit-reversed order of ``range(dim)``, ``dim`` a power of two."""
    bits = dim.bit_length() - 1
    return [int(f"{i:0{bits}b}"[::-1], 2) for i in range(dim)]


def _held_out_errors(
    folder: Path, kinds: Mapping[str, tuple[Tensor, Tensor]], group_size: int | None
) -> dict[str, Errors]:
    sums = {kind: [0.0, 0.0, 0.0] for kind in kinds}
    norms = [0.0, 0.0, 0.0]
    for chunk in _chunks(folder):
        held = chunk.part(chunk.cut, chunk.rows)
        near = held.part(0, _ATTENTION_ROWS)
        exact = (held.k, held.v, _attend(near))
        norms = [norm + float(x.square().sum()) for norm, x in zip(norms, exact, strict=True)]
        for kind, (rotate_k, rotate_v) in kinds.items():
            k, v = _through_int2(held.k, rotate_k, group_size), _through_int2(held.v, rotate_v, group_size)
            coarse = (k, v, _attend(_Chunk(near.q, k[: near.rows], v[: near.rows])))
            for i, (x, y) in enumerate(zip(exact, coarse, strict=True)):
                sums[kind][i] += float((x - y).square().sum())
    return {kind: Errors(*(s / max(n, 1e-300) for s, n in zip(sums[kind], norms, strict=True))) for kind in kinds}


def _through_int2(rows: Tensor, rotation: Tensor, group_size: int | None) -> Tensor:
    """Rotate, quantise to INT2, dequantise and rotate back rows ``[T, heads, D]``."""
    reference = _reference()
    torch = torch_module()
    packed, scales = reference.quantize(reference.rotate(rows, rotation), group_size)
    values = reference.dequantize(packed, scales, torch.arange(rows.shape[0]), head_dim=rows.shape[-1])
    result: Tensor = reference.rotate(values, rotation, inverse=True)
    return result


def _attend(chunk: _Chunk) -> Tensor:
    """Causal attention within the chunk's rows."""
    torch = torch_module()
    mask = torch.ones(chunk.rows, chunk.rows, dtype=torch.bool).tril()
    output: Tensor = _reference().attention(chunk.q, chunk.k, chunk.v, mask, chunk.q.shape[-1] ** -0.5)[0]
    return output


def _reference() -> Any:
    try:
        from escha_oscar.kernels import reference
    except ImportError as error:
        raise MissingExtraError(
            "the INT2 reference cannot be imported", found=str(error), hint="pip install 'escha-oscar[torch]'"
        ) from error
    return reference
