from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from escha_oscar.errors import MissingExtraError, UsageError
from escha_oscar.rotations import hadamard_matrix
from escha_oscar.rotations.calibrate import LayerFit, bit_reversal, calibrate, mean_errors
from escha_oscar.rotations.hadamard import orthogonality_error

DIM, KV, GROUP, ROWS = 32, 2, 2, 60

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def drawn(seed: int, rows: int = ROWS, v_dim: int = DIM) -> Rows:
    """Q, K, V rows with uneven energy along random directions."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(DIM, DIM, generator=generator) * torch.linspace(0.3, 0.01, DIM)
    q = torch.randn(rows, KV * GROUP, DIM, generator=generator) @ mix
    k = torch.randn(rows, KV, DIM, generator=generator) @ mix
    return q, k, torch.randn(rows, KV, v_dim, generator=generator) * torch.linspace(2, 0.2, v_dim)


def outlier_along_a_hadamard_row(seed: int) -> Rows:
    """Q and K are large along a row of Hadamard: plain Hadamard gathers that into one coordinate."""
    q, k, v = drawn(seed)
    direction = hadamard_matrix(DIM)[5]
    return q + 3 * direction, k + 20 * direction, v


def outlier_that_the_fit_gathers(seed: int) -> Rows:
    """Q's eigenvectors are the rows of Hadamard and K has an axis outlier: R H is then no smoothing at all."""
    _, k, v = drawn(seed)
    axis = torch.zeros(DIM)
    axis[0] = 20.0
    generator = torch.Generator().manual_seed(seed + 100)
    spread = torch.randn(ROWS, KV * GROUP, DIM, generator=generator) * torch.linspace(3, 0.3, DIM)
    return spread @ hadamard_matrix(DIM), k + axis, v


def dump(folder: Path, layer: int, chunks: dict[int, Rows]) -> None:
    for chunk_id, tensors in chunks.items():
        for part, rows in zip("qkv", tensors, strict=True):
            target = folder / f"layer_{layer}" / part
            target.mkdir(parents=True, exist_ok=True)
            torch.save(rows, target / f"{chunk_id}.pt")


def fitted(folder: Path, **options: object) -> LayerFit:
    return calibrate(folder, **options)[0]  # type: ignore[arg-type]


def unmixed(rotation: torch.Tensor) -> torch.Tensor:
    """Undo P and H, leaving the eigenvectors."""
    order = torch.tensor(bit_reversal(rotation.shape[-1]))
    return rotation.double()[:, torch.argsort(order)] @ hadamard_matrix(rotation.shape[-1]).double().T


def test_k_diagonalises_the_query_covariance_in_ascending_order(tmp_path: Path) -> None:
    q, k, v = drawn(1)
    dump(tmp_path, 3, {1: (q, k, v)})
    fit = fitted(tmp_path)
    assert (fit.layer, fit.rows, fit.held_out_rows) == (3, 48, 12)
    seen = q[:48].double().reshape(-1, DIM)
    diagonal = unmixed(fit.k).T @ (seen.T @ seen / len(seen)) @ unmixed(fit.k)
    values = diagonal.diagonal()
    assert torch.all(values[:-1] <= values[1:] + 1e-6)
    assert (diagonal - torch.diag(values)).abs().max() < 1e-4 * values.max()


def test_v_diagonalises_the_score_weighted_value_covariance(tmp_path: Path) -> None:
    q, k, v = drawn(2)
    dump(tmp_path, 0, {1: (q, k, v)})
    fit = fitted(tmp_path)
    total = torch.zeros(DIM, DIM, dtype=torch.float64)
    for head in range(KV):
        queries = q[:48, head * GROUP : (head + 1) * GROUP].double().reshape(-1, DIM)
        keys, values = k[:48, head].double(), v[:48, head].double()
        energy = ((keys @ (queries.T @ queries / len(queries))) * keys).sum(1)
        total += (values * (energy / energy.sum())[:, None]).T @ values / KV
    diagonal = unmixed(fit.v).T @ total @ unmixed(fit.v)
    spread = diagonal.diagonal()
    assert torch.all(spread[:-1] <= spread[1:] + 1e-6)
    assert (diagonal - torch.diag(spread)).abs().max() < 1e-4 * spread.max()


