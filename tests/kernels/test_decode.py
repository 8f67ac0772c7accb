import pytest
import torch

from escha_oscar.kernels import decode, decode_attention_fwd_quantized, reference

from .support import NAN, assert_close, indptr, make_pool, scattered, scratch

SCALE = 0.11


def attend(pool, q, lengths, *, v_dims=None, splits=8, index=torch.int64, dtype=torch.int32, own=True, **options):
    """Run the kernel on poisoned outputs; return ``(o, lse, expected o, expected lse)``."""
    batch, heads, dims = q.shape
    starts, picks = indptr(lengths, dtype, q.device), scattered(pool, lengths, dtype=index)
    o = torch.full((batch, heads, v_dims or dims), NAN, dtype=q.dtype, device=q.device)
    lse = torch.full((batch, heads), NAN, device=q.device)
    splits_of = scratch(batch, heads, splits, v_dims or dims, q.device) if own else (None, None, None, splits)
    decode_attention_fwd_quantized(
        q, *pool.buffers, o, starts, picks, *splits_of, SCALE, "int2", output_lse=lse, **options
    )
    expected = reference.decode_attention(q, *pool.buffers, starts, picks, SCALE, **options)
    return o, lse, *expected


def check(*args, scale=1.0, **kwargs):
    o, lse, expected, expected_lse = attend(*args, **kwargs)
    assert o.dtype == args[1].dtype
    assert_close(o, expected, scale=scale)
    finite = expected_lse.isfinite()
    assert torch.equal(lse[~finite].double(), expected_lse[~finite])
    assert_close(lse[finite], expected_lse[finite], torch.float16)


def queries(batch, heads, dims, dtype=torch.float16, seed=5, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, heads, dims, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("group", [1, 3, 5, 6, 7, 8, 12, 20, 24])
def test_any_number_of_query_heads_per_kv_head(group):
    pool = make_pool(40, 2, 64, 32)
    check(pool, queries(1, 2 * group, 64), [37])


@pytest.mark.parametrize(
    ("dims", "group_size"),
    [(64, 64), (64, 16), (128, 32), (128, 64), (128, 128), (256, 32), (256, 64), (256, 128), (256, 256), (512, 64)],
)
def test_head_dims_and_groups(dims, group_size):
    pool = make_pool(70, 1, dims, group_size)
    check(pool, queries(2, 3, dims), [67, 0])


@pytest.mark.parametrize(("dims", "group_size"), [(48, 48), (80, 16), (96, 32), (96, 96), (192, 64), (64, 8)])
def test_head_dims_that_are_no_power_of_two(dims, group_size):
    pool = make_pool(40, 2, dims, group_size)
    check(pool, queries(2, 6, dims), [33, 4])


@pytest.mark.parametrize("dims", [64, 256])
def test_float32_queries_are_exact(dims):
    pool = make_pool(40, 1, dims, 32)
    check(pool, queries(2, 6, dims, torch.float32), [35, 3])


@pytest.mark.parametrize(("dims", "v_dims"), [(192, 128), (64, 128), (256, 64)])
def test_k_and_v_of_different_dims(dims, v_dims):
    pool = make_pool(40, 2, dims, 64, v_head_dim=v_dims, v_group_size=32)
    check(pool, queries(2, 4, dims), [35, 3], v_dims=v_dims)


@pytest.mark.parametrize("batch", [1, 2, 17])
def test_ragged_batches_with_empty_requests(batch):
    pool = make_pool(60, 1, 64, 32)
    lengths = [(13 * i * i) % 37 if i % 4 != 3 else 0 for i in range(1, batch + 1)]
    check(pool, queries(batch, 6, 64), lengths)


def test_batch_of_nothing_launches_nothing(monkeypatch):
    monkeypatch.setattr(decode, "merge_kernel", None)
    monkeypatch.setattr(decode, "decode_codes_kernel", None)
    pool = make_pool(4, 1, 64, 32)
    o, *_ = attend(pool, queries(0, 4, 64), [])
    assert o.shape == (0, 4, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "options",
    [
        {"logit_cap": 2.0},
        {"sinks": torch.linspace(-1, 3, 6)},
        {"xai_temperature_len": 9},
        {"logit_cap": 30.0, "sinks": torch.linspace(2, -4, 6).half(), "xai_temperature_len": 3},
    ],
    ids=["cap", "sinks", "temperature", "all"],
)
def test_logit_cap_sinks_and_temperature(options, dtype):
    pool = make_pool(40, 1, 64, 32)
    check(pool, queries(3, 6, 64, dtype), [34, 0, 5], **options)


@pytest.mark.parametrize("padding", [64, 7])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16])
def test_strided_buffers_and_scale_dtypes(padding, scales):
    pool = make_pool(40, 2, 64, 32, padding=padding, scales=scales)
    check(pool, queries(2, 6, 64), [34, 8])


