"""Trees that are broken in one way each, as edits of the good ones, with the finding that each must give."""

# ruff: noqa: E501 - the edits quote whole lines of the trees

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ENVIRON = "sglang/srt/environ.py"
SERVER_ARGS = "sglang/srt/server_args.py"
RUNNER = "sglang/srt/model_executor/model_runner.py"
MIXIN = "sglang/srt/model_executor/model_runner_kv_cache_mixin.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"
BACKEND = "sglang/srt/layers/attention/triton_backend.py"
DECODE = "sglang/srt/layers/attention/triton_ops/decode_attention.py"
CLIP = "sglang/QuantKernel/oscar_rotation_clip_int2_kv.py"
PREFILL = "sglang/srt/layers/attention/quantized_kv_prefill.py"
KV_QUANT = "sglang/srt/mem_cache/kv_quant_kernels.py"

CONFIGURATOR = "sglang/srt/model_executor/pool_configurator.py"
CELL_SIZE = """
import torch


class DefaultPoolConfigurator:
    def _compute_cell_size(self, mr, num_layers):
        return num_layers * torch._utils._element_size(mr.kv_cache_dtype)


def build():
    return DefaultPoolConfigurator()
"""

Files = dict[str, str]


@dataclass(frozen=True)
class Edit:
    """One replacement that must find its text exactly ``times`` times."""

    path: str
    old: str
    new: str
    times: int = 1

    def __call__(self, files: Files) -> None:
        assert files[self.path].count(self.old) == self.times, f"{self.old!r} in {self.path}"
        files[self.path] = files[self.path].replace(self.old, self.new)


def append(path: str, text: str) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        files[path] += text

    return edit


def remove(path: str) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        del files[path]

    return edit


HADAMARD_AT_THE_TOP = Edit(
    PREFILL,
    "try:\n    from sglang.jit_kernel.hadamard import hadamard_transform\nexcept ImportError:\n    hadamard_transform = None\n",
    "from sglang.jit_kernel.hadamard import hadamard_transform\n",
)

