from __future__ import annotations

from pathlib import Path

import pytest

from escha_oscar.errors import UsageError
from escha_oscar.serving import budget
from escha_oscar.serving.budget import GB, GIB, CacheFormat, KVDtype, MambaStrategy, Memory, TokenBytes
from escha_oscar.serving.model_config import HeadShape, ModelConfig, read_model_config
from tests.support.checkpoints import TWO_SIZES, write_config

FP16 = CacheFormat(KVDtype.FP16)
FP8 = CacheFormat(KVDtype.FP8)
INT2_32 = CacheFormat(KVDtype.INT2, 32)
INT2_64 = CacheFormat(KVDtype.INT2, 64)


def test_moe_pool_gives_the_logged_sizes(moe: ModelConfig) -> None:
    per_token = budget.token_bytes(moe, 2, INT2_32)
    line = "KV Cache is allocated. #tokens: 350257, K size: 0.21 GB, V size: 0.21 GB"
    assert budget.log_line(350257, per_token, scales=False) == line
    pool = per_token.times(350257)
    assert f"{(pool.k_scales + pool.k_zeros) / GIB:.3f}" == "0.209"
    assert f"{(pool.v_scales + pool.v_zeros) / GIB:.3f}" == "0.209"
    counted = "KV Cache is allocated. #tokens: 350257, K size: 0.42 GB, V size: 0.42 GB"
    assert budget.log_line(350257, per_token, scales=True) == counted


def test_only_full_attention_layers_are_counted(moe: ModelConfig) -> None:
    layer = budget.layer_bytes(moe.full, 2, INT2_32)
    assert budget.token_bytes(moe, 2, INT2_32) == layer.times(10)
    assert f"{layer.times(10).k_codes * 350257 / GIB:.2f}" == "0.21"
    assert f"{layer.times(40).k_codes * 350257 / GIB:.2f}" == "0.84"  # what counting every layer would claim


def test_dense_host_pool_line_and_kv_line_differ_by_unit_alone(dense: ModelConfig) -> None:
    size = budget.token_bytes(dense, 2, INT2_64).total * 210001
    assert (f"{size / GB:.2f}", f"{size / GIB:.2f}") == ("1.29", "1.20")


def test_full_context_in_fp16_and_int2(moe: ModelConfig) -> None:
    """The article prints 2.52 and 0.39 GB; docs/budget.md says which quantities give those digits."""
    fp16 = budget.token_bytes(moe, 2, FP16).total
    assert f"{262144 * fp16 / GIB:.2f}" == "2.50"
    assert f"{262144 * fp16 / GB:.2f}" == "2.68"
    int2 = {
        (
            group,
            scale,
        ): f"{262144 * budget.token_bytes(moe, 2, CacheFormat(KVDtype.INT2, group, scale)).total / GIB:.2f}"
        for group in (32, 64, 128, 256)
        for scale in ("float32", "bfloat16")
    }
    assert int2 == {
        (32, "float32"): "0.62",
        (32, "bfloat16"): "0.47",
        (64, "float32"): "0.47",
        (64, "bfloat16"): "0.39",
        (128, "float32"): "0.39",
        (128, "bfloat16"): "0.35",
        (256, "float32"): "0.35",
        (256, "bfloat16"): "0.33",
    }


def test_both_printed_figures_belong_to_one_pool_a_little_above_the_context(moe: ModelConfig) -> None:
    fp16 = budget.token_bytes(moe, 2, FP16).total
    int2 = budget.token_bytes(moe, 2, CacheFormat(KVDtype.INT2, 64, "bfloat16")).total
    prints = [
        n for n in range(262144, 265800) if f"{n * fp16 / GIB:.2f}" == "2.52" and f"{n * int2 / GIB:.2f}" == "0.39"
    ]
    assert (prints[0], prints[-1], len(prints)) == (263717, 264765, 1049)


def test_codes_of_the_smaller_pool_are_the_other_reading_of_the_int2_figure(moe: ModelConfig) -> None:
    codes = budget.token_bytes(moe, 2, INT2_32).codes
    assert (f"{303751 * codes / GB:.2f}", f"{262144 * codes / GB:.2f}") == ("0.39", "0.34")


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        pytest.param(FP16, TokenBytes(512, 512), id="fp16"),
        pytest.param(FP8, TokenBytes(256, 256), id="fp8"),
        pytest.param(CacheFormat(KVDtype.INT2), TokenBytes(64, 64, 4, 4, 4, 4), id="one group"),
        pytest.param(CacheFormat(KVDtype.INT2, 256), TokenBytes(64, 64, 4, 4, 4, 4), id="one group by size"),
        pytest.param(INT2_64, TokenBytes(64, 64, 16, 16, 16, 16), id="group 64"),
        pytest.param(INT2_32, TokenBytes(64, 64, 32, 32, 32, 32), id="group 32"),
        pytest.param(CacheFormat(KVDtype.INT2, 32, "float16"), TokenBytes(64, 64, 16, 16, 16, 16), id="half scales"),
    ],
)
def test_layer_bytes_of_one_head_of_256(cache: CacheFormat, expected: TokenBytes) -> None:
    assert budget.layer_bytes(HeadShape(1, 256, 256), 1, cache) == expected


def test_k_and_v_of_different_size() -> None:
    assert budget.layer_bytes(HeadShape(2, 192, 128), 1, INT2_64) == TokenBytes(96, 64, 24, 16, 24, 16)


@pytest.mark.parametrize(("heads", "tp", "per_gpu"), [(2, 1, 2), (2, 2, 1), (2, 4, 1), (4, 2, 2), (1, 8, 1)])
def test_heads_are_replicated_never_halved(heads: int, tp: int, per_gpu: int) -> None:
    assert budget.kv_heads_per_gpu(heads, tp) == per_gpu


