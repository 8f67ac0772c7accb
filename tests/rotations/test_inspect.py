from __future__ import annotations

from pathlib import Path

import pytest
import torch

from escha_oscar.rotations import Inspection, Role, RotationFile, hadamard_matrix, inspect_rotation
from escha_oscar.rotations.inspect import spell
from escha_oscar.serving.model_config import ModelConfig, read_model_config
from tests.support.checkpoints import DENSE, MOE, PLAIN, TWO_SIZES, write_config


@pytest.fixture
def moe(tmp_path: Path) -> ModelConfig:
    return read_model_config(write_config(tmp_path, MOE))


def holding(ids: object, matrix: torch.Tensor | None = None) -> RotationFile:
    matrix = hadamard_matrix(256) if matrix is None else matrix
    return RotationFile("f.pt", dict.fromkeys(ids, matrix), string_keys=False, objective=None)  # type: ignore[call-overload]


def errors(report: Inspection) -> list[str]:
    return [finding.message for finding in report.findings if finding.level == "error"]


def warnings(report: Inspection) -> list[str]:
    return [finding.message for finding in report.findings if finding.level == "warning"]


def turned(dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0].float()


def test_more_layers_than_the_model_has_are_harmless(moe: ModelConfig) -> None:
    report = inspect_rotation(holding(range(64)), moe, Role.K)
    assert (report.ok, report.findings, report.kind) == (True, (), "hadamard")


def test_a_missing_layer_is_named(moe: ModelConfig) -> None:
    report = inspect_rotation(holding(range(39)), moe, Role.K)
    assert (report.ok, errors(report)) == (False, ["layers that hold KV are missing: 39"])


def test_local_ids_are_recognised(moe: ModelConfig) -> None:
    message = "layers that hold KV are missing: 11,15..39; ids 0-9 look local, and keys are global ids 3,7..39"
    assert errors(inspect_rotation(holding(range(10)), moe, Role.K)) == [message]


def test_draft_layers_are_pointed_out(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, DENSE))
    report = inspect_rotation(holding(range(64)), model, Role.V)
    assert report.ok
    assert warnings(report) == ["MTP layer 64 is not covered: INT2 KV runs without speculative decoding"]
    assert inspect_rotation(holding(range(65)), model, Role.V).findings == ()


def test_identity_passes_with_a_warning() -> None:
    report = inspect_rotation(holding([0, 1], torch.eye(64)))
    assert (report.ok, report.kind) == (True, "identity")
    assert "no smoothing" in warnings(report)[0]


@pytest.mark.parametrize(
    ("matrices", "kind"),
    [
        pytest.param([hadamard_matrix(64)] * 2, "hadamard", id="hadamard"),
        pytest.param([hadamard_matrix(128).bfloat16()] * 2, "hadamard", id="hadamard in bf16"),
        pytest.param([hadamard_matrix(96, block=True)] * 2, "hadamard", id="block hadamard"),
        pytest.param([turned(64, 1)] * 2, "uniform", id="one other matrix"),
        pytest.param([turned(7, 1)] * 2, "uniform", id="odd size"),
        pytest.param([turned(64, 1), turned(64, 2)], "calibrated", id="per layer"),
        pytest.param([torch.stack([turned(64, 1), turned(64, 2)])] * 2, "calibrated", id="per head"),
        pytest.param([turned(64, 1), turned(32, 1)], "calibrated", id="two sizes"),
        pytest.param([turned(64, 1), turned(64, 1).double()], "calibrated", id="two dtypes"),
    ],
)
def test_kinds(matrices: list[torch.Tensor], kind: str) -> None:
    report = inspect_rotation(RotationFile("f", dict(enumerate(matrices)), False, None))
    assert report.kind == kind
    assert report.ok


def test_bf16_is_bounded_by_its_own_rounding() -> None:
    exact = inspect_rotation(holding([0], hadamard_matrix(256).bfloat16()))
    rounded = inspect_rotation(holding([0], hadamard_matrix(128).bfloat16()))
    assert exact.orthogonality_error == 0.0
    assert rounded.orthogonality_error == pytest.approx(2.1e-4, rel=0.02)
    assert rounded.ok
    assert warnings(rounded) == ["stored as bfloat16: the runtime's loader was written for float32"]
    assert not inspect_rotation(holding([0], hadamard_matrix(128).bfloat16().float())).ok


def test_a_matrix_that_is_not_orthogonal_fails_with_its_layer() -> None:
    broken = hadamard_matrix(64).clone()
    broken[0, 0] += 0.01
    report = inspect_rotation(RotationFile("f", {0: hadamard_matrix(64), 7: broken}, False, None))
    assert errors(report) == ["layer 7 is not orthogonal: |R R^T - I| = 2.6e-03 > 1e-06"]


def test_head_sizes_are_held_against_the_role(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, PLAIN, num_hidden_layers=1, head_dim=256, v_head_dim=128))
    file = holding([0], hadamard_matrix(256))
    assert inspect_rotation(file, model, Role.K).ok
    assert inspect_rotation(file, model).ok
    swapped = errors(inspect_rotation(file, model, Role.V))
    assert swapped == ["layer 0 rotates heads of 256, V heads of this model are 128"]
    alien = errors(inspect_rotation(holding([0], hadamard_matrix(64)), model))
    assert alien == ["layer 0 rotates heads of 64, heads of this model are 128 or 256"]


def test_two_head_sizes_are_checked_layer_by_layer(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, TWO_SIZES))
    report = inspect_rotation(holding(range(48), hadamard_matrix(256)), model, Role.K)
    assert len(errors(report)) == 8
    assert errors(report)[0] == "layer 5 rotates heads of 256, K heads of this model are 512"


def test_per_head_matrices_must_match_the_kv_heads(moe: ModelConfig) -> None:
    plane = hadamard_matrix(256)
    assert inspect_rotation(holding(range(40), plane.expand(2, 256, 256)), moe, Role.K).ok
    report = inspect_rotation(holding(moe.full_attention_ids, plane.expand(4, 256, 256)), moe, Role.K)
    assert errors(report)[0] == "layer 3 has 4 per-head matrices for 2 KV heads"
    assert (report.per_head, report.kv_heads) == (True, (4,))


def test_mixed_ranks_are_refused() -> None:
    plane = hadamard_matrix(64)
    report = inspect_rotation(RotationFile("f", {0: plane, 1: plane.expand(2, 64, 64)}, False, None))
    assert errors(report) == ["some layers are shared and some per head: loaders stack them into one tensor"]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2), "0-2"),
        ((3, 7, 11, 15), "3,7..15"),
        ((3, 7, 8, 9, 12), "3, 7-9, 12"),
        ((5, 9, 13), "5, 9, 13"),
        ((1, 2, 3, 4, 5), "1-5"),
    ],
)
def test_ids_are_spelled_short(ids: tuple[int, ...], text: str) -> None:
    assert spell(ids) == text
