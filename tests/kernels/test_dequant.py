import pytest
import torch

from escha_oscar.kernels import dequant, dequantize, reference

from .support import NAN, assert_close, make_pool


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("dims", "group", "padding"),
    [
        (64, 64, 0),
        (64, 32, 64),
        (128, 32, 0),
        (256, 32, 0),
        (256, 64, 64),
        (256, 128, 0),
        (256, 256, 0),
        (96, 32, 0),
        (80, 16, 0),
        (8, 8, 0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_matches_the_reference(dims, group, padding, dtype, index):
    pool = make_pool(20, 2, dims, group, padding=padding)
    picks = pool.owned[torch.randint(0, 20, (33,))].to(index)
    dense = dequantize(pool.k_codes, pool.k_scales, picks, head_dim=dims, dtype=dtype)
    assert dense.shape == (33, 2, dims) and dense.dtype == dtype
    assert_close(dense, reference.dequantize(pool.k_codes, pool.k_scales, picks, head_dim=dims))


def test_every_byte_value():
    codes = torch.arange(256, dtype=torch.uint8).view(64, 1, 4)
    scales = torch.tensor([1.0, 0.0]).expand(64, 1, 2).contiguous()
    dense = dequantize(codes, scales, torch.arange(64), head_dim=16, dtype=torch.float32)
    assert torch.equal(dense.int(), reference.unpack(codes))


def test_a_slice_of_a_larger_buffer_takes_the_result():
    pool = make_pool(9, 2, 64, 32)
    full = torch.full((2, 20, 3, 80), NAN)
    target = full[1, 4:13, :2, 8:72]
    result = dequantize(pool.v_codes, pool.v_scales, pool.owned, head_dim=64, dtype=torch.float32, out=target)
    assert result.data_ptr() == target.data_ptr()
    assert_close(target, reference.dequantize(pool.v_codes, pool.v_scales, pool.owned, head_dim=64))
    assert full.isnan().sum() == full.numel() - target.numel()


def test_no_slots_launch_nothing(monkeypatch):
    monkeypatch.setattr(dequant, "_dequant_kernel", None)
    pool = make_pool(3, 1, 64, 64)
    assert dequantize(pool.k_codes, pool.k_scales, pool.owned[:0], head_dim=64, dtype=torch.float16).shape == (0, 1, 64)


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16])
def test_half_scales_are_read(scales):
    pool = make_pool(5, 1, 64, 32, scales=scales)
    dense = dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=64, dtype=torch.float32)
    expected = reference.dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=64)
    assert_close(dense, expected)


def test_what_does_not_fit_is_refused():
    pool = make_pool(5, 1, 64, 32)
    with pytest.raises(ValueError, match="128 dims"):
        dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=128, dtype=torch.float32)
    for out in (torch.empty(5, 1, 32), torch.empty(5, 1, 64).half(), torch.empty(5, 1, 128)[..., ::2]):
        with pytest.raises(ValueError, match="out"):
            dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=64, dtype=torch.float32, out=out)