def test_heads_that_do_not_spread_are_refused() -> None:
    with pytest.raises(UsageError, match="4 KV heads cannot be spread over --tp 3"):
        budget.kv_heads_per_gpu(4, 3)


@pytest.mark.parametrize(("dim", "group"), [(96, 64), (64, 128), (256, 0), (256, -32), (256, 48)])
def test_groups_that_do_not_tile_the_head_are_refused_with_both_numbers(dim: int, group: int) -> None:
    with pytest.raises(UsageError, match=f"group size {group} does not divide head size {dim}"):
        budget.scale_groups(dim, group)


def test_codes_must_fill_bytes() -> None:
    with pytest.raises(UsageError, match="head size 66 is no multiple of 4"):
        budget.scale_groups(66, None)


def test_k_may_tile_where_v_does_not() -> None:
    with pytest.raises(UsageError, match="group size 96 does not divide head size 128"):
        budget.layer_bytes(HeadShape(1, 192, 128), 1, CacheFormat(KVDtype.INT2, 96))


def test_sliding_layers_count_with_their_own_shape(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, TWO_SIZES))
    expected = 8 * 2 * 512 * 2 + 40 * 8 * 2 * 256 * 2
    assert budget.token_bytes(model, 1, FP16).total == expected


@pytest.mark.parametrize(
    ("strategy", "radix", "overlap", "slots"),
    [
        (MambaStrategy.NO_BUFFER, True, False, 3),
        (MambaStrategy.EXTRA_BUFFER, True, True, 5),
        (MambaStrategy.EXTRA_BUFFER, True, False, 4),
        (MambaStrategy.EXTRA_BUFFER_LAZY, True, True, 4),
        (MambaStrategy.EXTRA_BUFFER, False, True, 1),
    ],
)
def test_mamba_slots_per_request(strategy: MambaStrategy, radix: bool, overlap: bool, slots: int) -> None:
    assert budget.slots_per_request(strategy, radix=radix, overlap=overlap) == slots


@pytest.mark.parametrize(("asked", "slots", "running"), [(16, 64, 12), (16, 80, 16), (12, 40, 8), (4, 64, 4)])
def test_concurrency_clamps_to_the_slots(asked: int, slots: int, running: int) -> None:
    per_request = budget.slots_per_request(MambaStrategy.EXTRA_BUFFER)
    assert budget.concurrency(asked, slots, per_request) == running


def test_pool_over_chunk() -> None:
    assert f"{budget.chunk_slots(210000, 4096):.1f}" == "51.3"
    assert f"{budget.chunk_slots(210000, 8192):.1f}" == "25.6"


def test_mamba_slot_of_the_dense_model_is_near_the_measured_38_mb(dense: ModelConfig) -> None:
    assert dense.linear is not None
    assert budget.mamba_slot_bytes(dense.linear, 2, "float16") == 48 * (5120 * 3 * 2 + 24 * 128 * 128 * 2)
    assert budget.mamba_slot_bytes(dense.linear, 2, "float16") / (1 << 20) == pytest.approx(37.4, abs=0.1)
    assert budget.mamba_slot_bytes(dense.linear, 2) == 48 * (5120 * 3 * 2 + 24 * 128 * 128 * 4)


def test_mamba_groups_are_replicated_where_they_do_not_spread(dense: ModelConfig) -> None:
    assert dense.linear is not None
    with pytest.raises(UsageError, match="48 recurrent-state heads cannot be spread over --tp 5"):
        budget.mamba_slot_bytes(dense.linear, 5)
    at_three = budget.mamba_slot_bytes(dense.linear, 3, "float16")
    assert at_three == 48 * ((6144 + 2 * 3 * 128) // 3 * 3 * 2 + 16 * 128 * 128 * 2)


def test_unknown_state_dtype_is_refused(dense: ModelConfig) -> None:
    assert dense.linear is not None
    with pytest.raises(UsageError, match="unknown mamba state dtype 'int8'"):
        budget.mamba_slot_bytes(dense.linear, 2, "int8")


def test_fit_subtracts_weights_and_slots() -> None:
    per_token = TokenBytes(512, 512)
    memory = Memory(vram=10_000_000, mem_fraction=0.5, weights=3_000_000)
    assert budget.fit(memory, per_token, 0, None).tokens == 2_000_000 // 1024
    with_slots = budget.fit(memory, per_token, 100_000, 4)
    assert (with_slots.tokens, with_slots.mamba_bytes) == (1_600_000 // 1024, 400_000)


def test_fit_leaves_the_split_to_the_runtime_ratio() -> None:
    left = budget.fit(Memory(1_900_000, 1.0, 0), TokenBytes(50, 50), 1000, None)
    assert (left.mamba_slots, left.tokens) == (900, 10_000)


def test_nothing_left_says_what_took_it() -> None:
    with pytest.raises(UsageError) as caught:
        budget.fit(Memory(12 * GIB, 0.5, 6 * GIB), TokenBytes(512, 512), 0, None)
    assert caught.value.found == "6.00 GiB usable, 6.00 GiB weights, 0.00 GiB recurrent state"


def test_sessions_by_length_and_clamp() -> None:
    counts = budget.sessions(350257, (8192, 32768, 262144), 12)
    assert [(s.length, s.fit, s.clamped) for s in counts] == [(8192, 12, True), (32768, 10, False), (262144, 1, False)]
    assert [s.fit for s in budget.sessions(350257, (8192,))] == [42]
