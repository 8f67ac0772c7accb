"""The int2 choice, the group-size option and the start-up check, in both forms that bases give their options."""

from __future__ import annotations

import argparse

import pytest

from escha_oscar.model import Context
from escha_oscar.transforms import server_args
from tests.support import forks
from tests.transforms.tools import check_already_applied, check_refuses, check_rewrites, chosen, edited, merged

CHECK = '''\
def _check_int2_kv_cache(self):
    """Refuse."""
    if self.kv_cache_quant_group_size == 0:
        raise ValueError("group size")
'''
CONTEXT = Context(server_args.TARGET, chosen({"ServerArgs._check_int2_kv_cache": CHECK}))

METHOD = '''
    def _check_int2_kv_cache(self):
        """Refuse."""
        if self.kv_cache_quant_group_size == 0:
            raise ValueError("group size")
'''
OPTION = f"""\
        parser.add_argument(
            "--kv-cache-quant-group-size",
            type=int,
            default=ServerArgs.kv_cache_quant_group_size,
            help="{server_args._HELP}",
        )
"""
LIST = forks.SERVER_ARGS_LIST
LIST_AFTER = edited(
    LIST,
    ('"fp4_e2m1"]', '"fp4_e2m1", "int2"]'),
    ('Data type of the KV cache.",\n        )\n', 'Data type of the KV cache.",\n        )\n' + OPTION),
    (
        '    kv_cache_dtype: str = "auto"\n',
        '    kv_cache_dtype: str = "auto"\n    kv_cache_quant_group_size: Optional[int] = None\n',
    ),
    ('        assert self.escha_pack', "        self._check_int2_kv_cache()\n        assert self.escha_pack"),
    ("        return cls(kv_cache_dtype=args.kv_cache_dtype)\n",
     "        return cls(kv_cache_dtype=args.kv_cache_dtype)\n" + METHOD),
)  # fmt: skip

CONSTANT = edited(
    LIST,
    ('choices=["auto", "fp8_e5m2", "fp8_e4m3", "escha_kv", "fp4_e2m1"]', "choices=KV_CHOICES"),
    ("\n\n@dataclasses", "\n# 選択肢\nKV_CHOICES = ['auto', 'escha_kv', 'fp4_e2m1']\n\n\n@dataclasses"),
)
CONSTANT_AFTER = edited(
    LIST_AFTER,
    ('choices=["auto", "fp8_e5m2", "fp8_e4m3", "escha_kv", "fp4_e2m1", "int2"]', "choices=KV_CHOICES"),
    ("\n\n@dataclasses", "\n# 選択肢\nKV_CHOICES = ['auto', 'escha_kv', 'fp4_e2m1', \"int2\"]\n\n\n@dataclasses"),
)

HEAD = "    def add_cli_args(parser: argparse.ArgumentParser):\n"
ANNOTATED = forks.SERVER_ARGS_ANNOTATED
ANNOTATED_AFTER = edited(
    ANNOTATED,
    ('"fp4_e2m1"]', '"fp4_e2m1", "int2"]'),
    (
        '    ] = "auto"\n',
        '    ] = "auto"\n'
        f'    kv_cache_quant_group_size: A[\n        Optional[int], "{server_args._HELP}"\n    ] = None\n',
    ),
    (
        '        """Check everything."""\n',
        '        """Check everything."""\n        self._check_int2_kv_cache()\n',
    ),
    ("        return cls(kv_cache_dtype=args.kv_cache_dtype)\n",
     "        return cls(kv_cache_dtype=args.kv_cache_dtype)\n" + METHOD),
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(LIST, LIST_AFTER, id="argparse with a list"),
        pytest.param(CONSTANT, CONSTANT_AFTER, id="argparse with a constant of the module"),
        pytest.param(ANNOTATED, ANNOTATED_AFTER, id="annotated fields"),
        pytest.param(
            edited(LIST, ('"fp4_e2m1"]', '"fp4_e2m1",\n                # 二進\n            ]')),
            edited(LIST_AFTER, ('"fp4_e2m1", "int2"]', '"fp4_e2m1", "int2",\n                # 二進\n            ]')),
            id="a list with a trailing comma and a comment",
        ),
        pytest.param(
            edited(LIST, ('"fp4_e2m1"]', "'fp4_e2m1', 'int2']")),
            edited(LIST_AFTER, ('"fp4_e2m1", "int2"]', "'fp4_e2m1', 'int2']")),
            id="the choice is there already",
        ),
        pytest.param(
            edited(LIST, (HEAD, HEAD + "        if True:  # 群\n            pass\n")),
            edited(LIST_AFTER, (HEAD, HEAD + "        if True:  # 群\n            pass\n")),
            id="an own branch before the options",
        ),
    ],
)  # fmt: skip
def test_rewrites(before: str, after: str) -> None:
    check_rewrites(server_args, before, after, CONTEXT)


