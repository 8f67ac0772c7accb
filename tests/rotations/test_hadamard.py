from __future__ import annotations

import sys

import pytest
import torch

from escha_oscar.errors import MissingExtraError, UsageError
from escha_oscar.rotations import _torch, hadamard_matrix, largest_block
from escha_oscar.rotations.hadamard import orthogonality_error


def sign(row: int, column: int) -> float:
    """Sylvester's matrix element by element: the parity of the bits that row and column share."""
    return -1.0 if (row & column).bit_count() % 2 else 1.0


@pytest.mark.parametrize("dim", [64, 256])
def test_sizes_with_a_whole_root_are_exact(dim: int) -> None:
    expected = torch.tensor([[sign(i, j) for j in range(dim)] for i in range(dim)]) / dim**0.5
    matrix = hadamard_matrix(dim)
    assert matrix.dtype == torch.float32
    assert torch.equal(matrix, expected)
    assert orthogonality_error(matrix) == 0.0


@pytest.mark.parametrize("dim", [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_every_power_of_two_is_orthogonal(dim: int) -> None:
    assert orthogonality_error(hadamard_matrix(dim)) <= 1e-6


def test_blocks_lie_on_the_diagonal() -> None:
    matrix = hadamard_matrix(192, block=True)
    block = hadamard_matrix(64)
    assert torch.equal(matrix, torch.block_diag(block, block, block))
    assert orthogonality_error(matrix) <= 1e-6


def test_blocks_change_nothing_for_powers_of_two() -> None:
    assert torch.equal(hadamard_matrix(128, block=True), hadamard_matrix(128))


def test_other_sizes_are_refused_and_point_to_blocks() -> None:
    with pytest.raises(UsageError, match="head size 192 is not a power of two") as caught:
        hadamard_matrix(192)
    assert caught.value.hint == "--block-hadamard uses 3 blocks of 64, which smooths less"


@pytest.mark.parametrize("dim", [0, 1, 95, 8192])
def test_sizes_without_a_matrix_are_refused(dim: int) -> None:
    with pytest.raises(UsageError, match=f"no Hadamard matrix of size {dim}"):
        hadamard_matrix(dim, block=True)


@pytest.mark.parametrize(("dim", "block"), [(256, 256), (192, 64), (96, 32), (7, 1)])
def test_largest_block(dim: int, block: int) -> None:
    assert largest_block(dim) == block


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="needs torch") as caught:
        hadamard_matrix(64)
    assert caught.value.hint == "pip install 'escha-oscar[torch]'"


def test_a_torch_that_loads_unsafely_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(MissingExtraError, match="loads rotation files unsafely"):
        _torch.torch_module()


@pytest.mark.parametrize(("version", "warned"), [("2.9.0+cu128", True), ("2.10.0", False), ("3.0", False)])
def test_a_torch_with_a_known_flaw_is_warned_about(monkeypatch: pytest.MonkeyPatch, version: str, warned: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert (_torch.loading_warning() is not None) == warned
