"""The kernel suite on a CUDA device: ``TRITON_INTERPRET=0 pytest -m gpu tests/gpu``."""

import pytest
import torch

from escha_oscar.kernels import (
    decode_attention_fwd_quantized,
    dequantize,
    extend_attention,
    reference,
    rotate,
    store_kv,
)
from tests.kernels import test_decode as on_cpu
from tests.kernels.support import assert_close, indptr, make_pool, orthogonal, scattered, scratch
from tests.kernels.test_prefill import check as check_extend

pytestmark = pytest.mark.gpu
CUDA = "cuda"
HALF = [torch.float16, torch.bfloat16]


def check_decode(pool, batch, heads, dims, lengths, dtype, **options):
    q = on_cpu.queries(batch, heads, dims, dtype, device=CUDA)
    on_cpu.check(pool, q, lengths, **options)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24])
@pytest.mark.parametrize("batch", [1, 3, 16, 17])
def test_decode_groups_and_batches(group, batch, dtype):
    pool = make_pool(300, 2, 256, 64, device=CUDA)
    check_decode(pool, batch, 2 * group, 256, [(97 * i * i + 5) % 700 for i in range(batch)], dtype)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize(
    ("dims", "group_size"),
    [(64, 64), (64, 32), (64, 16), (128, 32), (128, 64), (128, 128), (256, 16), (256, 32), (256, 64), (256, 128),
     (256, 256), (512, 128), (48, 48), (80, 16), (96, 32), (192, 64)],
)  # fmt: skip
def test_decode_head_dims_and_groups(dims, group_size, dtype):
    pool = make_pool(300, 1, dims, group_size, device=CUDA)
    check_decode(pool, 3, 6, dims, [1001, 0, 33], dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "options",
    [
        {"logit_cap": 2.0},
        {"xai_temperature_len": 9},
        {"logit_cap": 30.0, "xai_temperature_len": 100, "sinks": True},
        {"sinks": True},
    ],
    ids=["cap", "temperature", "all", "sinks"],
)
@pytest.mark.parametrize("group_size", [32, 64])
def test_decode_options(options, dtype, group_size):
    options = {k: torch.linspace(-1, 3, 6, device=CUDA) if k == "sinks" else v for k, v in options.items()}
    pool = make_pool(300, 1, 256, group_size, device=CUDA)
    check_decode(pool, 3, 6, 256, [901, 0, 33], dtype, **options)


@pytest.mark.parametrize("padding", [64, 7])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float16])
def test_decode_strides_and_scale_dtypes(padding, scales):
    pool = make_pool(300, 2, 256, 64, padding=padding, scales=scales, device=CUDA)
    check_decode(pool, 3, 12, 256, [901, 0, 33], torch.bfloat16)


def test_decode_is_captured_and_replayed_with_new_lengths():
    pool = make_pool(3000, 2, 256, 64, device=CUDA)
    q = on_cpu.queries(4, 12, 256, torch.bfloat16, device=CUDA)
    o, room = torch.empty_like(q), scratch(4, 12, 8, 256, CUDA)
    picks = pool.owned[torch.randint(0, 3000, (6000,), device=CUDA)]
    starts = indptr([1] * 4, device=CUDA)
    call = lambda: decode_attention_fwd_quantized(q, *pool.buffers, o, starts, picks, *room, 0.1, "int2")  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for lengths in ([5000, 0, 7, 300], [1, 2, 3, 4], [1500] * 4):
        starts.copy_(indptr(lengths))
        o.fill_(float("nan"))
        graph.replay()
        expected, _ = reference.decode_attention(q, *pool.buffers, starts, picks, 0.1)
        assert_close(o, expected)


