"""The KV pools learn INT2: early branches, the store path, the inner pool of hybrid models, new functions."""

from __future__ import annotations

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import memory_pool
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited, merged

CONTEXT = Context(
    memory_pool.TARGET,
    chosen(
        {
            "OscarRotationConfig": "@dataclass(frozen=True)\nclass OscarRotationConfig:\n    path: str\n",
            "_int2_pool_kwargs": "def _int2_pool_kwargs(dtype, **kwargs):\n    return kwargs\n",
            "MHATokenToKVPool._init_int2": "def _init_int2(self, *args):\n    self.args = args\n",
            "MHATokenToKVPool.get_oscar_rotation": "def get_oscar_rotation(self, layer_id):\n    return helper()\n",
            "HybridLinearKVPool.get_oscar_rotation": "def get_oscar_rotation(self, layer_id):\n    return None\n",
        },
        helpers={"helper": "def helper():\n    return 1\n"},
        imports=("from dataclasses import dataclass", "import os", "import numpy as np"),
    ),
)

BEFORE = forks.POOL_TEXT


def early(text: str) -> str:
    return f'        if self.dtype == "int2":\n            {text}\n'


FUNCTIONS = """\
def helper():
    return 1


@dataclass(frozen=True)
class OscarRotationConfig:
    path: str


def _int2_pool_kwargs(dtype, **kwargs):
    return kwargs


"""
INIT = """\
        # Buffers come last
        self._init_int2(
            model_dtype,
            kv_cache_quant_group_size,
            scale_dtype,
            rotation_layer_ids,
            kv_head_range,
        )
        self._create_buffers()
"""
STORE = """\
        if self.dtype == "int2":
            self._set_int2_kv_buffer(
                layer_id, loc, cache_k, cache_v, already_hadamard_transformed
            )
            return
"""
HYBRID_STORE = """\
        if self.dtype == "int2":
            self.full_kv_pool.set_kv_buffer(
                None,
                loc,
                cache_k,
                cache_v,
                layer_id_override=layer_id,
                already_hadamard_transformed=already_hadamard_transformed,
            )
            return
"""
INNER = """\
            layer_num=len(full_attention_layer_ids),
            device=device,
            **_int2_pool_kwargs(
                dtype,
                model_dtype=model_dtype,
                kv_cache_quant_group_size=kv_cache_quant_group_size,
                rotation_layer_ids=full_attention_layer_ids,
                kv_head_range=kv_head_range,
            ),
"""
GROUP = "        kv_cache_quant_group_size: Optional[int] = None,\n"
HEADS = "        kv_head_range: Optional[Tuple[int, int, int]] = None,\n"
DTYPE = "        model_dtype: Optional[torch.dtype] = None,\n"
POOL_PARAMETERS = (
    DTYPE + GROUP + "        scale_dtype: Optional[torch.dtype] = None,\n"
    "        rotation_layer_ids: Optional[List[int]] = None,\n" + HEADS
)
LAST_MHA = "            buffer[tgt_loc] = buffer[src_loc]\n"
LAST_HYBRID = "        return self.full_kv_pool.get_value_buffer(0).shape[-1]\n"
SIGNATURE = "v_head_dim: Optional[int] = None,\n        start_layer: Optional[int] = None,\n"
PLAIN_BUFFERS = "        # Buffers come last\n        self._create_buffers()\n"
AFTER = edited(
    BEFORE,
    ("from sglang.srt.utils import TorchMemorySaverAdapter\n",
     "from sglang.srt.utils import TorchMemorySaverAdapter\nimport os\nfrom dataclasses import dataclass\n"),
    ("class KVCache:", FUNCTIONS + "class KVCache:"),
    ("(torch.float8_e5m2, torch.float8_e4m3fn)", '(torch.float8_e5m2, torch.float8_e4m3fn, "int2")'),
    (SIGNATURE, SIGNATURE + POOL_PARAMETERS),
    (PLAIN_BUFFERS, INIT),
    ("    def _create_buffers(self):\n",
     "    def _create_buffers(self):\n" + early("self._create_int2_buffers()\n            return")),
    ("        return sum(x.nbytes", early("return self._int2_size_bytes()") + "        return sum(x.nbytes"),
    ("    def _get_key_buffer(self, layer_id: int):\n",
     "    def _get_key_buffer(self, layer_id: int):\n" + early('self._int2_unpacked_read("get_key_buffer")')),
    ("    def _get_value_buffer(self, layer_id: int):\n",
     "    def _get_value_buffer(self, layer_id: int):\n" + early('self._int2_unpacked_read("get_value_buffer")')),
    ("        layer_id_override: Optional[int] = None,\n",
     "        layer_id_override: Optional[int] = None,\n        already_hadamard_transformed: bool = False,\n"),
    ("            layer_id = layer.layer_id\n", "            layer_id = layer.layer_id\n" + STORE),
    ("        for buffer in self.k_buffer + self.v_buffer:",
     early("return self._int2_move(tgt_loc, src_loc)") + "        for buffer in self.k_buffer + self.v_buffer:"),
    (LAST_MHA, LAST_MHA + "\n    def _init_int2(self, *args):\n        self.args = args\n"
     "\n    def get_oscar_rotation(self, layer_id):\n        return helper()\n"),
    ("        use_mla: bool = False,\n", "        use_mla: bool = False,\n" + DTYPE + GROUP + HEADS),
    ("            layer_num=len(full_attention_layer_ids),\n            device=device,\n", INNER),
    ("v_scale: float = 1.0):", "v_scale: float = 1.0, already_hadamard_transformed: bool = False):"),
    ("        if not self.use_mla:\n", HYBRID_STORE + "        if not self.use_mla:\n"),
    (LAST_HYBRID, early("return self.full_kv_pool.v_head_dim") + LAST_HYBRID
     + "\n    def get_oscar_rotation(self, layer_id):\n        return None\n"),
)  # fmt: skip