def test_per_head_fits_each_head_alone(tmp_path: Path) -> None:
    q, k, v = drawn(3)
    dump(tmp_path / "both", 0, {1: (q, k, v)})
    dump(tmp_path / "second", 0, {1: (q[:, GROUP:].contiguous(), k[:, 1:].contiguous(), v[:, 1:].contiguous())})
    both, second = fitted(tmp_path / "both", per_head=True), fitted(tmp_path / "second")
    assert both.k.shape == (KV, DIM, DIM)
    assert torch.allclose(both.k[1], second.k, atol=1e-5)
    assert torch.allclose(both.v[1], second.v, atol=1e-5)


@pytest.mark.parametrize("per_head", [False, True])
def test_matrices_are_float32_and_orthogonal(tmp_path: Path, per_head: bool) -> None:
    dump(tmp_path, 0, {1: drawn(4)})
    fit = fitted(tmp_path, per_head=per_head)
    assert fit.k.dtype == fit.v.dtype == torch.float32
    assert max(orthogonality_error(fit.k), orthogonality_error(fit.v)) <= 1e-6


def test_the_fit_does_not_see_the_held_out_rows(tmp_path: Path) -> None:
    rows = drawn(5)
    dump(tmp_path / "a", 0, {1: rows})
    for tensor in rows:
        tensor[48:] = tensor[48:].flip(-1) * 7
    dump(tmp_path / "b", 0, {1: rows})
    one, other = fitted(tmp_path / "a"), fitted(tmp_path / "b")
    assert torch.equal(one.k, other.k)
    assert torch.equal(one.v, other.v)
    assert one.calibrated != other.calibrated


def test_chunks_add_up_to_one_dump(tmp_path: Path) -> None:
    """Two chunks whose fitted rows are those of one chunk give the same matrices."""
    q, k, v = drawn(6, rows=100)
    dump(tmp_path / "one", 0, {1: (q, k, v)})  # fits rows 0-79
    halves = {1: tuple(t[:50] for t in (q, k, v)), 2: tuple(torch.cat([t[40:80], t[90:]]) for t in (q, k, v))}
    dump(tmp_path / "two", 0, halves)  # type: ignore[arg-type]  # fits rows 0-39 and 40-79
    one, two = fitted(tmp_path / "one"), fitted(tmp_path / "two")
    assert torch.allclose(one.k, two.k, atol=1e-5)
    assert torch.allclose(one.v, two.v, atol=1e-5)


def test_a_short_first_chunk_is_the_warm_up_and_is_left_out(tmp_path: Path) -> None:
    dump(tmp_path / "a", 0, {1: drawn(7)})
    dump(tmp_path / "b", 0, {0: drawn(8, rows=6), 1: drawn(7)})
    assert torch.equal(fitted(tmp_path / "a").k, fitted(tmp_path / "b").k)


@pytest.mark.parametrize(
    ("draw", "better"),
    [
        pytest.param(outlier_along_a_hadamard_row, True, id="the fit spreads what Hadamard gathers"),
        pytest.param(outlier_that_the_fit_gathers, False, id="the fit gathers what Hadamard spreads"),
    ],
)
def test_both_kinds_are_judged_on_held_out_rows(tmp_path: Path, draw: Callable[[int], Rows], better: bool) -> None:
    dump(tmp_path, 0, {1: draw(9), 2: draw(10)})
    fit = fitted(tmp_path)
    assert (fit.calibrated.k < fit.hadamard.k) == better
    assert (fit.calibrated.attention < fit.hadamard.attention) == better


def test_errors_shrink_with_smaller_groups(tmp_path: Path) -> None:
    dump(tmp_path, 0, {1: drawn(11)})
    whole, grouped = fitted(tmp_path), fitted(tmp_path, group_size=8)
    assert grouped.hadamard.k < whole.hadamard.k
    assert grouped.hadamard.v < whole.hadamard.v


def test_k_and_v_may_have_different_sizes(tmp_path: Path) -> None:
    dump(tmp_path, 0, {1: drawn(12, v_dim=16)})
    fit = fitted(tmp_path)
    assert (fit.k.shape, fit.v.shape) == ((32, 32), (16, 16))