#: plain name -> (expected code, edit); every row starts from the tree merged by us with the PR's own helpers.
BROKEN_OURS: dict[str, tuple[str, Callable[[Files], None]]] = {
    "a copied file is gone": ("file-missing", lambda files: _copied_file_gone(files)),
    "a merged file is empty": ("file-empty", lambda files: _emptied(files)),
    "a syntax error": ("syntax", append(ENVIRON, "def broken(:\n")),
    "a return outside a function": ("syntax", append(ENVIRON, "return 1\n")),
    "an environment field is gone": (
        "symbol-missing",
        Edit(ENVIRON, "    SGLANG_LLOYD_MAX = EnvBool(False)\n", ""),
    ),
    "a field only in a comment": (
        "symbol-missing",
        Edit(ENVIRON, "    SGLANG_LLOYD_MAX = EnvBool(False)\n", "    # SGLANG_LLOYD_MAX = EnvBool(False)\n"),
    ),
    "a field that is no Env": (
        "symbol-kind",
        Edit(ENVIRON, "SGLANG_LLOYD_MAX = EnvBool(False)", "SGLANG_LLOYD_MAX = False"),
    ),
    "int2 is no choice": ("symbol-missing", Edit(SERVER_ARGS, ", 'int2'])", "])")),
    "no group size option": (
        "symbol-missing",
        Edit(SERVER_ARGS, "A[Optional[int], Arg(help=\"Elements of one scale group\")]", "Optional[int]"),
    ),
    "our start-up check is gone": (
        "symbol-missing",
        lambda files: _renamed(files, SERVER_ARGS, "_check_int2_kv_cache", "_check_group"),
    ),
    "a pool method outside its class": (
        "symbol-kind",
        Edit(POOL, "    def get_key_scales_zeros(self, layer_id):\n        return self.k_scales_zeros[layer_id]\n", "") ,
    ),
    "a kernel without jit": (
        "symbol-kind",
        Edit(DECODE, "@triton.jit\ndef _fwd_grouped_kernel_stage1_quant_int2", "def _fwd_grouped_kernel_stage1_quant_int2"),
    ),
    "an entry point inside a class": (
        "symbol-kind",
        Edit(
            DECODE,
            "def decode_attention_fwd_normal_quant_int2(q, k_buffer, v_buffer, sm_scale, logit_cap=0.0):\n    return q\n",
            "class Holder:\n    def decode_attention_fwd_normal_quant_int2(self, q):\n        return q\n",
        ),
    ),
    "a pull request helper is gone": (
        "symbol-missing",
        lambda files: _renamed(files, CLIP, "_clip_index", "_index_of_clip"),
    ),
    "nothing chooses int2": (
        "dtype-branch-missing",
        Edit(RUNNER, 'elif self.server_args.kv_cache_dtype == "int2":', 'elif self.server_args.kv_cache_dtype == "x":'),
    ),
    "int2 cell size from the element size": (
        "cell-size",
        Edit(MIXIN, 'if self.kv_cache_dtype == "int2":', 'if self.kv_cache_dtype == "x":'),
    ),
    "extend does not dispatch": (
        "backend-int2-missing",
        Edit(
            BACKEND,
            'if getattr(self.pool, "dtype", None) == "int2":\n            return self._forward_extend_int2(q, k, v, layer, forward_batch)\n        return q',
            "return q",
        ),
    ),
    "no rotation is loaded": (
        "pool-int2-missing",
        Edit(POOL, 'load_oscar_rotations(load_oscar_rotation_config().k_path, 1, 0, 256, "cpu")', "None"),
    ),
    "the clamp is not applied": (
        "head-tile-clamp-missing",
        Edit(DECODE, "BLOCK_H = _safe_block_h(4, kv_group_num)", "BLOCK_H = 4"),
    ),
    "the stock launcher is not clamped": (
        "head-tile-clamp-missing",
        Edit(DECODE, "BLOCK_H = _safe_block_h(16, kv_group_num)", "BLOCK_H = 16"),
    ),
    "a constexpr is bound twice": (
        "constexpr-bound-twice",
        Edit(
            DECODE,
            "    tl.store(Out, tl.load(Q) * NUM_GROUPS_QUARTER)",
            "    if NUM_GROUPS > 1:\n        NUM_GROUPS_QUARTER: tl.constexpr = 2\n    tl.store(Out, tl.load(Q) * NUM_GROUPS_QUARTER)",
        ),
    ),
    "the clip launcher refuses fp16": (
        "fp16-not-accepted",
        Edit(CLIP, "dtype in (torch.bfloat16, torch.float16)", "dtype == torch.bfloat16"),
    ),
    "a method pasted twice": (
        "duplicate-definition",
        Edit(
            POOL,
            "    def _create_buffers(self):",
            "    def _resolve_quant_grouping(self, head_dim, tensor_name):\n        return 1\n\n    def _create_buffers(self):",
        ),
    ),
    "a function pasted twice": (
        "duplicate-definition",
        append(KV_QUANT, "\n\ndef _get_num_scale_groups(scales_zeros):\n    return 1\n"),
    ),
    "a name that was never imported": (
        "undefined-name",
        Edit(DECODE, "return head_dim // (scales_zeros", "return cdiv(1, 1) * head_dim // (scales_zeros"),
    ),
    "an undefined name in an annotated field": (
        "undefined-name",
        Edit(SERVER_ARGS, 'Arg(help="Elements of one scale group")', 'Arg(help=GROUP_HELP)'),
    ),
    "an import of a missing name": (
        "unresolved-import",
        append(KV_QUANT, "\n\ndef late():\n    from sglang.srt.environ import nothing_here\n\n    return nothing_here\n"),
    ),
    "an import of a missing module": ("unresolved-import", HADAMARD_AT_THE_TOP),
    "an unknown keyword": (
        "call-signature",
        Edit(DECODE, "sm_scale, logit_cap=logit_cap)", "sm_scale, v_scale=1.0)"),
    ),
    "an argument is missing": (
        "call-signature",
        Edit(BACKEND, "layer.layer_id, forward_batch.indices, q.dtype)", "layer.layer_id, q.dtype)"),
    ),
    "a bound entry point is called wrongly": (
        "call-signature",
        Edit(BACKEND, ", sm_scale=1.0\n", ", scale=1.0\n"),
    ),
    "a kernel launch leaves out a parameter": (
        "call-signature",
        Edit(DECODE, "NUM_GROUPS=4, BLOCK_H=BLOCK_H)", "NUM_GROUPS=4)"),
    ),
    "a pool accessor is called wrongly": (
        "call-signature",
        Edit(PREFILL, "kv_pool.get_raw_key_buffer(layer_id)", "kv_pool.get_raw_key_buffer(layer_id, model_dtype)"),
    ),
    "the backend is never constructed": (
        "never-constructed",
        Edit(RUNNER, "self.attn_backend = TritonAttnBackend(self)", "self.is_ours = isinstance(self, TritonAttnBackend)"),
    ),
    "a forwarded accessor keeps the global id": (
        "hybrid-forwarding",
        Edit(
            POOL,
            "get_value_scales_zeros(self._transfer_full_attention_id(layer_id))",
            "get_value_scales_zeros(layer_id)",
        ),
    ),
    "the hybrid store drops a word": (
        "hybrid-forwarding",
        Edit(POOL, "            already_hadamard_transformed=already_hadamard_transformed,\n", ""),
    ),
    "the hybrid branch comes without the group size": (
        "hybrid-branch",
        Edit(MIXIN, "self.size, self.kv_cache_dtype, self.full_ids, **self._int2_pool_kwargs()", "self.size, self.kv_cache_dtype, self.full_ids"),
    ),
    "the inner pool comes without the group size": (
        "hybrid-branch",
        Edit(POOL, "pool_class(size, dtype, kv_cache_quant_group_size=kv_cache_quant_group_size)", "pool_class(size, dtype)"),
    ),
    "the plain pool comes without the group size": (
        "pool-arguments",
        Edit(MIXIN, "MHATokenToKVPool(self.size, self.kv_cache_dtype, **self._int2_pool_kwargs())", "MHATokenToKVPool(self.size, self.kv_cache_dtype)"),
    ),
    "the backend reads a packed width": (
        "packed-head-dim",
        Edit(
            BACKEND,
            'if self.pool.dtype == "int2":\n            self.v_head_dim = self.pool.v_head_dim\n        else:\n            self.v_head_dim = self.pool.get_value_buffer(0).shape[-1]',
            "self.v_head_dim = self.pool.get_value_buffer(0).shape[-1]",
        ),
    ),
    "the hybrid pool reads a packed width": (
        "packed-head-dim",
        Edit(POOL, '        if self.dtype == "int2":\n            return self.full_kv_pool.v_head_dim\n        return', "        return"),
    ),
    "an accessor that does not reach the inner pool": (
        "hybrid-forwarding",
        Edit(
            POOL,
            "        return self.full_kv_pool.get_key_scales_zeros(self._transfer_full_attention_id(layer_id))",
            "        return self.scales[self._transfer_full_attention_id(layer_id)]",
        ),
    ),
    "a module that is not there": ("unresolved-import", append(KV_QUANT, "\n\nimport sglang.srt.nowhere\n")),
    "a star import of nothing": ("unresolved-import", append(KV_QUANT, "\n\nfrom sglang.srt.nowhere import *\n")),
    "too many dots": ("unresolved-import", append(KV_QUANT, "\n\nfrom .nowhere import x\n")),
    "an argument is given twice": (
        "call-signature",
        Edit(DECODE, "sm_scale, logit_cap=logit_cap)", "sm_scale, logit_cap, logit_cap=logit_cap)"),
    ),
    "a cell size that moved to another file": (
        "cell-size",
        lambda files: files.update({CONFIGURATOR: CELL_SIZE}),
    ),
    "the escha entries are gone": (
        "escha-registration",
        Edit(
            "sglang/srt/layers/quantization/__init__.py",
            'from sglang.srt.layers.quantization.escha import EschaConfig\n\nBASE_QUANTIZATION_METHODS = {"escha": EschaConfig, "eschamoe": EschaConfig}',
            'BASE_QUANTIZATION_METHODS = {"fp8": None}  # "escha" was here',
        ),
    ),
}  # fmt: skip


