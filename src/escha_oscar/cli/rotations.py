"""``escha-oscar rotations``: write Hadamard files, inspect files, or fit calibrated ones from dumps."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escha_oscar import rotations as files
from escha_oscar.cli._progress import progress_sink
from escha_oscar.cli._render import Output, json_option
from escha_oscar.cli._table import line, table
from escha_oscar.errors import ExitCode, MissingExtraError, UsageError
from escha_oscar.rotations import Inspection, Role, RotationFileError
from escha_oscar.rotations.inspect import spell
from escha_oscar.serving.model_config import MAX_HEAD_DIM, ModelConfig, read_model_config

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from escha_oscar.rotations.calibrate import LayerFit

_VARIABLES = {Role.K: "SGLANG_OSCAR_K_ROTATION_PATH", Role.V: "SGLANG_OSCAR_V_ROTATION_PATH"}
_MEASURE = "measure on your checkpoint with a discriminating long-context test (a needle test cannot tell them apart)"


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The model's config.json.")
@click.option("--out-dir", default=".", type=click.Path(path_type=Path), help="Where files go; default: here.")
@click.option("--head-dim", type=click.IntRange(1, MAX_HEAD_DIM), help="Head size, where there is no config.json.")
@click.option("--num-layers", type=click.IntRange(1, 4096), help="Layer count, where there is no config.json.")
@click.option("--block-hadamard", is_flag=True, help="Hadamard blocks for head sizes that are no power of two.")
@click.option("--inspect", is_flag=True, help="Judge the files PATHS; the exit code is the verdict.")
@click.option("--calibrate", type=click.Path(path_type=Path), help="Fit from dumps: layer_<id>/{q,k,v}/<chunk>.pt.")
@click.option("--per-head", is_flag=True, help="With --calibrate: one matrix per KV head.")
@click.option("--group-size", type=int, help="With --calibrate: the group size that errors are reported for.")
@json_option
def rotations(as_json: bool, **options: Any) -> int:
    """Write the K and V rotation files that an integrated server refuses to start without."""
    _check(options)
    out = Output("rotations", as_json)
    model = read_model_config(options["config_path"]) if options["config_path"] else None
    if options["inspect"]:
        return _inspect(out, options["paths"], model)
    if options["calibrate"]:
        return _calibrate(out, options, model)
    return _hadamard(out, options, model)


def _check(options: Mapping[str, Any]) -> None:
    """Refuse options that do not belong together."""
    by_hand = options["head_dim"] is not None or options["num_layers"] is not None
    if options["inspect"] and options["calibrate"]:
        raise UsageError("--inspect and --calibrate are two commands")
    if options["inspect"] != bool(options["paths"]):
        raise UsageError("files are read with --inspect FILE...", hint="escha-oscar rotations --inspect FILE...")
    if options["config_path"] and by_hand:
        raise UsageError("--config already states head size and layers: drop --head-dim and --num-layers")
    if not options["calibrate"] and (options["per_head"] or options["group_size"] is not None):
        raise UsageError("--per-head and --group-size need --calibrate")
    if (options["calibrate"] or options["inspect"]) and (by_hand or options["block_hadamard"]):
        raise UsageError("--head-dim, --num-layers and --block-hadamard are for writing Hadamard files")
    if options["calibrate"] or options["inspect"] or options["config_path"]:
        return
    if options["head_dim"] is None or options["num_layers"] is None:
        raise UsageError(
            "say which model",
            sought="--config config.json, or --head-dim and --num-layers",
            hint="escha-oscar rotations --config config.json",
        )


@dataclass(frozen=True)
class _Written:
    """One file as it now lies on disk."""

    role: str
    path: str
    head_dim: int
    bytes: int
    sha256: str
    variable: str


def _hadamard(out: Output, options: Mapping[str, Any], model: ModelConfig | None) -> int:
    if model is not None and model.two_head_sizes:
        raise UsageError(
            f"two head sizes: {model.full.head_dim} in full-attention layers, {model.sliding.head_dim} in sliding ones",
            path=model.path,
            sought="one head size for all layers: the runtime stacks a file's matrices into one tensor",
        )
    count = model.num_layers if model else options["num_layers"]
    dims = {Role.K: model.head_dim, Role.V: model.v_head_dim} if model else dict.fromkeys(Role, options["head_dim"])
    block = options["block_hadamard"]
    matrices = {role: _named(role, dim, block) for role, dim in dims.items()}
    layers = {role: dict.fromkeys(range(count), matrix) for role, matrix in matrices.items()}
    warnings = _hadamard_warnings(model, dims)
    written = _write(options["out_dir"], "hadamard", layers)
    data = {
        "kind": "hadamard",
        "head_dim": dims[Role.K],
        "v_head_dim": dims[Role.V],
        "num_layers": count,
        "kv_layers": list(model.kv_layer_ids) if model else None,
        "files": [asdict(entry) for entry in written],
        "warnings": warnings,
    }
    if not out.as_json:
        for warning in warnings:
            out.say(warning)
    return out.emit(data, lambda console: _written_text(console, _summary(dims, count, model), written))


def _named(role: Role, dim: int, block: bool) -> Tensor:
    """Build one role's matrix; an error says which of the two it is about."""
    try:
        return files.hadamard_matrix(dim, block=block)
    except MissingExtraError:
        raise
    except UsageError as error:
        error.message = f"{role.value.upper()} {error.message}"
        raise


