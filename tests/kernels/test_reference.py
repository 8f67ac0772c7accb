import pytest
import torch

from escha_oscar.kernels import reference


def test_packing_is_by_quarters():
    assert reference.pack(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).tolist() == [228, 228]


def test_quantising_an_exact_row():
    row = torch.tensor([-1.5, -0.5, 0.5, 1.5] * 2)
    packed, sz = reference.quantize(row)
    assert packed.tolist() == [136, 221]
    assert sz.tolist() == [1.0, 1.5]
    dense = reference.dequantize(packed[None, None], sz[None, None], torch.tensor([0]), head_dim=8)
    assert dense[0, 0].tolist() == row.tolist()


def test_unpack_undoes_pack_for_every_byte():
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    assert torch.equal(reference.pack(reference.unpack(every)), every)


def test_rotation_is_a_row_times_the_matrix_and_repeats_for_query_heads():
    R = torch.randn(2, 4, 4)
    x = torch.randn(3, 6, 4)
    turned = reference.rotate(x, R, kv_group_num=3)
    assert torch.allclose(turned[1, 4], x[1, 4].double() @ R[1].double())
    assert torch.allclose(reference.rotate(x, R[0], inverse=True)[2, 5], R[0].double() @ x[2, 5].double())


def test_attention_without_keys_is_zero():
    q, k = torch.randn(2, 4, 8), torch.randn(0, 2, 8)
    o, lse = reference.attention(q, k, k, None, 1.0)
    assert o.eq(0).all() and lse.isneginf().all()


def test_lloyd_max_with_groups_is_refused():
    with pytest.raises(ValueError, match="4 groups of 64"):
        reference.quantize(torch.randn(1, 256), 64, lloyd_max=True)
