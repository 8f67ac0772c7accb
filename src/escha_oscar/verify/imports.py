"""Level imports: does the server's own interpreter import the merge, and would its environment configure it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from escha_oscar.mapping import DECODE_PATHS
from escha_oscar.model import Finding, Report, Severity
from escha_oscar.serving.model_config import ModelConfig
from escha_oscar.verify.codes import finding
from escha_oscar.verify.subprocesses import Interpreter

TIMEOUT = 300.0
K_PATH, V_PATH = "SGLANG_OSCAR_K_ROTATION_PATH", "SGLANG_OSCAR_V_ROTATION_PATH"
_VARIABLE = re.compile(r"SGLANG_OSCAR_\w+")
_DRIVER = re.compile(
    r"libcuda|libcudart|libnv\w+|libcublas|libnccl|nvidia driver|cuda driver|no nvidia|no kernel image"
    r"|cannot open shared|CUDA (?:is )?(?:not available|error)|no CUDA|not compiled with CUDA|0 active drivers"
    r"|Found no",
    re.I,
)
_SERVICE = "the variable must be in the service's environment, not just in this shell"


def check_imports_in(
    interpreter: Interpreter,
    site_packages: Path,
    *,
    configured: bool = False,
    model: ModelConfig | None = None,
    timeout: float = TIMEOUT,
) -> Report:
    """Return the findings of importing the merge; ``configured`` makes a missing configuration an error."""
    decode = next((path for path in DECODE_PATHS if (site_packages / path).is_file()), DECODE_PATHS[0])
    module = decode.removesuffix(".py").replace("/", ".")
    answered = interpreter.ask("imports_probe", {"decode": module}, timeout)
    if answered.data is None:
        found = [_cannot(answered.reason, interpreter)]
    else:
        found = list(_judge(answered.data, interpreter, site_packages, configured, model))
    return Report(tuple(found), checks=3)


def _judge(
    data: dict[str, Any], interpreter: Interpreter, site_packages: Path, configured: bool, model: ModelConfig | None
) -> Iterator[Finding]:
    package = data.get("package")
    if package is not None and Path(package).resolve() != (site_packages / "sglang").resolve():
        yield finding(
            "imports-elsewhere",
            "the interpreter imports another sglang than the one that is verified",
            path=str(package),
            expected=str(site_packages / "sglang"),
            found=str(package),
            hint=f"escha-oscar verify --site-packages {shlex.quote(str(Path(package).parent))}",
        )
        return
    failure = data.get("failure")
    if failure is not None and data.get("stage") != "configuration":
        yield _import_failure(failure, interpreter)
        return
    yield from _configuration(data, configured)
    yield from _rotations(data, model)
    if model is not None and model.kv_shared_layers:
        yield finding(
            "kv-shared-layers",
            f"{model.kv_shared_layers} layers of this model share another layer's KV; int2 refuses them",
            path=model.path,
            expected="num_kv_shared_layers 0",
            found=f"num_kv_shared_layers {model.kv_shared_layers}",
            hint="serve this model with another --kv-cache-dtype",
        )


def _import_failure(failure: dict[str, Any], interpreter: Interpreter) -> Finding:
    message, kinds = str(failure.get("message")), failure.get("kinds") or []
    missing = str(failure.get("module") or "")
    ours = missing == "sglang" or missing.startswith("sglang.")
    if _DRIVER.search(message) and not ours:
        return _cannot(f"no usable CUDA driver: {message[:300]}", interpreter)
    if "ModuleNotFoundError" in kinds and not ours:
        return _cannot(f"a dependency of sglang is missing: {message[:300]}", interpreter)
    code = "imports-incomplete" if "ImportError" in kinds else "imports-broken"
    words = "the merge is incomplete" if code == "imports-incomplete" else "importing the merge fails"
    return finding(
        code,
        f"{words}: {failure.get('type')}: {message[:300]}",
        path=failure.get("file"),
        line=failure.get("line"),
        expected="load_oscar_rotation_config and decode_attention_fwd_grouped_quant_int2",
        found=f"{failure.get('type')}: {message[:300]}",
        hint="escha-oscar verify --level static",
    )


def _configuration(data: dict[str, Any], configured: bool) -> Iterator[Finding]:
    failure, known = data.get("failure"), data.get("variables") or {}
    if failure is None:
        yield finding("imports-ok", "the merge imports and is configured", found=str(data.get("config"))[:300])
        return
    message = str(failure.get("message"))
    names = _VARIABLE.findall(message) or [name for name in (K_PATH, V_PATH) if not known.get(name)]
    if any(known.values()) or "ValueError" not in (failure.get("kinds") or []) or not names:
        yield _misconfigured(message, names, known)
        return
    yield finding(
        "not-configured",
        f"merged but not configured: {names[0]} is not set",
        expected=f"{K_PATH} and {V_PATH}",
        found=message[:300],
        hint="escha-oscar rotations --config config.json, then export both variables where the server starts",
        severity=Severity.ERROR if configured else None,
    )


def _misconfigured(message: str, names: list[str], known: dict[str, bool]) -> Finding:
    unset = [name for name in (K_PATH, V_PATH) if not known.get(name)]
    name = (unset or names or [K_PATH])[0]
    what = f"{name} is not set" if unset else f"{', '.join(names) or 'the configuration'}: {message[:200]}"
    return finding(
        "misconfigured",
        f"{what}; {_SERVICE}",
        expected=f"{K_PATH} and {V_PATH}, both",
        found=message[:300],
        hint=f"systemctl show -p Environment <service> | grep {name}",
    )


def _rotations(data: dict[str, Any], model: ModelConfig | None) -> Iterator[Finding]:
    files = data.get("rotations") or {}
    for name, dim in ((K_PATH, model.head_dim if model else None), (V_PATH, model.v_head_dim if model else None)):
        entry = files.get(name) or {}
        reason = _fault(entry, dim, model) if entry else ""
        if reason:
            yield finding(
                "rotation-file",
                f"{name}: {reason}; {_SERVICE}",
                path=str(entry.get("path")),
                expected=f"a rotation file for heads of {dim}" if dim else "a rotation file",
                found=reason,
                hint="escha-oscar rotations --inspect FILE --config config.json",
            )


def _fault(entry: dict[str, Any], dim: int | None, model: ModelConfig | None) -> str:
    """Return what is wrong with one rotation file, or an empty string."""
    if "error" in entry:
        return str(entry["error"])
    shapes: dict[str, list[int]] = entry["shapes"]
    for layer, shape in shapes.items():
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            return f"layer {layer} has shape {shape}"
        if dim is not None and shape[-1] != dim:
            return f"layer {layer} has shape {shape}, the head size is {dim}: are K and V swapped?"
    missing = [layer for layer in model.kv_layer_ids if str(layer) not in shapes] if model is not None else []
    return f"layer {missing[0]} is missing" if missing else ""


def _cannot(reason: str, interpreter: Interpreter) -> Finding:
    return finding(
        "imports-cannot-tell",
        f"the imports cannot be judged here: {reason}",
        expected="an interpreter with the server's libraries and driver",
        found=reason[:300],
        hint=f"{interpreter.python} -c 'import sglang.srt.mem_cache.memory_pool'  # where the server runs",
    )