def _hadamard_warnings(model: ModelConfig | None, dims: Mapping[Role, int]) -> list[str]:
    found = [f"uncalibrated, the same matrix in every layer; whether calibration pays: {_MEASURE}"]
    for role, dim in dims.items():
        size = files.largest_block(dim)
        if size != dim:
            blocks = f"{dim // size} blocks of {size}"
            found.append(f"{role.value.upper()} is rotated in {blocks}: outliers are spread within a block only")
    if model is None:
        return found
    if model.mtp_layers:
        found.append(
            f"MTP layer {spell(model.mtp_layer_ids)} is not covered: INT2 KV runs without speculative decoding"
        )
    if model.kv_shared_layers:
        found.append(f"{model.kv_shared_layers} KV-shared layers: they read another layer's cache and its rotation")
    return found


def _summary(dims: Mapping[Role, int], count: int, model: ModelConfig | None) -> list[str]:
    k, v = dims[Role.K], dims[Role.V]
    lines = [f"head_dim {k}" if k == v else f"head_dim {k} (K) and {v} (V)", f"layers {count}"]
    if model is not None:
        derived = " (hidden_size / heads)" if model.head_dim_derived else ""
        lines[0] += derived
        ids = model.kv_layer_ids
        lines.append(f"layers that hold KV: {len(ids)} of {count}: {spell(ids)} (from {model.layout_key})")
    return lines


def _write(folder: Path, kind: str, layers: Mapping[Role, Mapping[int, Tensor]]) -> list[_Written]:
    planned = {}
    for role, matrices in layers.items():
        dim = next(iter(matrices.values())).shape[-1]
        planned[role] = folder.absolute() / files.file_name(role.value, kind, dim)
    files.write_rotation_files({path: (layers[role], kind) for role, path in planned.items()})
    written = []
    for role, path in planned.items():
        data = path.read_bytes()
        dim = next(iter(layers[role].values())).shape[-1]
        digest = hashlib.sha256(data).hexdigest()
        written.append(_Written(role.value, str(path), dim, len(data), digest, _VARIABLES[role]))
    return written


def _written_text(console: Console, summary: list[str], written: list[_Written]) -> None:
    """Print what a shell can read: facts as comments, then the two export lines."""
    for entry in summary:
        line(console, f"# {entry}")
    for file in written:
        shown = file.path.replace("\n", "\\n")  # a comment must not end early: the output is meant for a shell
        line(console, f"# wrote {shown} ({file.bytes} bytes, sha256 {file.sha256[:16]})")
    for file in written:
        line(console, f"export {file.variable}={shlex.quote(file.path)}")


def _inspect(out: Output, paths: tuple[Path, ...], model: ModelConfig | None) -> int:
    warning = files.loading_warning()
    if warning and not out.as_json:
        out.say(warning)
    found = [_inspected(path, model) for path in paths]
    failed = any(not entry["ok"] for entry in found)
    data = {"files": found, "warnings": [warning] if warning else []}
    return out.emit(data, lambda console: _inspect_text(console, found), ExitCode.PROBLEMS if failed else ExitCode.OK)


def _inspected(path: Path, model: ModelConfig | None) -> dict[str, Any]:
    """Judge one file; one that cannot be loaded safely is a finding, so that the others are judged too."""
    role = next((role for role in Role if path.name.lower().startswith(f"{role.value}_")), None)
    try:
        report: Inspection = files.inspect_rotation(files.load_rotation_file(path), model, role)
    except RotationFileError as error:
        message = f"{error.message}; found: {error.found}" if error.found else error.message
        return {"path": str(path), "ok": False, "findings": [{"level": "error", "message": message}]}
    return {**asdict(report), "ok": report.ok}


