from __future__ import annotations

import os
from pathlib import Path

import pytest

from escha_oscar.errors import ExitCode, UsageError
from escha_oscar.serving.model_config import HeadShape, read_model_config
from tests.support.checkpoints import DENSE, MOE, PLAIN, TWO_SIZES, write_config


def refuse(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_model_config(path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.path == str(path)
    return caught.value


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_nested_hybrid_config_ignores_the_vision_part(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, MOE))
    assert (model.head_dim, model.v_head_dim, model.num_layers) == (256, 256, 40)
    assert model.full_attention_ids == tuple(range(3, 40, 4)) == model.kv_layer_ids
    assert (model.num_attention_heads, model.num_kv_heads) == (16, 2)
    assert (model.is_moe, model.is_hybrid, model.recurrent_layers) == (True, True, 30)
    assert (model.model_type, model.layout_key) == ("qwen3_5_moe", "full_attention_interval")


def test_dense_config_counts_the_draft_layer_apart(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, DENSE))
    assert model.full_attention_ids == tuple(range(3, 64, 4))
    assert (model.mtp_layers, model.mtp_layer_ids) == (1, (64,))
    assert not model.is_moe
    assert model.linear is not None
    assert (model.linear.layers, model.linear.intermediate, model.linear.heads) == (48, 6144, 48)


def test_plain_config_has_all_layers_and_a_derived_head_size(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, PLAIN))
    assert (model.head_dim, model.head_dim_derived) == (64, True)
    assert model.full_attention_ids == (0, 1, 2, 3)
    assert model.linear is None


def test_null_head_dim_is_derived_and_a_stated_one_is_not(tmp_path: Path) -> None:
    text = '{"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8, "head_dim": %s}'
    assert read_model_config(written(tmp_path, text % "null")).head_dim == 64
    stated = read_model_config(written(tmp_path, text % "128"))
    assert (stated.head_dim, stated.head_dim_derived) == (128, False)


def test_two_head_sizes_stay_two(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, TWO_SIZES))
    assert model.two_head_sizes
    assert model.full == HeadShape(1, 512, 512)
    assert model.sliding == HeadShape(8, 256, 256)
    assert (len(model.sliding_ids), model.full_attention_ids) == (40, tuple(range(5, 48, 6)))


def test_k_and_v_sizes_may_differ(tmp_path: Path) -> None:
    model = read_model_config(write_config(tmp_path, PLAIN, head_dim=192, v_head_dim=128))
    assert (model.head_dim, model.v_head_dim) == (192, 128)


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        pytest.param({"num_hidden_layers": 10, "hybrid_override_pattern": "MEM*EMEM*E"}, (3, 8), id="pattern"),
        pytest.param({"layer_types": ["mamba", "attention", "mamba", "attention"]}, (1, 3), id="mamba words"),
        pytest.param({"layers_block_type": ["moe", "attention", "mlp", "mamba2"]}, (1,), id="block types"),
        pytest.param({"attn_type_list": [0, 0, 0, 1]}, (3,), id="flags, 1 is full"),
        pytest.param({"hybrid_layer_pattern": [0, 1, 1, 0]}, (0, 3), id="flags, 0 is full"),
        pytest.param({"attn_layer_period": 2, "attn_layer_offset": 1}, (1, 3), id="period and offset"),
        pytest.param({"full_attn_idxs": [2]}, (2,), id="indices"),
        pytest.param({"sliding_window_pattern": 2}, (1, 3), id="sliding interval"),
        pytest.param(
            {"layer_types": ["conv", "conv", "conv", "attention", "attention"], "num_nextn_predict_layers": 1},
            (3,),
            id="a draft layer's entry follows",
        ),
    ],
)
def test_attention_layers_are_found_however_they_are_named(
    tmp_path: Path, changes: dict[str, object], full: tuple[int, ...]
) -> None:
    assert read_model_config(write_config(tmp_path, PLAIN, **changes)).full_attention_ids == full