def test_layers_come_in_numeric_order_with_progress(tmp_path: Path) -> None:
    seen: list[object] = []

    class Sink:
        def step(self, text: str) -> None:
            seen.append(text)

        def advance(self, done: int, total: int | None = None) -> None:
            seen.append((done, total))

    for layer in (11, 3, 7):
        dump(tmp_path, layer, {1: drawn(layer)})
    fits = calibrate(tmp_path, layers=frozenset({3, 11}), progress=Sink())
    assert [fit.layer for fit in fits] == [3, 11]
    assert seen == ["calibrating 2 layers", (1, 2), (2, 2)]
    means = mean_errors(fits, "hadamard")
    assert means.k == pytest.approx((fits[0].hadamard.k + fits[1].hadamard.k) / 2)


def test_bit_reversal() -> None:
    assert bit_reversal(8) == [0, 4, 2, 6, 1, 5, 3, 7]


def break_rows(folder: Path, part: str, change: Callable[[torch.Tensor], object]) -> None:
    path = folder / "layer_0" / part / "1.pt"
    torch.save(change(torch.load(path, weights_only=True)), path)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        pytest.param("k", lambda t: t[:, :1], "q, k and v do not belong together", id="kv heads differ"),
        pytest.param("q", lambda t: t[:, :3], "q, k and v do not belong together", id="heads do not divide"),
        pytest.param("v", lambda t: t[:-1], "q, k and v do not belong together", id="rows differ"),
        pytest.param("q", lambda t: t[:, 0], "no dumped rows", id="two axes"),
        pytest.param("q", lambda t: t.int(), "no dumped rows", id="integers"),
        pytest.param("q", lambda t: {"q": t}, "no dumped rows", id="no tensor"),
        pytest.param("v", lambda t: t / 0, "rows are not finite", id="not finite"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, part: str, change: Callable[..., object], message: str) -> None:
    dump(tmp_path, 0, {1: drawn(13)})
    break_rows(tmp_path, part, change)
    with pytest.raises(UsageError, match=message):
        calibrate(tmp_path)


def test_incomplete_dumps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        calibrate(tmp_path / "absent")
    with pytest.raises(UsageError, match="no layer to calibrate"):
        calibrate(tmp_path)
    dump(tmp_path, 0, {1: drawn(14), 2: drawn(15)})
    (tmp_path / "layer_0" / "v" / "2.pt").unlink()
    with pytest.raises(UsageError, match="chunks do not pair") as caught:
        calibrate(tmp_path)
    assert caught.value.found == "q: 2, k: 2, v: 1"


def test_a_dump_of_single_rows_has_nothing_to_fit(tmp_path: Path) -> None:
    dump(tmp_path, 0, {1: drawn(16, rows=1)})
    with pytest.raises(UsageError, match="no chunk with rows"):
        calibrate(tmp_path)


def test_chunks_of_different_shapes_are_refused(tmp_path: Path) -> None:
    q, k, v = drawn(17)
    dump(tmp_path, 0, {1: (q, k, v), 2: (q[:, :2], k[:, :1], v[:, :1])})
    with pytest.raises(UsageError, match="chunks of different shapes"):
        calibrate(tmp_path)


def test_a_reference_that_cannot_be_imported_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump(tmp_path, 0, {1: drawn(19)})
    monkeypatch.delattr("escha_oscar.kernels.reference", raising=False)
    monkeypatch.setitem(sys.modules, "escha_oscar.kernels.reference", None)
    with pytest.raises(MissingExtraError, match="the INT2 reference cannot be imported"):
        calibrate(tmp_path)


def test_sizes_and_groups_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    dump(tmp_path / "odd", 0, {1: drawn(18, v_dim=24)})
    with pytest.raises(UsageError, match="V head size 24 of layer 0 is no power of two"):
        calibrate(tmp_path / "odd")
    dump(tmp_path / "even", 0, {1: drawn(18)})
    with pytest.raises(UsageError, match="group size 12 does not divide head size 32"):
        calibrate(tmp_path / "even", group_size=12)
