"""Level numerics: the INT2 kernels against torch, in the server's interpreter, on its GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escha_oscar.errors import UsageError
from escha_oscar.mapping.wheels import DECODE_PATHS, KERNELS_DIR
from escha_oscar.model import Finding, Report
from escha_oscar.serving.budget import kv_heads_per_gpu, scale_groups
from escha_oscar.serving.model_config import ModelConfig
from escha_oscar.verify.codes import finding
from escha_oscar.verify.subprocesses import Interpreter

TIMEOUT = 600.0
_COPIED = ("sglang/QuantKernel/oscar_rotation_clip_int2_kv.py", "sglang/srt/mem_cache/kv_quant_kernels.py")
_HEAD_DIM, _GROUP_SIZE, _GROUP_NUM = 256, 32, 8


@dataclass(frozen=True)
class Shape:
    """What is checked: head sizes, elements of one scale group, query heads per KV head on one GPU."""

    head_dim: int = _HEAD_DIM
    v_head_dim: int = _HEAD_DIM
    group_size: int = _GROUP_SIZE
    kv_group_num: int = _GROUP_NUM


def shape_of(model: ModelConfig | None, tp: int | None, group_size: int | None) -> Shape:
    """Return the shape that a server of ``model`` runs with, or that of the MoE checkpoint where there is none.

    Raises UsageError where the group size does not divide the head or tp does not fit the heads.
    """
    if model is None:
        scale_groups(_HEAD_DIM, group_size)
        return Shape(group_size=group_size or _GROUP_SIZE)
    ranks = tp or 1
    if model.num_attention_heads % ranks:
        raise UsageError(f"{model.num_attention_heads} query heads cannot be spread over --tp {ranks}")
    size = group_size or model.head_dim
    for dim in (model.head_dim, model.v_head_dim):
        scale_groups(dim, size)
    queries = model.num_attention_heads // ranks
    return Shape(model.head_dim, model.v_head_dim, size, queries // kv_heads_per_gpu(model.num_kv_heads, ranks))


def check_numerics(
    interpreter: Interpreter, site_packages: Path, shape: Shape, *, own: bool = True, timeout: float = TIMEOUT
) -> Report:
    """Return the findings about the kernels in ``site_packages``.

    ``own`` asks for the placed package; without it, or where there is none, the tree's own INT2 kernels are judged.
    """
    spec = _kernels(site_packages, own=own)
    if spec is None:
        return Report((_no_kernels(site_packages),), checks=1)
    answered = interpreter.ask("numerics_probe", {**spec, **shape.__dict__}, timeout)
    if answered.data is None:
        return Report((_cannot(answered.reason),), checks=1)
    place = Path(spec.get("package") or site_packages / "sglang")
    found = tuple(_judge(answered.data, place, shape))
    return Report(found, checks=max(1, len(answered.data.get("checks") or ())))


def _kernels(site_packages: Path, *, own: bool) -> dict[str, str] | None:
    """Return where the probe finds kernels: the placed package, else the modules that a merge by hand changed."""
    package = site_packages / KERNELS_DIR
    if own and (package / "__init__.py").is_file():
        return {"package": str(package.resolve())}
    decode = next((path for path in DECODE_PATHS if (site_packages / path).is_file()), None)
    if decode is None or not all((site_packages / path).is_file() for path in _COPIED):
        return None
    return {"tree": str(site_packages.resolve()), "decode": decode.removesuffix(".py").replace("/", ".")}


def _judge(data: dict[str, Any], package: Path, shape: Shape) -> Iterator[Finding]:
    if data.get("unusable"):
        yield _cannot(str(data["unusable"]))
        return
    place = f"{data.get('device')}, {_words(data.get('versions') or {})}"
    if data.get("failure"):
        yield finding(
            "numerics-failed",
            f"a kernel failed on {place}: {data['failure'].get('message')}"[:600],
            path=str(package),
            expected="every kernel to run",
            found=str(data["failure"].get("trace"))[-400:],
            hint="escha-oscar integrate  # brings kernels that are known to agree",
        )
        return
    checks = data.get("checks") or []
    failed = [check for check in checks if not check.get("ok")]
    for check in failed:
        yield _wrong(check, package, place)
    if checks and not failed:
        worst = max(float(check["error"]) for check in checks)
        yield finding(
            "numerics-ok",
            f"{len(checks)} kernel checks agree with torch on {place}, in {data.get('seconds')} s",
            found=f"largest error {worst:.1e}; groups of {shape.group_size}, {shape.kv_group_num} queries per KV head",
        )


def _words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _wrong(check: dict[str, Any], package: Path, place: str) -> Finding:
    heads = check.get("heads") or []
    which = f" in heads {', '.join(map(str, heads))}" if heads else ""
    return finding(
        "numerics-wrong",
        f"{check.get('name')} differs from torch{which} on {place}",
        path=str(package),
        expected=f"an error of at most {check.get('bound')}",
        found=f"error {check.get('error')}",
        hint="escha-oscar integrate  # brings kernels that are known to agree",
    )


def _no_kernels(site_packages: Path) -> Finding:
    return finding(
        "numerics-no-kernels",
        "this tree has no INT2 kernels to run",
        path=str(site_packages),
        expected=f"{KERNELS_DIR}, or {' and '.join(_COPIED)}",
        found="neither",
        hint="escha-oscar verify --level static",
    )


def _cannot(reason: str) -> Finding:
    return finding(
        "numerics-cannot-tell",
        f"the kernels cannot be run here: {reason}"[:600],
        expected="torch and triton in the server's interpreter",
        found=reason[:300],
        hint="name the server's interpreter with --python EXE",
    )
