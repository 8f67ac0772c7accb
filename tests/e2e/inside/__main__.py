"""Run one program: ``python -m inside PROGRAM SPEC ANSWER``; its ``main(spec)`` returns what goes into ANSWER."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path

from inside import stubs


def run(program: str, asked: str, answered: str) -> None:
    """Prepare the process, call the program, write its answer."""
    on_gpu = os.environ.get("ESCHA_OSCAR_E2E_DEVICE", "cpu") != "cpu"
    os.environ["TRITON_INTERPRET"] = "0" if on_gpu else "1"
    stubs.install()
    with stubs.without_cuda_branches() if on_gpu else contextlib.nullcontext():
        main = importlib.import_module(f"inside.{program}").main
    answer = main(json.loads(Path(asked).read_text(encoding="utf-8")))
    Path(answered).write_text(json.dumps(answer), encoding="utf-8")


run(*sys.argv[1:])
