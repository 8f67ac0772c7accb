import pytest
import torch

from escha_oscar.kernels import extend_attention, prefill, reference

from .support import NAN, assert_close, indptr, make_pool, scattered

SCALE = 0.12


def check(
    prefixes, new, *, heads=6, kv_heads=2, dims=64, v_dims=None, group_size=32, dtype=torch.float16, extra=0,
    padding=0, device="cpu", index=torch.int64, lists=False, poison=False, longest=None, **options,
):  # fmt: skip
    """One batch against the reference, on poisoned outputs and with poisoned foreign slots."""
    v_dims = v_dims or dims
    pool = make_pool(50, kv_heads, dims, group_size, v_head_dim=v_dims, padding=padding, device=device)
    if poison:
        pool.k_scales.fill_(NAN), pool.v_scales.fill_(NAN)
    tokens = sum(new)
    generator = torch.Generator().manual_seed(9)
    q, k, v = (
        torch.randn(tokens, n, d, generator=generator).to(dtype).to(device)
        for n, d in ((heads, dims), (kv_heads, dims), (kv_heads, v_dims))
    )
    o = torch.full((tokens, heads, v_dims), NAN, dtype=dtype, device=device)
    picks = scattered(pool, prefixes, dtype=index)
    # Positions past the prefixes hold no slot: an index that no buffer has.
    longer = torch.cat([picks, torch.full((extra,), 10**6, dtype=index, device=device)])
    starts, rows = indptr(prefixes, device=device), indptr(new, device=device)
    known = {"prefix_lens_cpu": prefixes, "extend_lens_cpu": new} if lists else {}
    extend_attention(
        q,
        k,
        v,
        o,
        *pool.buffers,
        rows,
        starts,
        longer,
        max_len_extend=max(new, default=0) if longest is None else longest,
        sm_scale=SCALE,
        **options,
        **known,
    )
    expected = reference.extend_attention(q, k, v, *pool.buffers, rows, starts, picks, sm_scale=SCALE, **options)
    assert_close(o, expected)


def test_ragged_batch_with_empty_prefixes():
    check([0, 5, 64, 0], [3, 1, 2, 7])


def test_no_prefix_reads_no_slot():
    check([0, 0], [5, 9], poison=True)


@pytest.mark.parametrize("group", [1, 5, 6, 7, 8, 12])
def test_any_number_of_query_heads_per_kv_head(group):
    check([40, 3], [4, 2], heads=2 * group)


@pytest.mark.parametrize(("dims", "group_size"), [(128, 32), (256, 64), (256, 128), (256, 256), (96, 32), (80, 80)])
def test_head_dims_and_groups(dims, group_size):
    check([21], [3], dims=dims, group_size=group_size, heads=2, kv_heads=1)


def test_k_and_v_of_different_dims():
    check([21, 0], [3, 4], dims=192, v_dims=128, heads=2, kv_heads=1, group_size=64)


def test_float32():
    check([21, 40], [3, 17], dtype=torch.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"logit_cap": 2.0},
        {"sinks": torch.linspace(-1, 3, 6)},
        {"xai_temperature_len": 9},
        {"logit_cap": 30.0, "sinks": torch.linspace(2, -4, 6), "xai_temperature_len": 3, "causal": False},
    ],
    ids=["full", "cap", "sinks", "temperature", "all"],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_options(monkeypatch, options, pieces):
    if pieces > 1:
        monkeypatch.setattr(prefill, "PIECE_BYTES", 1)
    check([0, 300 if pieces > 1 else 30], [4, 3], heads=6, kv_heads=1, **options)


def test_pieces_cut_requests_anywhere(monkeypatch):
    monkeypatch.setattr(prefill, "PIECE_BYTES", 1)
    check([300, 1, 0, 250], [2, 5, 3, 1], heads=3, kv_heads=1)


@pytest.mark.parametrize("tokens", [1, 5, 20])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_take_several_passes_when_the_state_is_small(monkeypatch, tokens, causal):
    monkeypatch.setattr(prefill, "PIECE_BYTES", 1)
    monkeypatch.setattr(prefill, "STATE_BYTES", tokens * 3 * 64 * 4)
    check([300, 40, 0], [50, 3, 1], heads=3, kv_heads=1, causal=causal)


def test_decode_rows_beside_a_chunk_take_no_pass_of_their_own():
    assert prefill.tokens_a_pass(1520 + 16, 8, 256) == 1520 + 16
    assert prefill.tokens_a_pass(6132 + 12, 12, 256) == prefill.tokens_a_pass(6144, 12, 256) == 2048


def test_the_longest_row_count_may_be_a_tensor_of_the_cpu():
    check([9, 20], [3, 2], longest=torch.tensor(3))


def test_decode_rows_beside_a_long_request():
    check([33, 0, 7, 60], [1, 90, 1, 1], heads=3, kv_heads=1)


@pytest.mark.parametrize("lists", [False, True])
def test_indices_longer_than_the_prefixes(lists):
    check([9, 20], [3, 2], extra=40, lists=lists, index=torch.int32)


def test_strided_buffers():
    check([9, 20], [3, 2], padding=64)


def test_memory_grows_with_neither_prefix_nor_rows():
    """What prefill allocates beyond its result: one piece and one state, whatever the lengths."""
    per_head = 2 * 256 * 2
    for kv_heads, prefix in ((1, 49152), (1, 196608), (2, 196608), (8, 10**6)):
        piece = prefill.piece_tokens(kv_heads, 512, 2, prefix) * kv_heads * per_head
        assert piece <= prefill.PIECE_BYTES
    assert prefill.PIECE_BYTES + prefill.STATE_BYTES <= 32 << 20


@pytest.mark.parametrize("new", [[], [0, 0]])
def test_nothing_new_launches_nothing(monkeypatch, new):
    monkeypatch.setattr(prefill, "_extend_kernel", None)
    monkeypatch.setattr(prefill, "launch_dequant", None)
    check([5] * len(new), new)


@pytest.mark.parametrize("broken", ["rows", "heads", "width", "indptr"])
def test_what_does_not_fit_is_refused(broken):
    pool = make_pool(8, 2, 64, 32)
    q, k = torch.randn(5, 6, 64), torch.randn(5, 2, 64)
    v, o, starts, rows = k, torch.empty_like(q), indptr([3, 4]), indptr([2, 3])
    buffers = list(pool.buffers)
    if broken == "rows":
        v = v[:4]
    elif broken == "heads":
        q, o = q[:, :5], o[:, :5]
    elif broken == "width":
        buffers[1] = buffers[1][..., :8]
    else:
        rows = indptr([5])
    with pytest.raises(ValueError, match=r"do not fit|do not hold|differ"):
        extend_attention(q, k, v, o, *buffers, rows, starts, scattered(pool, [3, 4]), max_len_extend=3, sm_scale=SCALE)
