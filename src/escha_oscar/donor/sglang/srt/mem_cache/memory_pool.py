"""The INT2 side of the KV pools: configuration, rotations, packed buffers with scales and zeros, accessors."""

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.environ import envs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OscarRotationConfig:
    """Where the K and V rotations are and how far rows are clipped before they are quantised.

    Raises ValueError naming the variable where a path is missing or a clip ratio lies outside [0, 1].
    """

    k_rotation_path: str
    v_rotation_path: str
    k_clip_ratio: float = 0.0
    v_clip_ratio: float = 0.0

    def __post_init__(self):
        for side, path, ratio in (
            ("K", self.k_rotation_path, self.k_clip_ratio),
            ("V", self.v_rotation_path, self.v_clip_ratio),
        ):
            if not path:
                raise ValueError(
                    f"SGLANG_OSCAR_{side}_ROTATION_PATH is not set: the int2 KV cache needs a K and a V rotation file, "
                    "named in the environment of the server process itself"
                )
            if not 0.0 <= ratio <= 1.0:
                raise ValueError(f"SGLANG_OSCAR_{side}_CLIP_RATIO must lie in [0, 1], got {ratio}")


def load_oscar_rotation_config() -> OscarRotationConfig:
    """Read the SGLANG_OSCAR_* variables now, not at import time; raises ValueError as OscarRotationConfig does."""
    return OscarRotationConfig(
        k_rotation_path=envs.SGLANG_OSCAR_K_ROTATION_PATH.get(),
        v_rotation_path=envs.SGLANG_OSCAR_V_ROTATION_PATH.get(),
        k_clip_ratio=envs.SGLANG_OSCAR_K_CLIP_RATIO.get(),
        v_clip_ratio=envs.SGLANG_OSCAR_V_CLIP_RATIO.get(),
    )


