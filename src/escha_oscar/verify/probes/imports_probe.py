"""Import what a merge must offer, in the server's interpreter: ``python imports_probe.py SPEC.json ANSWER.json``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path

POOL = "sglang.srt.mem_cache.memory_pool"
PATHS = ("SGLANG_OSCAR_K_ROTATION_PATH", "SGLANG_OSCAR_V_ROTATION_PATH")


def failure(error: BaseException) -> dict[str, object]:
    """Return an exception as data: type, words, missing module, last lines of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return {
        "type": type(error).__name__,
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "message": str(error)[:2000],
        "module": getattr(error, "name", None),
        "file": last.filename if last else None,
        "line": last.lineno if last else None,
    }


def where() -> str | None:
    """Return the package folder that an import would use, without importing it."""
    spec = importlib.util.find_spec("sglang")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else None


def rotations() -> dict[str, object]:
    """Return for each variable its path and the shape of every layer in that file, or why it cannot be read."""
    import torch

    found: dict[str, object] = {}
    for name in PATHS:
        path = os.environ.get(name, "")
        try:
            layers = torch.load(path, map_location="cpu", weights_only=True)["layers"]
            shapes = {str(layer): list(entry["rotation"].shape) for layer, entry in layers.items()}
            found[name] = {"path": path, "shapes": shapes}
        except Exception as error:  # whatever the file holds, its name and the reason are the answer
            found[name] = {"path": path, "error": f"{type(error).__name__}: {error}"[:500]}
    return found


def run(decode: str) -> dict[str, object]:
    """Return how far the imports got."""
    answer: dict[str, object] = {"stage": "locate", "package": None}
    try:
        answer["package"] = where()
        answer["stage"] = "pool"
        loader = importlib.import_module(POOL).load_oscar_rotation_config
        answer["stage"] = "decode"
        _ = importlib.import_module(decode).decode_attention_fwd_grouped_quant_int2
        answer["stage"] = "configuration"
        answer["config"] = str(loader())
        answer["stage"] = "done"
    except BaseException as error:  # an exit or a panic of a library is a result here as well
        answer["failure"] = failure(error)
    if answer["stage"] in ("configuration", "done"):
        answer["variables"] = {name: bool(os.environ.get(name)) for name in PATHS}
        answer["rotations"] = rotations() if all(os.environ.get(name) for name in PATHS) else None
    return answer


if __name__ == "__main__":
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(run(spec["decode"])), encoding="utf-8")