def test_unknown_layer_word_is_refused_by_name(tmp_path: Path) -> None:
    types = ["full_attention", "foo_attention", "full_attention", "full_attention"]
    error = refuse(write_config(tmp_path, PLAIN, layer_types=types))
    assert error.message == "layer_types[1]: unknown layer type 'foo_attention'"
    assert error.line == 7


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        pytest.param(PLAIN, {"layer_types": ["attention"] * 3}, "layer_types: describes 3 layers", id="too short"),
        pytest.param(PLAIN, {"layer_types": []}, "layer_types: describes 0 layers", id="empty list"),
        pytest.param(PLAIN, {"layer_types": ["mamba"] * 4}, "layer_types: no full-attention layer", id="none full"),
        pytest.param(PLAIN, {"hybrid_override_pattern": "M*X-"}, "unknown layer type 'X'", id="pattern letter"),
        pytest.param(PLAIN, {"attn_type_list": [0, 1, 2, 1]}, "attn_type_list[2]: is out of range", id="flag of 2"),
        pytest.param(PLAIN, {"full_attn_idxs": [4]}, "full_attn_idxs[0]: is out of range", id="index too high"),
        pytest.param(PLAIN, {"attn_layer_period": 2}, "attn_layer_offset is missing", id="period without offset"),
        pytest.param(PLAIN, {"ssm_state_size": 128}, "recurrent layers without a layer layout", id="no layout"),
        pytest.param(PLAIN, {"kv_lora_rank": 512}, "multi-head latent attention", id="latent attention"),
        pytest.param(PLAIN, {"num_hidden_layers": None}, "num_hidden_layers is missing", id="layers missing"),
        pytest.param(PLAIN, {"num_hidden_layers": 5000}, "num_hidden_layers: is out of range", id="layers huge"),
        pytest.param(PLAIN, {"num_hidden_layers": True}, "num_hidden_layers: has the wrong type", id="boolean"),
        pytest.param(PLAIN, {"num_hidden_layers": 4.0}, "num_hidden_layers: has the wrong type", id="float"),
        pytest.param(PLAIN, {"num_hidden_layers": "4"}, "num_hidden_layers: has the wrong type", id="string"),
        pytest.param(PLAIN, {"layer_types": "full"}, "layer_types: has the wrong type", id="string for list"),
        pytest.param(PLAIN, {"hybrid_override_pattern": [1]}, "hybrid_override_pattern: has the wrong", id="list"),
        pytest.param(PLAIN, {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide", id="heads"),
        pytest.param(PLAIN, {"hidden_size": 513}, "hidden_size: head_dim is absent and 513 / 8", id="no head size"),
        pytest.param(PLAIN, {"head_dim": 0}, "head_dim: is out of range", id="head size zero"),
        pytest.param(PLAIN, {"model_type": "x\nrm -rf"}, "model_type: is no plain name", id="name with a newline"),
        pytest.param(PLAIN, {"model_type": 3}, "model_type: has the wrong type", id="name of a number"),
        pytest.param(PLAIN, {"text_config": 3}, "text_config: has the wrong type", id="text part is no object"),
        pytest.param(DENSE, {"full_attention_interval": 2}, "disagrees with layer_types on layer 1", id="disagree"),
        pytest.param(MOE, {"head_dim": "256"}, "text_config.head_dim: has the wrong type", id="nested path"),
    ],
)
def test_unusable_values_name_their_json_path(
    tmp_path: Path, config: dict[str, object], changes: dict[str, object], message: str
) -> None:
    assert message in refuse(write_config(tmp_path, config, **changes)).message


def test_wrong_type_names_line_and_value(tmp_path: Path) -> None:
    error = refuse(written(tmp_path, '{\n  "num_hidden_layers":\n  "x"\n}'))
    assert (error.line, error.sought, error.found) == (2, "an integer", "string 'x'")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        pytest.param(b"", "is empty", None, id="empty"),
        pytest.param(b" \n", "is empty", None, id="blank"),
        pytest.param(b"[]", "not a JSON object", None, id="array"),
        pytest.param(b'{"a": 1', "not JSON", 1, id="truncated"),
        pytest.param(b'{\n"a": "open', "not JSON", 2, id="open string"),
        pytest.param(b'{"a\\q": 1}', "not JSON", 1, id="bad escape"),
        pytest.param(b'{\n"a": NaN}', "NaN is not a JSON number", 2, id="NaN"),
        pytest.param(b'{"a": -Infinity}', "-Infinity is not a JSON number", 1, id="infinity"),
        pytest.param(b'{\n\n"a": 1e999}', "number out of range: 1e999", 3, id="overflow"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "number of 5000 characters", 1, id="huge integer"),
        pytest.param(b'{"a": 1,\n"a": 2}', "a: key appears twice (first on line 1)", 2, id="duplicate"),
        pytest.param(b'{"b": [{"a": 1, "a": 2}]}', "b[0].a: key appears twice", 1, id="nested duplicate"),
        pytest.param(b'{"a": 1, "\\u0061": 2}', "key appears twice", 1, id="escaped duplicate"),
        pytest.param(b"[" * 100_000, "nested deeper than 64", 1, id="deep"),
        pytest.param(b'{"a":' * 100_000, "nested deeper than 64", 1, id="deep objects"),
        pytest.param(b'{\n"a": "\xff"}', "is not UTF-8", 2, id="latin"),
        pytest.param('{"a": 1}'.encode("utf-16"), "is not UTF-8", 1, id="utf-16"),
        pytest.param(b'{"a": "' + b"x" * (4 << 20) + b'"}', "is larger than 4 MiB", None, id="too large"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, text: bytes, message: str, line: int | None) -> None:
    error = refuse(written(tmp_path, text))
    assert message in error.message
    assert error.line == line


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    path = write_config(tmp_path, PLAIN)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_model_config(path).num_layers == 4


def test_strings_that_look_like_structure_are_left_alone(tmp_path: Path) -> None:
    path = write_config(tmp_path, PLAIN, note='NaN, {"a": [1e999, "\\"]')
    assert read_model_config(path).num_layers == 4


@pytest.mark.timeout(20)
def test_devices_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    zero, pipe = tmp_path / "zero.json", tmp_path / "pipe.json"
    zero.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    assert refuse(zero).message == "is not a regular file"
    assert refuse(pipe).message == "is not a regular file"
    assert refuse(tmp_path).message == "is a directory"
    assert "No such file" in refuse(tmp_path / "absent.json").message
