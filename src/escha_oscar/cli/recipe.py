"""``escha-oscar recipe``: environment and launch command, each setting with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line
from escha_oscar.cli._types import Fraction
from escha_oscar.errors import UsageError
from escha_oscar.serving import recipe as launch
from escha_oscar.serving.budget import MambaStrategy, parse_size
from escha_oscar.serving.model_config import read_model_config

_RENDERERS = {"sh": launch.as_sh, "systemd": launch.as_systemd}
_COUNT = click.IntRange(1, 1 << 30)


@click.command()
@click.option(
    "--config", "config_path", required=True, type=click.Path(path_type=Path), help="The model's config.json."
)
@click.option("--tp", required=True, type=click.IntRange(1, 1024), help="Tensor-parallel size.")
@click.option("--vram", required=True, help="Memory of one GPU, as 12GB or 12227MiB.")
@click.option("--format", "form", default="sh", show_default=True, type=click.Choice(["sh", "json", "systemd"]))
@click.option("--compute-capability", default="12.0", show_default=True, help="Of the GPUs, as 12.0.")
@click.option("--wsl/--no-wsl", default=None, help="Default: whether this machine is WSL.")
@click.option("--ep", type=_COUNT, help="Expert-parallel size; default: --tp for MoE.")
@click.option(
    "--attention-backend",
    "backend",
    default="triton",
    show_default=True,
    type=click.Choice(["triton", "flashinfer", "fa3", "trtllm_mha", "torch_native"]),
)
@click.option(
    "--mamba-strategy",
    default="extra_buffer",
    show_default=True,
    type=click.Choice([strategy.value for strategy in MambaStrategy]),
)
@click.option("--mixed-chunk", is_flag=True, help="--enable-mixed-chunk.")
@click.option("--context", type=_COUNT, help="--context-length.")
@click.option("--group-size", type=_COUNT, help="--kv-cache-quant-group-size.")
@click.option("--mem-fraction", type=Fraction(), help="--mem-fraction-static.")
@click.option("--max-mamba", type=_COUNT, help="--max-mamba-cache-size.")
@click.option("--max-requests", type=_COUNT, help="--max-running-requests.")
@click.option("--chunk", type=_COUNT, help="--chunked-prefill-size.")
@click.option("--pool-tokens", type=_COUNT, help="The KV pool; default: one context.")
@click.option("--weights", help="Weights on one GPU, as 6GB, to check that the context fits.")
@click.option("--model-path", help="The checkpoint's folder; default: that of config.json.")
@click.option("--rotations-dir", default=".", help="Folder of the rotation files; default: here.")
@json_option
def recipe(config_path: Path, form: str, as_json: bool, vram: str, **options: Any) -> int:
    """Print environment and launch command, and refuse combinations that are known to break."""
    model = read_model_config(config_path)
    weights, wsl = options.pop("weights"), options.pop("wsl")
    request = launch.Request(
        vram=parse_size(vram),
        compute_capability=_capability(options.pop("compute_capability")),
        strategy=MambaStrategy(options.pop("mamba_strategy")),
        weights=parse_size(weights) if weights else None,
        wsl=_is_wsl() if wsl is None else wsl,
        **options,
    )
    built = launch.build_recipe(model, request)
    out = Output("recipe", as_json or form == "json")
    if not out.as_json:
        for warning in built.warnings:
            out.say(f"warning: {warning}")
    return out.emit(launch.as_data(built), lambda console: line(console, _RENDERERS[form](built)))


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and len(text) < 8):
        raise UsageError(f"not a compute capability: {text!r}"[:80], sought="two numbers, as 12.0")
    return int(major), int(minor)


def _is_wsl() -> bool:
    try:
        return "microsoft" in Path("/proc/version").read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False
