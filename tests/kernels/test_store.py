import pytest
import torch

from escha_oscar.kernels import dequantize, reference, rotate, rotate_inverse, store, store_kv

from .support import NAN, orthogonal, strided

# The bytes of a slot nobody wrote; a store must not touch it.
UNTOUCHED = 0xA5


class Buffers:
    """Empty K and V buffers, for the kernel and for the reference."""

    def __init__(self, slots, heads, dims, groups, scales=torch.float32, padding=0, v_dims=None):
        self.all = []
        for _ in range(2):
            made = []
            for d in (dims, v_dims or dims):
                made.append(strided((slots, heads, d // 4), torch.uint8, padding, UNTOUCHED))
                made.append(strided((slots, heads, 2 * groups), scales, padding, NAN))
            k_codes, k_scales, v_codes, v_scales = made
            self.all.append((k_codes, v_codes, k_scales, v_scales))
        self.kernel, self.expected = self.all

    def run(self, k, v, loc, **options):
        store_kv(k, v, loc, *self.kernel, **options)
        reference.store_kv(k, v, loc, *self.expected, **options)

    def assert_equal(self):
        for ours, expected in zip(self.kernel, self.expected, strict=True):
            assert torch.equal(_plain(ours), _plain(expected))


def _plain(tensor):
    """``tensor`` with its poison made comparable."""
    return tensor.nan_to_num(7.0) if tensor.is_floating_point() else tensor


def rows(tokens, heads, dims, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(tokens, heads, dims, generator=generator) * 3 + 0.5).to(dtype) for _ in range(2)]


def slots(count, seed=0, dtype=torch.int64):
    return (1 + torch.randperm(3 * count, generator=torch.Generator().manual_seed(seed)))[:count].to(dtype)


@pytest.mark.parametrize(
    ("dims", "groups"),
    [(64, 1), (64, 2), (128, 4), (256, 8), (256, 4), (256, 2), (256, 1), (96, 3), (96, 1), (80, 5), (8, 1)],
)
def test_codes_and_scales_bit_for_bit(dims, groups):
    buffers = Buffers(8, 2, dims, groups)
    buffers.run(*rows(2, 2, dims), slots(2))
    buffers.assert_equal()


@pytest.mark.parametrize(("dims", "groups", "ratio"), [(64, 1, 0.92), (256, 8, 0.96), (96, 3, 1.0), (128, 1, 0.004)])
def test_clipping_is_over_the_whole_row(dims, groups, ratio):
    buffers = Buffers(8, 1, dims, groups)
    buffers.run(*rows(2, 1, dims), slots(2), clip_ratio_k=ratio, clip_ratio_v=ratio / 2)
    buffers.assert_equal()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes_and_slot_types(dtype, index):
    buffers = Buffers(12, 1, 64, 2)
    k, v = rows(2, 1, 64, dtype)
    buffers.run(k, v, slots(2, dtype=index), clip_ratio_k=0.96)
    buffers.assert_equal()


@pytest.mark.parametrize("tokens", [1, 16, 65])
def test_token_counts_around_the_tiles(tokens):
    buffers = Buffers(3 * tokens + 1, 1, 64, 1)
    k, v = rows(tokens, 1, 64)
    buffers.run(k, v, slots(tokens))
    buffers.assert_equal()


def test_strided_buffers_and_rows():
    buffers = Buffers(16, 2, 64, 2, padding=64)
    wide_k, wide_v = rows(3, 2, 192)
    buffers.run(wide_k[..., 64:128], wide_v[..., :64], slots(3))
    buffers.assert_equal()
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in rows(3, 2, 64, seed=3)]
    buffers.run(*transposed, slots(3, seed=4))
    buffers.assert_equal()


def test_bfloat16_scales_hold_the_rounded_numbers():
    buffers = Buffers(12, 1, 64, 2, scales=torch.bfloat16)
    loc = slots(4)
    buffers.run(*rows(4, 1, 64), loc)
    assert torch.equal(buffers.kernel[0], buffers.expected[0])
    # The interpreter cuts where a GPU rounds to nearest.
    assert torch.allclose(buffers.kernel[2][loc], buffers.expected[2][loc], rtol=2**-7)


def test_k_and_v_of_different_dims():
    buffers = Buffers(12, 2, 192, 1, v_dims=128)
    k, v = rows(2, 2, 192)
    buffers.run(k, v[..., :128], slots(2))
    for ours, expected in zip(buffers.kernel[::2], buffers.expected[::2], strict=True):
        assert torch.equal(_plain(ours), _plain(expected))


@pytest.mark.parametrize("tokens", [3, store.FUSED_ROTATION_TOKENS + 2])
@pytest.mark.parametrize("per_head", [False, True])
def test_rotation_inside_the_store(per_head, tokens):
    dims, heads = 64, 2
    R_k = orthogonal(heads, dims, dims, seed=1) if per_head else orthogonal(dims, dims, seed=1)
    R_v = orthogonal(dims, dims, seed=2)
    buffers = Buffers(3 * tokens + 1, heads, dims, 2)
    k, v = rows(tokens, heads, dims)
    loc = slots(tokens)
    buffers.run(k, v, loc, R_k=R_k, R_v=R_v, clip_ratio_k=0.96)
    for ours, expected in zip(buffers.kernel[:2], buffers.expected[:2], strict=True):
        # A value on the border of two codes may fall to either side of it.
        off = (reference.unpack(ours[loc]) - reference.unpack(expected[loc])).abs()
        assert off.max() <= 1 and off.float().mean() < 1e-3
    assert torch.allclose(buffers.kernel[2][loc], buffers.expected[2][loc], rtol=1e-4, atol=1e-4)
    turned = dequantize(buffers.kernel[0], buffers.kernel[2], loc, head_dim=dims, dtype=torch.float32)
    back = rotate_inverse(turned, R_k)
    assert float((back - k).norm() / k.norm()) < 0.6
    assert float((rotate(turned, R_k) - k).norm() / k.norm()) > 0.9


@pytest.mark.parametrize("value", [5.0, 10000.0])
@pytest.mark.parametrize(("dims", "groups"), [(96, 1), (96, 3), (128, 4)])
def test_padding_never_enters_the_range(dims, groups, value):
    x = torch.linspace(value, value + 1, dims).expand(2, 1, dims).contiguous()
    buffers = Buffers(8, 1, dims, groups)
    buffers.run(x, x, torch.tensor([3, 5]))
    buffers.assert_equal()
    assert (buffers.kernel[2][3, 0, ::2] < 1 / 3 + 1e-3).all()


def test_near_constant_rows_keep_every_code_in_range():
    low = torch.tensor(10000.0)
    x = low.expand(1, 1, 64).clone()
    x[..., ::3] = torch.nextafter(low, torch.tensor(torch.inf))
    x = torch.cat([x, torch.full((1, 1, 64), -7.25), torch.zeros(1, 1, 64)])
    buffers = Buffers(8, 1, 64, 1)
    buffers.run(x, x, torch.tensor([1, 2, 3]))
    buffers.assert_equal()


def test_outliers_stay_finite_and_half_scales_are_refused():
    x = torch.linspace(-1, 4, 64).expand(1, 1, 64).clone()
    x[..., 7] = -200000.0
    buffers = Buffers(4, 1, 64, 1)
    buffers.run(x, x, torch.tensor([1]))
    buffers.assert_equal()
    half = Buffers(4, 1, 64, 1, scales=torch.float16)
    with pytest.raises(ValueError, match="float16"):
        store_kv(x, x, torch.tensor([1]), *half.kernel)


def test_lloyd_max_with_one_group_matches_and_with_several_is_refused():
    buffers = Buffers(16, 2, 64, 1)
    k, v = rows(3, 2, 64)
    buffers.run(k, v, slots(3), lloyd_max=True, clip_ratio_k=0.96)
    for ours, expected in zip(buffers.kernel, buffers.expected, strict=True):
        if ours.is_floating_point():
            assert torch.allclose(_plain(ours), _plain(expected), rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(ours, expected)
    several = Buffers(16, 2, 256, 4)
    with pytest.raises(ValueError, match="4 groups of 64"):
        store_kv(*rows(5, 2, 256), slots(5), *several.kernel, lloyd_max=True)


def test_nothing_to_store_launches_nothing(monkeypatch):
    monkeypatch.setattr(store, "_store_kernel", None)
    buffers = Buffers(4, 1, 64, 1)
    k, v = rows(0, 1, 64)
    buffers.run(k, v, torch.zeros(0, dtype=torch.int64))
    buffers.assert_equal()


@pytest.mark.parametrize(("tokens", "launches"), [(1, 1), (16, 1), (0, 0)])
def test_k_and_v_share_one_launch(monkeypatch, tokens, launches):
    seen = []

    class Counting:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: seen.append(grid)

    monkeypatch.setattr(store, "_store_kernel", Counting())
    R = orthogonal(64, 64)
    store_kv(*rows(tokens, 2, 64), torch.arange(tokens), *Buffers(20, 2, 64, 1).kernel, R_k=R, R_v=R)
    assert len(seen) == launches
    assert all(len(grid) == 1 for grid in seen)


@pytest.mark.parametrize("broken", ["dtype", "codes", "loc", "heads", "rotation", "ratio", "groups"])
def test_what_does_not_fit_is_refused(broken):
    k, v = rows(3, 2, 64)
    loc = torch.arange(3)
    k_codes, v_codes, k_scales, v_scales = Buffers(4, 2, 64, 1).kernel
    options = {}
    if broken == "dtype":
        k = k.double()
    elif broken == "codes":
        k_codes = k_codes[..., :8]
    elif broken == "loc":
        loc = loc[:2]
    elif broken == "heads":
        v_scales = v_scales[:, :1]
    elif broken == "rotation":
        options["R_k"] = orthogonal(3, 64, 64)
    elif broken == "ratio":
        options["clip_ratio_v"] = 1.5
    else:
        k_scales = torch.zeros(4, 2, 6)
    with pytest.raises(ValueError, match=r"must be|do not|does not|have"):
        store_kv(k, v, loc, k_codes, v_codes, k_scales, v_scales, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("per_head", [False, True])
def test_rotate_and_back(per_head, dtype):
    R = orthogonal(2, 64, 64) if per_head else orthogonal(64, 64)
    x = torch.randn(5, 6, 64).to(dtype)
    turned = rotate(x, R, kv_group_num=3)
    assert turned.dtype == dtype and turned.is_contiguous()
    tolerance = 2e-2 if dtype == torch.float16 else 1e-5
    assert torch.allclose(turned.double(), reference.rotate(x, R, 3), atol=tolerance)
    assert torch.allclose(rotate_inverse(turned, R, kv_group_num=3).double(), x.double(), atol=tolerance)
    assert rotate(x[:0], R, kv_group_num=3).shape == (0, 6, 64)
    with pytest.raises(ValueError, match="does not fit"):
        rotate(x, orthogonal(4, 64, 64), kv_group_num=3)