def _inspect_text(console: Console, found: list[dict[str, Any]]) -> None:
    columns = ("file", "kind", "layers", "head_dim", "form", "dtype", "keys", "|R R^T - I|", "verdict")
    rows = []
    for entry in found:
        cells: tuple[str, ...] = ("-",) * 7
        if "kind" in entry:
            form = f"per head x {spell(entry['kv_heads'])}" if entry["per_head"] else "shared"
            sizes, keys = spell(entry["head_dims"]), "str" if entry["string_keys"] else "int"
            error = f"{entry['orthogonality_error']:.1e}"
            cells = (entry["kind"], spell(entry["layers"]), sizes, form, ",".join(entry["dtypes"]), keys, error)
        rows.append((entry["path"], *cells, "ok" if entry["ok"] else "FAIL"))
    table(console, "Rotation files", columns, rows)
    for entry in found:
        for finding in entry["findings"]:
            line(console, f"{finding['level']}: {entry['path']}: {finding['message']}")


def _calibrate(out: Output, options: Mapping[str, Any], model: ModelConfig | None) -> int:
    from escha_oscar.rotations import calibrate as fit

    wanted = frozenset(model.kv_layer_ids) if model else None
    with progress_sink(quiet=out.as_json) as progress:
        fits = fit.calibrate(
            options["calibrate"],
            per_head=options["per_head"],
            group_size=options["group_size"],
            layers=wanted,
            progress=progress,
        )
    if model is not None:
        _check_fits(fits, model)
    means = {kind: fit.mean_errors(fits, kind) for kind in ("hadamard", "calibrated")}
    better = means["calibrated"].attention <= means["hadamard"].attention
    layers = {Role.K: {f.layer: f.k for f in fits}, Role.V: {f.layer: f.v for f in fits}}
    written = _write(options["out_dir"], "calibrated", layers) if better else []
    rows = [
        {name: getattr(f, name) for name in ("layer", "rows", "held_out_rows")}
        | {"hadamard": asdict(f.hadamard), "calibrated": asdict(f.calibrated)}
        for f in fits
    ]
    data = {
        "kind": "calibrated",
        "per_head": options["per_head"],
        "group_size": options["group_size"],
        "layers": rows,
        "mean": {kind: asdict(errors) for kind, errors in means.items()},
        "better_than_hadamard": better,
        "files": [asdict(entry) for entry in written],
    }
    if not out.as_json:
        out.say(_verdict(fits, better))
    code = ExitCode.OK if better else ExitCode.PROBLEMS
    return out.emit(data, lambda console: _calibrate_text(console, data, written), code)


def _check_fits(fits: tuple[LayerFit, ...], model: ModelConfig) -> None:
    missing = sorted(set(model.kv_layer_ids) - {fit.layer for fit in fits})
    if missing:
        raise UsageError(f"the dumps lack layers that hold KV: {spell(missing)}", path=model.path)
    for fit in fits:
        found = (fit.k.shape[-1], fit.v.shape[-1])
        if found != (model.head_dim, model.v_head_dim):
            sought = f"{model.head_dim} (K) and {model.v_head_dim} (V)"
            raise UsageError(
                f"layer {fit.layer}'s dumped head sizes are not the model's",
                path=model.path,
                sought=sought,
                found=f"{found[0]} (K) and {found[1]} (V)",
            )


def _verdict(fits: tuple[LayerFit, ...], better: bool) -> str:
    worse = [fit.layer for fit in fits if fit.calibrated.attention > fit.hadamard.attention]
    by_layer = f"worse than Hadamard on {len(worse)} of {len(fits)} layers by attention-output error"
    if better:
        return f"calibrated files written; {by_layer}. Lower error is no accuracy claim: {_MEASURE}"
    return f"calibrated is worse than Hadamard on held-out rows ({by_layer}): nothing written; use the Hadamard files"


def _calibrate_text(console: Console, data: Mapping[str, Any], written: list[_Written]) -> None:
    columns = ("layer", "rows", "held out", "K Hadamard", "K fit", "V Hadamard", "V fit", "out Hadamard", "out fit")
    rows = [
        (str(entry["layer"]), str(entry["rows"]), str(entry["held_out_rows"]), *_pairs(entry))
        for entry in data["layers"]
    ]
    rows.append(("mean", "", "", *_pairs(data["mean"])))
    table(console, "Relative INT2 error on held-out rows", columns, rows, prefix="# ")
    _written_text(console, [], written)


def _pairs(errors: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{errors[kind][name]:.5f}" for name in ("k", "v", "attention") for kind in ("hadamard", "calibrated"))