@pytest.mark.parametrize(("index", "dtype"), [(torch.int32, torch.int32), (torch.int64, torch.int64)])
def test_index_types(index, dtype):
    check(make_pool(40, 1, 64, 32), queries(2, 6, 64), [34, 8], index=index, dtype=dtype)


@pytest.mark.parametrize("splits", [1, 64])
@pytest.mark.parametrize("own", [True, False])
def test_scratch_of_any_size(splits, own):
    check(make_pool(90, 1, 64, 32), queries(1, 6, 64), [333], splits=splits, own=own)


@pytest.mark.parametrize("sinks", [None, torch.linspace(-1, 3, 6)])
def test_more_pieces_than_a_step_of_the_merge_holds(monkeypatch, sinks):
    monkeypatch.setattr(decode, "merge_config", lambda *_: {"BLOCK_S": 4, "BLOCK_D": 32, "num_warps": 1})
    check(make_pool(90, 1, 64, 32), queries(3, 6, 64), [333, 0, 40], sinks=sinks)


@pytest.mark.parametrize(
    ("pieces", "step"), [(0, 32), (1, 32), (31, 32), (65, 64), (100, 128), (130, 128), (527, 512), (4000, 512)]
)
def test_the_merge_takes_about_all_pieces_in_one_step(pieces, step):
    config = decode.merge_config(pieces, 256)
    assert config["BLOCK_S"] == step
    assert config["BLOCK_S"] * config["BLOCK_D"] <= 64 * 32 * config["num_warps"]
    assert decode.merge_config(pieces, 16)["BLOCK_D"] == 16


def test_queries_that_are_a_view():
    pool = make_pool(40, 1, 64, 32)
    wide = queries(2, 12, 128)
    check(pool, wide[:, ::2, 32:96], [34, 8])
    check(pool, wide[:, ::2, 33:97], [34, 8])
    check(pool, queries(2, 6, 65)[..., :64], [34, 8])
    check(pool, queries(2, 64, 6).transpose(1, 2), [34, 8])


def test_heads_never_cross_a_kv_head():
    """V of KV head h holds 10 h and 10 h + 3 in turns, so a wrong head shows at once."""
    for batch, heads, kv_heads in ((16, 12, 2), (1, 24, 4), (1, 20, 4)):
        v = torch.zeros(8, kv_heads, 64)
        v[..., 1::2] = 3.0
        v += 10.0 * torch.arange(kv_heads)[:, None]
        pool = make_pool(8, kv_heads, 64, 64, v=v)
        o, *_ = attend(pool, queries(batch, heads, 64), [5] * batch)
        expected = (10.0 * (torch.arange(heads) // (heads // kv_heads))).expand(batch, heads)
        assert torch.allclose(o[..., 0].float(), expected, atol=0.05)
        assert torch.allclose(o[..., 1].float(), expected + 3.0, atol=0.05)


@pytest.mark.parametrize("factor", [1e-2, 1.0, 2e4])
def test_values_of_any_size(factor):
    """Weights times scales are rounded to float16 inside: neither overflow nor underflow may show."""
    v = torch.randn(60, 1, 64) * torch.logspace(-3, 0, 60)[:, None, None] * factor
    pool = make_pool(60, 1, 64, 32, v=v)
    o, _, expected, _ = attend(pool, queries(2, 6, 64) * 3, [57, 20])
    assert float((o.double() - expected).norm() / expected.norm()) < (2e-3 if factor >= 1 else 2e-2)


@pytest.mark.parametrize("factor", [1e-4, 300.0])
def test_queries_of_any_size(factor):
    pool = make_pool(60, 1, 64, 32)
    check(pool, (queries(2, 6, 64).float() * factor).half(), [57, 20], scale=2.0)


def test_keys_and_values_far_from_zero():
    k, v = torch.randn(2, 60, 1, 64) + 50.0
    pool = make_pool(60, 1, 64, 32, k=k, v=v)
    o, _, expected, _ = attend(pool, queries(2, 6, 64) * 0.1, [57, 20])
    assert float((o.double() - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize("broken", ["dtype", "width", "heads", "indptr", "groups"])
def test_what_does_not_fit_is_refused(broken):
    pool = make_pool(8, 2, 64, 32)
    q = queries(2, 6, 64)
    o, starts, picks = torch.empty_like(q), indptr([3, 4]), scattered(pool, [3, 4])
    kind, buffers = "int2", list(pool.buffers)
    if broken == "dtype":
        kind = "int4"
    elif broken == "width":
        buffers[0] = buffers[0][..., :8]
    elif broken == "heads":
        q, o = q[:, :5], o[:, :5]
    elif broken == "indptr":
        starts = starts[:2]
    else:
        buffers[2] = torch.zeros(19, 2, 6)
    with pytest.raises(ValueError, match=r"int4|widths|share|cover|scale buffer"):
        decode_attention_fwd_quantized(q, *buffers, o, starts, picks, None, None, None, 8, SCALE, kind)
