"""Sylvester Hadamard matrices, scaled to be orthogonal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from escha_oscar.errors import UsageError
from escha_oscar.rotations._torch import torch_module

if TYPE_CHECKING:
    from torch import Tensor

#: Above this a matrix alone takes more than 64 MiB.
MAX_DIM = 4096


def hadamard_matrix(dim: int, *, block: bool = False) -> Tensor:
    """Return the orthogonal Sylvester Hadamard matrix ``[dim, dim]``, float32.

    With ``block`` a size that is no power of two gets equal Hadamard blocks on the diagonal (192 = 3 x 64).
    Raises UsageError for other sizes.
    """
    torch = torch_module()
    size = largest_block(dim)
    if not 1 < dim <= MAX_DIM or size == 1:
        raise UsageError(f"no Hadamard matrix of size {dim}", sought=f"an even size up to {MAX_DIM}")
    if size != dim and not block:
        raise UsageError(
            f"head size {dim} is not a power of two",
            sought="a power of two",
            hint=f"--block-hadamard uses {dim // size} blocks of {size}, which smooths less",
        )
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return torch.block_diag(*[matrix / math.sqrt(size)] * (dim // size))


def largest_block(dim: int) -> int:
    """Return the largest power of two that divides ``dim``."""
    return dim & -dim


def orthogonality_error(matrix: Tensor) -> float:
    """Return the largest element of ``|R R^T - I|``, computed in float64, over all matrices ``[..., D, D]``."""
    torch = torch_module()
    wide = matrix.double()
    identity = torch.eye(wide.shape[-1], dtype=torch.float64)
    return float((wide @ wide.transpose(-1, -2) - identity).abs().max())