def test_rewrites() -> None:
    check_rewrites(memory_pool, BEFORE, AFTER, CONTEXT)


#: A method that only some bases have, and the branch that it then gets.
OPTIONAL = {
    "get_contiguous_buf_infos(self)": "return self._int2_contiguous_buf_infos()",
    "get_cpu_copy(self, indices)": "return self._int2_cpu_copy(indices)",
    "load_cpu_copy(self, kv_cache_cpu, indices)": "return self._int2_load_cpu_copy(kv_cache_cpu, indices)",
    "set_kv_buffer_prefix_valid(self, x)": 'self._int2_unpacked_read("set_kv_buffer_prefix_valid")',
}


@pytest.mark.parametrize("signature", OPTIONAL)
def test_rewrites_a_reader_of_plain_rows_that_only_some_bases_have(signature: str) -> None:
    head = f"    def {signature}:\n"
    place = "    def escha_stats(self):\n"
    before = edited(BEFORE, (place, f"{head}        return 1\n\n{place}"))
    after = edited(AFTER, (place, f"{head}{early(OPTIONAL[signature])}        return 1\n\n{place}"))
    check_rewrites(memory_pool, before, after, CONTEXT)


def test_a_method_of_the_base_is_reused_and_not_written_twice() -> None:
    own = '    def get_oscar_rotation(self, layer_id):\n        return "フォーク"\n\n'
    place = "    def escha_stats(self):\n"
    before = edited(BEFORE, (place, own + place))
    text = merged(memory_pool, before.encode(), CONTEXT).decode()
    mha = text[text.index("class MHATokenToKVPool") : text.index("class HybridLinearKVPool")]
    assert mha.count("def get_oscar_rotation") == 1
    assert own in mha


def test_a_function_of_the_base_is_reused_and_not_written_twice() -> None:
    own = "def helper():\n    return 2\n\n\n"
    before = edited(BEFORE, ("class KVCache:", own + "class KVCache:"))
    text = merged(memory_pool, before.encode(), CONTEXT).decode()
    assert text.count("def helper()") == 1
    assert own in text


def test_already_applied() -> None:
    check_already_applied(memory_pool, AFTER, CONTEXT)


@pytest.mark.parametrize(
    ("old", "new", "sought", "found"),
    [
        pytest.param("class KVCache:", "class Cache:", "class KVCache", "nothing", id="no base class of pools"),
        pytest.param(
            "class MHATokenToKVPool(", "class MHAPool(", "class MHATokenToKVPool", "nothing", id="no MHA pool"
        ),
        pytest.param(
            "class HybridLinearKVPool(", "class HybridPool(", "class HybridLinearKVPool", "nothing", id="no hybrid pool"
        ),
        pytest.param(
            "(torch.float8_e5m2, torch.float8_e4m3fn)", "FP8", "if dtype in (torch.float8_e5m2, ...)", "nothing",
            id="dtypes stored as bytes are listed elsewhere",
        ),
        pytest.param(
            "            self.store_dtype = torch.uint8\n",
            "            self.store_dtype = torch.uint8\n            x = (torch.float8_e4m3fn, 0)\n",
            "if dtype in (torch.float8_e5m2, ...)", "2 matches", id="two lists of dtypes",
        ),
        pytest.param(PLAIN_BUFFERS, "", "self._create_buffers()", "nothing", id="buffers are made elsewhere"),
        pytest.param(
            PLAIN_BUFFERS, PLAIN_BUFFERS + "        self._create_buffers()  # again\n",
            "self._create_buffers()", "2 matches", id="buffers are made twice",
        ),
        pytest.param(
            "if layer_id_override is not None:", "if layer is None:", "if layer_id_override is not None", "nothing",
            id="the layer id is found in another way",
        ),
        pytest.param(
            "TokenToKVPoolClass(\n", "make_pool(\n", "TokenToKVPoolClass(head_dim=..., ...)", "nothing",
            id="the inner pool is built by a helper",
        ),
        pytest.param(
            "        if not self.use_mla:\n", "        if self.use_mla is False:\n", "if not self.use_mla", "nothing",
            id="the hybrid store chooses in another way",
        ),
        pytest.param(
            "def get_v_head_dim(self):", "def v_dim(self):", "HybridLinearKVPool.get_v_head_dim", "nothing",
            id="no width of V rows",
        ),
        pytest.param(
            "    def escha_stats(self):",
            "    def get_kv_size_bytes(self):\n        pass\n\n    def escha_stats(self):",
            "MHATokenToKVPool.get_kv_size_bytes", "2 matches", id="a method is defined twice",
        ),
    ],
)  # fmt: skip
def test_refuses(old: str, new: str, sought: str, found: str) -> None:
    check_refuses(memory_pool, edited(BEFORE, (old, new)), CONTEXT, sought, found)