def _copied_file_gone(files: Files) -> None:
    """Delete a copied file together with everything that speaks of it, so that only its absence is left."""
    del files[PREFILL]
    import_block = files[BACKEND].index("from sglang.srt.layers.attention.quantized_kv_prefill")
    end = files[BACKEND].index("\n\n\nclass TritonAttnBackend")
    files[BACKEND] = files[BACKEND][:import_block] + files[BACKEND][end:]
    body = files[BACKEND].index("        q, k, v, inverse")
    end = files[BACKEND].index("    def forward_decode")
    files[BACKEND] = files[BACKEND][:body] + "        return q\n\n" + files[BACKEND][end:]


def _emptied(files: Files) -> None:
    files["sglang/srt/layers/attention/oscar_int2/store.py"] = "# nothing left\n"
    files["sglang/srt/layers/attention/oscar_int2/__init__.py"] = "from . import store\n"


def _renamed(files: Files, path: str, old: str, new: str) -> None:
    assert old in files[path]
    files[path] = files[path].replace(old, new)


BROKEN_BY_HAND: dict[str, tuple[str, str, Callable[[Files], None]]] = {
    "decode keeps the stock kernel": (
        "backend-int2-missing",
        "decode_attention_fwd_quantized",
        lambda files: files.update({BACKEND: _stock_decode(files[BACKEND])}),
    ),
    "rotations are not forwarded": (
        "hybrid-forwarding",
        "get_oscar_rotation",
        Edit(
            POOL,
            "    def get_oscar_rotation(self, layer_id):\n        return self.full_kv_pool.get_oscar_rotation(self._transfer_full_attention_id(layer_id))\n",
            "",
        ),
    ),
    "raw codes are not forwarded": (
        "hybrid-forwarding",
        "get_raw_key_buffer",
        Edit(
            POOL,
            "    def get_raw_key_buffer(self, layer_id):\n        return self.full_kv_pool.get_raw_key_buffer(self._transfer_full_attention_id(layer_id))\n",
            "",
        ),
    ),
    "no quantising store": (
        "pool-int2-missing",
        "quantized_set_kv_int2",
        Edit(POOL, "quantized_set_kv_int2_pretransformed_clip_triton(\n", "print(\n"),
    ),
    "nothing is allocated": (
        "pool-int2-missing",
        "allocation",
        lambda files: _no_int2_in_the_pool(files),
    ),
    "decode is not dispatched": (
        "backend-int2-missing",
        "dtype",
        Edit(
            BACKEND,
            'is_int2 = getattr(self.pool, "dtype", None) == "int2"\n        if is_int2:\n            return self._decode_packed(q, layer, forward_batch)\n        return',
            "return",
        ),
    ),
    "a symbol of the article is missing": (
        "symbol-missing",
        "MHATokenToKVPool.get_raw_value_buffer",
        Edit(
            POOL,
            "    def get_raw_value_buffer(self, layer_id):\n        return self.v_buffer[layer_id]\n",
            "",
        ),
    ),
}  # fmt: skip


def _stock_decode(text: str) -> str:
    """Let the packed decode call the stock kernel."""
    head, _, rest = text.partition("        return self.decode_attention_fwd_quantized(")
    tail = rest[rest.index("\n        )") + len("\n        )") :]
    body = head + "        return self.decode_attention_fwd(q, q, q)" + tail
    return body.replace("decode_attention_fwd_quantized", "decode_attention_fwd")


def _no_int2_in_the_pool(files: Files) -> None:
    before, marker, after = files[POOL].partition("class HybridLinearKVPool")
    files[POOL] = before.replace('== "int2"', '== "int4"') + marker + after