def test_decode_reads_what_the_kernels_just_before_it_wrote():
    """Both stages may start early: replayed without a pause, they must give what they give one at a time."""
    pool = make_pool(3000, 2, 256, 64, device=CUDA)
    before = [buffer.clone() for buffer in pool.buffers]
    picks = torch.cat([pool.owned[:2], pool.owned[torch.randint(0, 3000, (6000,), device=CUDA)]])
    q = torch.empty(2, 12, 256, dtype=torch.bfloat16, device=CUDA)
    o, starts, room = torch.empty_like(q), indptr([1, 1], device=CUDA), scratch(2, 12, 8, 256, CUDA)
    steps = [
        (indptr([n, n // 2], device=CUDA), *torch.randn(3, 2, 12, 256, device=CUDA).bfloat16().unbind())
        for n in (1, 40, 700, 3000) * 5
    ]

    def sequence(pause):
        results = []
        for lengths, query, k, v in steps:
            q.copy_(query + (results[-1] if results else 0))
            pause()
            starts.copy_(lengths)
            pause()
            store_kv(k[:, :2].contiguous(), v[:, :2].contiguous(), picks[:2], *pool.buffers)
            pause()
            decode_attention_fwd_quantized(q, *pool.buffers, o, starts, picks, *room, 0.1, "int2")
            pause()
            results.append(o.clone())
        return results

    slow = sequence(torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast = sequence(lambda: None)
    for _ in range(3):
        for buffer, original in zip(pool.buffers, before, strict=True):
            buffer.copy_(original)
        graph.replay()
        for mine, expected in zip(fast, slow, strict=True):
            assert torch.equal(mine, expected)


@pytest.mark.parametrize("dims", [64, 128, 256, 96])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("tokens", [1, 16, 70, 5000])
def test_store_bit_for_bit(tokens, dtype, dims):
    for group_size in {dims, 32}:
        k, v = torch.randn(2, tokens, 2, dims, device=CUDA).mul(3).add(0.5).to(dtype)
        loc = torch.randperm(3 * tokens, device=CUDA)[:tokens]
        shape = (3 * tokens, 2)
        mine, expected = (
            [torch.zeros(*shape, dims // 4, dtype=torch.uint8, device=CUDA) for _ in range(2)]
            + [torch.zeros(*shape, 2 * dims // group_size, device=CUDA) for _ in range(2)]
            for _ in range(2)
        )
        options = {"clip_ratio_k": 0.96, "clip_ratio_v": 0.92}
        store_kv(k, v, loc, *mine, **options)
        # On the CPU: torch divides by a number as IEEE wants there, and by its rounded reciprocal on a GPU.
        expected = [buffer.cpu() for buffer in expected]
        reference.store_kv(k.cpu(), v.cpu(), loc.cpu(), *expected, **options)
        for ours, theirs in zip(mine, expected, strict=True):
            assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("tokens", [3, 100])
def test_store_rotates(tokens, per_head, dtype):
    R = orthogonal(2, 256, 256, device=CUDA) if per_head else orthogonal(256, 256, device=CUDA)
    k, v = torch.randn(2, tokens, 2, 256, device=CUDA).to(dtype)
    codes = [torch.zeros(tokens, 2, 64, dtype=torch.uint8, device=CUDA) for _ in range(2)]
    scales = [torch.zeros(tokens, 2, 8, device=CUDA) for _ in range(2)]
    loc = torch.arange(tokens, device=CUDA, dtype=torch.int32)
    store_kv(k, v, loc, *codes, *scales, R_k=R)
    expected, sz = reference.quantize(reference.rotate(k, R).to(dtype), 64)
    off = (reference.unpack(codes[0]) - reference.unpack(expected)).abs()
    assert off.max() <= 1 and off.float().mean() < 5e-3
    assert torch.allclose(scales[0], sz, rtol=2e-2, atol=2e-2)
    assert torch.allclose(rotate(k, R).double(), reference.rotate(k, R), atol=4e-2)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize(("dims", "group_size"), [(64, 16), (128, 128), (256, 32), (256, 64), (256, 128), (96, 32)])
def test_dequantize(dims, group_size, dtype):
    pool = make_pool(700, 2, dims, group_size, device=CUDA)
    dense = dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=dims, dtype=dtype)
    assert_close(dense, reference.dequantize(pool.k_codes, pool.k_scales, pool.owned, head_dim=dims))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize(
    ("dims", "group_size", "heads"), [(256, 64, 12), (256, 32, 16), (128, 128, 2), (64, 32, 14), (96, 96, 6)]
)
def test_extend(dims, group_size, heads, dtype):
    check_extend(
        [0, 500, 64, 0], [300, 1, 20, 7], dims=dims, group_size=group_size, heads=heads, dtype=dtype, device=CUDA
    )


@pytest.mark.parametrize(
    "options",
    [{"causal": False}, {"logit_cap": 2.0}, {"xai_temperature_len": 300}, {"sinks": True}],
    ids=lambda o: next(iter(o)),
)
def test_extend_in_pieces_and_passes(monkeypatch, options):
    from escha_oscar.kernels import prefill

    monkeypatch.setattr(prefill, "PIECE_BYTES", 1)
    monkeypatch.setattr(prefill, "STATE_BYTES", 1)
    options = {k: torch.linspace(-1, 3, 12, device=CUDA) if k == "sinks" else v for k, v in options.items()}
    check_extend([900, 0, 1, 270], [260, 1, 1, 3], dims=64, heads=12, dtype=torch.bfloat16, device=CUDA, **options)


def test_slots_beyond_two_gigabytes_of_codes():
    slots, heads, dims = 4194400, 8, 256
    far = torch.tensor([4194303, 4194304, 4194309, 4194399], device=CUDA)
    codes = [torch.zeros(slots, heads, dims // 4, dtype=torch.uint8, device=CUDA) for _ in range(2)]
    scales = [torch.zeros(slots, heads, 2, device=CUDA) for _ in range(2)]
    k, v = torch.randn(2, 4, heads, dims, dtype=torch.bfloat16, device=CUDA)
    for loc in (far, far.int()):
        store_kv(k, v, loc, *codes, *scales)
        expected, sz = (part.cuda() for part in reference.quantize(k.cpu()))
        assert torch.equal(codes[0][far], expected) and torch.equal(scales[0][far], sz)
        near = torch.tensor([0, 1, 4194302, 4194305, 4194308], device=CUDA)
        assert codes[0][near].eq(0).all() and scales[0][near].eq(0).all()
        dense = dequantize(codes[0], scales[0], loc, head_dim=dims, dtype=torch.float32)
        assert_close(dense, reference.dequantize(codes[0], scales[0], far, head_dim=dims))
        q = torch.randn(1, 48, dims, dtype=torch.bfloat16, device=CUDA)
        o = torch.empty_like(q)
        starts = indptr([4], device=CUDA)
        decode_attention_fwd_quantized(q, *codes, *scales, o, starts, loc, None, None, None, 8, 0.1, "int2")
        assert_close(o, reference.decode_attention(q, *codes, *scales, starts, far, 0.1)[0])


def test_seventy_thousand_rows():
    pool = make_pool(100, 1, 64, 32, device=CUDA)
    lengths = [i % 3 for i in range(70000)]
    picks = scattered(pool, lengths)
    q = torch.randn(70000, 1, 64, dtype=torch.bfloat16, device=CUDA)
    o, starts = torch.full_like(q, float("nan")), indptr(lengths, device=CUDA)
    k = torch.randn(70000, 1, 64, dtype=torch.bfloat16, device=CUDA)
    rows = torch.arange(70001, dtype=torch.int32, device=CUDA)
    extend_attention(q, k, k, o, *pool.buffers, rows, starts, picks, max_len_extend=1, sm_scale=0.1)
    few = torch.randint(0, 70000, (40,)).tolist()
    for row in few:
        expected = reference.extend_attention(
            q[row : row + 1], k[row : row + 1], k[row : row + 1], *pool.buffers, indptr([1]), indptr([lengths[row]]),
            picks[int(starts[row]) : int(starts[row + 1])], sm_scale=0.1,
        )  # fmt: skip
        assert_close(o[row : row + 1], expected)


def test_launches_on_the_device_of_the_tensors():
    last = torch.cuda.device_count() - 1
    pool = make_pool(300, 2, 256, 64, device=f"cuda:{last}")
    q = on_cpu.queries(2, 12, 256, torch.bfloat16, device=f"cuda:{last}")
    with torch.cuda.device(0):
        on_cpu.check(pool, q, [200, 7])