def load_oscar_rotations(
    path: str,
    layer_ids: Sequence[int],
    head_dim: int,
    kv_head_range: tuple[int, int, int],
    device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the rotations of ``layer_ids`` (global ids) as ``[layers, D, D]`` or ``[layers, heads, D, D]``.

    ``kv_head_range`` is (first, count, total): per-head files hold ``total`` heads, of which this rank keeps
    ``count``. The file is ``{"layers": {id: {"rotation": float [D, D] or [total, D, D]}}}`` with int or str ids.
    Raises ValueError naming the file and the layer where one is missing, doubled, misshapen or not orthogonal.
    """
    layers = torch.load(path, map_location="cpu", weights_only=True)
    layers = layers.get("layers") if isinstance(layers, dict) else None
    if not isinstance(layers, dict):
        raise ValueError(f"{path}: no 'layers' table in the rotation file")
    first, count, total = kv_head_range
    rotations = []
    for layer_id in layer_ids:
        R = _oscar_rotation_of_layer(path, layers, layer_id, head_dim, total).to(dtype)
        rotations.append(R[first : first + count] if R.dim() == 3 else R)
    if len({R.shape for R in rotations}) > 1:
        raise ValueError(f"{path}: some layers hold one rotation, others one for each KV head")
    logger.info(f"OSCAR rotations: {len(rotations)} layers of {tuple(rotations[0].shape)} from {path}")
    return torch.stack(rotations).to(device)


def _oscar_rotation_of_layer(path: str, layers: dict, layer_id: int, head_dim: int, total: int) -> torch.Tensor:
    entries = [layers[key] for key in (layer_id, str(layer_id)) if key in layers]
    if not entries:
        raise ValueError(f"{path}: layer {layer_id} is missing (keys are global layer ids)")
    R = entries[0]["rotation"].float()
    if len(entries) == 2 and not torch.equal(R, entries[1]["rotation"].float()):
        raise ValueError(f"{path}: layer {layer_id} stands there twice, as number and as text, with other values")
    if tuple(R.shape) not in ((head_dim, head_dim), (total, head_dim, head_dim)):
        raise ValueError(
            f"{path}: layer {layer_id} has shape {tuple(R.shape)}, "
            f"expected ({head_dim}, {head_dim}) or ({total}, {head_dim}, {head_dim})"
        )
    error = (R @ R.transpose(-1, -2) - torch.eye(head_dim)).abs().max().item()
    if not error <= 5e-3:
        raise ValueError(f"{path}: the rotation of layer {layer_id} is not orthogonal (error {error:.1e})")
    return R


def _int2_pool_kwargs(dtype, **kwargs) -> dict:
    """Return ``kwargs`` for an int2 pool, and none for every other dtype."""
    return kwargs if dtype == "int2" else {}


class MHATokenToKVPool:
    def _init_int2(
        self,
        model_dtype: torch.dtype | None,
        kv_cache_quant_group_size: int | None,
        scale_dtype: torch.dtype | None,
        rotation_layer_ids: Sequence[int] | None,
        kv_head_range: tuple[int, int, int] | None,
    ):
        """Resolve grouping, kernels and rotations before the buffers are made; does nothing for another dtype."""
        if self.dtype != "int2":
            return
        if type(self)._create_buffers is not MHATokenToKVPool._create_buffers or getattr(self, "use_hnd", False):
            raise NotImplementedError(f"{type(self).__name__} lays out its own buffers; int2 needs plain slot rows")
        self.model_dtype = model_dtype
        self.kv_cache_quant_group_size = kv_cache_quant_group_size
        self.scale_dtype = torch.float32 if scale_dtype is None else scale_dtype
        self.k_quant_group_size, self.k_num_scale_groups = self._resolve_quant_grouping(self.head_dim, "K")
        self.v_quant_group_size, self.v_num_scale_groups = self._resolve_quant_grouping(self.v_head_dim, "V")
        self._choose_int2_kernels()
        self._load_int2_rotations(rotation_layer_ids, kv_head_range)

    def _choose_int2_kernels(self):
        """Take the kernels that SGLANG_OSCAR_KERNELS names and refuse what they cannot do, before any allocation."""
        groups = (self.k_num_scale_groups, self.v_num_scale_groups)
        self._lloyd_max = envs.SGLANG_LLOYD_MAX.get()
        if self._lloyd_max and max(groups) > 1:
            raise ValueError(f"SGLANG_LLOYD_MAX needs one quantisation group per head, got {groups} for K and V")
        kernels = envs.SGLANG_OSCAR_KERNELS.get()
        if kernels not in ("native", "pr"):
            raise ValueError(f"SGLANG_OSCAR_KERNELS must be native or pr, got {kernels!r}")
        self._int2_native = kernels == "native"
        if not self._int2_native and any(n != 1 and n % 4 for n in groups):
            raise ValueError(f"SGLANG_OSCAR_KERNELS=pr takes 1 group or a multiple of 4, got {groups} for K and V")

    def _load_int2_rotations(self, layer_ids, kv_head_range):
        for side in ("K", "V"):
            ratio = os.environ.get(f"SGLANG_OSCAR_{side}_CLIP_RATIO", "0")
            try:
                float(ratio)
            except ValueError:
                raise ValueError(f"SGLANG_OSCAR_{side}_CLIP_RATIO is not a number: {ratio!r}") from None
        config = load_oscar_rotation_config()
        self._k_clip_ratio, self._v_clip_ratio = config.k_clip_ratio, config.v_clip_ratio
        ids = range(self.start_layer, self.start_layer + self.layer_num) if layer_ids is None else layer_ids
        heads = (0, self.head_num, self.head_num) if kv_head_range is None else kv_head_range
        dtype = torch.float32 if self.model_dtype is None else self.model_dtype
        # Outside the memory-saver region: what is there is dropped when the KV cache is released.
        self._R_k = load_oscar_rotations(
            config.k_rotation_path, layer_ids=ids, head_dim=self.head_dim, kv_head_range=heads,
            device=self.device, dtype=dtype,
        )  # fmt: skip
        self._R_v = load_oscar_rotations(
            config.v_rotation_path, layer_ids=ids, head_dim=self.v_head_dim, kv_head_range=heads,
            device=self.device, dtype=dtype,
        )  # fmt: skip

    def _resolve_quant_grouping(self, head_dim: int, tensor_name: str) -> tuple[int, int]:
        """Return (group size, groups per head); raises ValueError naming both numbers where they do not fit."""
        from sglang.srt.layers.attention.oscar_int2.layout import resolve_grouping

        try:
            return resolve_grouping(head_dim, self.kv_cache_quant_group_size)
        except ValueError as error:
            raise ValueError(f"{tensor_name}: {error}") from None

    def _allocate_scales_zeros_buffers(self, num_groups: int) -> list[torch.Tensor]:
        """Return one ``[slots, kv_heads, 2 * num_groups]`` buffer per layer, ``[s0, z0, s1, z1, ...]`` in a row."""
        shape = (self.size + self.page_size, self.head_num, 2 * num_groups)
        return [torch.zeros(shape, dtype=self.scale_dtype, device=self.device) for _ in range(self.layer_num)]

    def _create_int2_buffers(self):
        """Allocate packed codes ``uint8 [slots, kv_heads, D/4]`` and their scales and zeros, one list entry a layer."""
        rows = (self.size + self.page_size, self.head_num)
        with (
            self.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE),
            torch.cuda.use_mem_pool(self.custom_mem_pool) if self.enable_custom_mem_pool else nullcontext(),
        ):
            self.k_buffer, self.v_buffer = (
                [
                    torch.zeros((*rows, head_dim // 4), dtype=torch.uint8, device=self.device)
                    for _ in range(self.layer_num)
                ]
                for head_dim in (self.head_dim, self.v_head_dim)
            )
            self.k_scales_zeros = self._allocate_scales_zeros_buffers(self.k_num_scale_groups)
            self.v_scales_zeros = self._allocate_scales_zeros_buffers(self.v_num_scale_groups)
        pointers = [[x.data_ptr() for x in buffers] for buffers in (self.k_buffer, self.v_buffer)]
        self.k_data_ptrs, self.v_data_ptrs = (torch.tensor(p, dtype=torch.uint64, device=self.device) for p in pointers)
        self.data_ptrs = torch.cat([self.k_data_ptrs, self.v_data_ptrs], dim=0)
        self.data_strides = torch.tensor(
            [np.prod(x.shape[1:]) for x in self.k_buffer + self.v_buffer], device=self.device
        )

    def _int2_buffers(self) -> tuple[list[torch.Tensor], ...]:
        return self.k_buffer, self.v_buffer, self.k_scales_zeros, self.v_scales_zeros

    def _int2_size_bytes(self) -> tuple[int, int]:
        """Return the bytes of K and of V, scales and zeros counted in."""
        k, v, k_scales, v_scales = (sum(x.nbytes for x in buffers) for buffers in self._int2_buffers())
        return k + k_scales, v + v_scales

    def _int2_contiguous_buf_infos(self):
        """Return addresses, lengths and bytes per page of every buffer: K, V, then their scales and zeros."""
        buffers = [x for group in self._int2_buffers() for x in group]
        return (
            [x.data_ptr() for x in buffers],
            [x.nbytes for x in buffers],
            [x[0].nbytes * self.page_size for x in buffers],
        )

    def _int2_cpu_copy(self, indices):
        """Return the rows ``indices`` of every buffer on the CPU, chunk by chunk for each layer."""
        step = self.cpu_offloading_chunk_size
        chunks = [indices[i : i + step] for i in range(0, len(indices), step)]
        return [
            [[buffers[layer][chunk].to("cpu") for buffers in self._int2_buffers()] for chunk in chunks]
            for layer in range(self.layer_num)
        ]

    def _int2_load_cpu_copy(self, kv_cache_cpu, indices):
        """Write back what ``_int2_cpu_copy`` returned."""
        step = self.cpu_offloading_chunk_size
        for layer, chunks in enumerate(kv_cache_cpu):
            for number, rows in enumerate(chunks):
                chunk = indices[number * step : (number + 1) * step]
                for buffers, row in zip(self._int2_buffers(), rows, strict=True):
                    buffers[layer][chunk] = row.to(buffers[layer].device)

    def _int2_move(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor):
        """Copy whole slots, codes with their scales and zeros."""
        for buffers in self._int2_buffers():
            for x in buffers:
                x[tgt_loc] = x[src_loc]

    def _int2_unpacked_read(self, name: str):
        raise NotImplementedError(
            f"{name}() on an int2 pool: its rows are packed 2-bit codes; use get_raw_key_buffer, "
            "get_raw_value_buffer, get_key_scales_zeros and get_value_scales_zeros"
        )

    def _int2_wait(self, layer_id: int) -> int:
        """Wait for a layer-wise load and return the local index of ``layer_id``."""
        if self.layer_transfer_counter is not None:
            self.layer_transfer_counter.wait_until(layer_id - self.start_layer)
        return layer_id - self.start_layer

    def get_raw_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Return packed K codes, uint8 ``[slots, kv_heads, D/4]``."""
        return self.k_buffer[self._int2_wait(layer_id)]

    def get_raw_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Return packed V codes, uint8 ``[slots, kv_heads, D/4]``."""
        return self.v_buffer[self._int2_wait(layer_id)]

    def get_key_scales_zeros(self, layer_id: int) -> torch.Tensor:
        """Return scales and zeros of K, ``[slots, kv_heads, 2 * groups]``."""
        return self.k_scales_zeros[self._int2_wait(layer_id)]

    def get_value_scales_zeros(self, layer_id: int) -> torch.Tensor:
        """Return scales and zeros of V, ``[slots, kv_heads, 2 * groups]``."""
        return self.v_scales_zeros[self._int2_wait(layer_id)]

    def get_oscar_rotation(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R_k, R_v) of a layer, each ``[D, D]`` or ``[kv_heads, D, D]``."""
        index = layer_id - self.start_layer
        return self._R_k[index], self._R_v[index]

    def get_v_head_dim(self) -> int:
        """Return the unpacked head size of V."""
        return self.v_head_dim

    def _set_int2_kv_buffer(self, layer_id, loc, cache_k, cache_v, already_hadamard_transformed):
        """Rotate (unless the caller has), clip, quantise and pack rows ``[tokens, kv_heads, D]`` into slots ``loc``."""
        from sglang.QuantKernel.oscar_rotation_clip_int2_kv import quantized_set_kv_int2_pretransformed_clip_triton
        from sglang.srt.layers.attention.oscar_int2 import rotate, store_kv

        index = layer_id - self.start_layer
        buffers = [group[index] for group in self._int2_buffers()]
        cache_k = cache_k.view(-1, self.head_num, self.head_dim)
        cache_v = cache_v.view(-1, self.head_num, self.v_head_dim)
        R_k, R_v = (None, None) if already_hadamard_transformed else self.get_oscar_rotation(layer_id)
        if self._int2_native:
            store_kv(
                cache_k, cache_v, loc, *buffers, R_k=R_k, R_v=R_v,
                clip_ratio_k=self._k_clip_ratio, clip_ratio_v=self._v_clip_ratio, lloyd_max=self._lloyd_max,
            )  # fmt: skip
            return
        if R_k is not None:
            cache_k, cache_v = rotate(cache_k, R_k), rotate(cache_v, R_v)
        quantized_set_kv_int2_pretransformed_clip_triton(
            cache_k, cache_v, loc, *buffers, self._k_clip_ratio, self._v_clip_ratio, lloyd_max=self._lloyd_max
        )


class HybridLinearKVPool:
    def _int2_wait(self, layer_id: int):
        """Wait for a layer-wise load, in trees that have one at this level."""
        wait = getattr(self, "_wait_for_layer", None)
        if wait is not None:
            wait(layer_id)

    def get_raw_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Return packed K codes of a full-attention layer, uint8 ``[slots, kv_heads, D/4]``."""
        self._int2_wait(layer_id)
        return self.full_kv_pool.get_raw_key_buffer(self._transfer_full_attention_id(layer_id))

    def get_raw_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Return packed V codes of a full-attention layer, uint8 ``[slots, kv_heads, D/4]``."""
        self._int2_wait(layer_id)
        return self.full_kv_pool.get_raw_value_buffer(self._transfer_full_attention_id(layer_id))

    def get_key_scales_zeros(self, layer_id: int) -> torch.Tensor:
        """Return scales and zeros of K of a full-attention layer, ``[slots, kv_heads, 2 * groups]``."""
        self._int2_wait(layer_id)
        return self.full_kv_pool.get_key_scales_zeros(self._transfer_full_attention_id(layer_id))

    def get_value_scales_zeros(self, layer_id: int) -> torch.Tensor:
        """Return scales and zeros of V of a full-attention layer, ``[slots, kv_heads, 2 * groups]``."""
        self._int2_wait(layer_id)
        return self.full_kv_pool.get_value_scales_zeros(self._transfer_full_attention_id(layer_id))

    def get_oscar_rotation(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R_k, R_v) of a full-attention layer, each ``[D, D]`` or ``[kv_heads, D, D]``."""
        return self.full_kv_pool.get_oscar_rotation(self._transfer_full_attention_id(layer_id))