@pytest.mark.parametrize("text", [LIST_AFTER, CONSTANT_AFTER, ANNOTATED_AFTER], ids=["list", "constant", "annotated"])
def test_already_applied(text: str) -> None:
    check_already_applied(server_args, text, CONTEXT)


@pytest.mark.parametrize("before", [LIST, CONSTANT], ids=["list", "constant"])
def test_the_merged_parser_takes_the_new_options_and_every_old_choice(before: str) -> None:
    namespace: dict[str, object] = {"__name__": "merged"}
    text = merged(server_args, before.encode(), CONTEXT).decode().replace("from __future__ import annotations", "")
    exec(compile(text, "server_args.py", "exec", dont_inherit=True), namespace)
    parser = argparse.ArgumentParser()
    namespace["ServerArgs"].add_cli_args(parser)  # type: ignore[attr-defined]
    given = parser.parse_args(["--kv-cache-dtype", "int2", "--kv-cache-quant-group-size", "64"])
    assert (given.kv_cache_dtype, given.kv_cache_quant_group_size) == ("int2", 64)
    assert parser.parse_args(["--kv-cache-dtype", "escha_kv"]).kv_cache_quant_group_size is None


OPTION_LINE = '        parser.add_argument(\n            "--kv-cache-dtype",'


@pytest.mark.parametrize(
    ("text", "sought", "found"),
    [
        pytest.param(
            LIST.replace("class ServerArgs", "class Args"), "class ServerArgs", "nothing", id="no class of that name"
        ),
        pytest.param(
            LIST.replace("    kv_cache_dtype: str", "    cache_dtype: str"),
            "field kv_cache_dtype",
            "nothing",
            id="no field",
        ),
        pytest.param(
            LIST.replace("    escha_pack: int", "    kv_cache_dtype: str = ''\n    escha_pack: int"),
            "field kv_cache_dtype",
            "2 matches",
            id="two fields",
        ),
        pytest.param(
            LIST.replace('"--kv-cache-dtype"', '"--cache-dtype"'), "--kv-cache-dtype", "nothing", id="no option"
        ),
        pytest.param(
            edited(LIST, (OPTION_LINE, '        parser.add_argument("--kv-cache-dtype")\n' + OPTION_LINE)),
            "--kv-cache-dtype",
            "2 matches",
            id="two options",
        ),
        pytest.param(
            edited(CONSTANT, ("choices=KV_CHOICES", "choices=kv_choices()")),
            "choices=[...]",
            "parser.add_argument(",
            id="choices come from a call",
        ),
        pytest.param(
            edited(CONSTANT, ("choices=KV_CHOICES,", "")), "choices=[...]", "parser.add_argument(", id="any text goes"
        ),
        pytest.param(
            edited(CONSTANT, ("KV_CHOICES = ['auto'", "CHOICES = ['auto'")),
            "KV_CHOICES = [...]",
            "nothing",
            id="the constant is elsewhere",
        ),
        pytest.param(
            edited(CONSTANT, ("KV_CHOICES = ['auto', 'escha_kv', 'fp4_e2m1']", "KV_CHOICES = tuple()")),
            "KV_CHOICES = [...]",
            "nothing",
            id="the constant is no list",
        ),
        pytest.param(
            edited(ANNOTATED, ('            choices=["auto", "fp8_e5m2", "fp8_e4m3", "escha_kv", "fp4_e2m1"],\n', "")),
            "Arg(choices=...)",
            "nothing",
            id="an annotated field without choices",
        ),
        pytest.param(
            edited(LIST, ("        parser.add_argument(\n            \"--kv-cache-dtype\"",
                          "        option = parser.add_argument(\n            \"--kv-cache-dtype\"")),
            "the block of --kv-cache-dtype",
            "nothing",
            id="the option is kept in a name",
        ),
        pytest.param(
            LIST.replace("check_server_args", "check_args"), "ServerArgs.check_server_args", "nothing", id="no check"
        ),
    ],
)  # fmt: skip
def test_refuses(text: str, sought: str, found: str) -> None:
    check_refuses(server_args, text, CONTEXT, sought, found)
