"""The launch recipe: environment and command for a checkpoint, each setting with its reason."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from escha_oscar.errors import UsageError
from escha_oscar.serving import budget
from escha_oscar.serving._recipe_rules import (
    ARGUMENTS,
    ENVIRONMENT,
    KNOWN,
    REFUSALS,
    WARNINGS,
    WSL_LIBRARIES,
    Facts,
    Profile,
    Request,
    Rule,
)
from escha_oscar.serving.budget import GB, CacheFormat, KVDtype
from escha_oscar.serving.model_config import ModelConfig

__all__ = ["Recipe", "Request", "Setting", "as_data", "as_sh", "as_systemd", "build_recipe"]

_CHUNKS = (2048, 4096, 6144, 8192, 12288, 16384, 32768)


@dataclass(frozen=True)
class Setting:
    """One environment variable or server argument; ``script`` is its name in the runtime's serve.sh."""

    name: str
    value: str
    why: str
    fixed: bool
    script: str | None = None


@dataclass(frozen=True)
class Recipe:
    """Environment and arguments in order, with the warnings that go with them."""

    profile: str
    model_path: str
    environment: tuple[Setting, ...]
    arguments: tuple[Setting, ...]
    warnings: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        """The launch command as an argument vector."""
        flags = (part for s in self.arguments for part in (s.name, *s.value.split()))
        return ("python", "-m", "sglang.launch_server", "--model-path", self.model_path, *flags)


def build_recipe(model: ModelConfig, request: Request) -> Recipe:
    """Settle every value and apply the rules.

    Raises UsageError with the reason where a combination is known to break, and where the context cannot fit.
    """
    facts = _settle(model, request)
    for refusal in REFUSALS:
        if refusal.applies(facts):
            raise UsageError(f"{refusal.name}: {refusal.why(facts)}", path=model.path, hint=refusal.fix)
    _check_fit(facts)
    path = request.model_path or str(Path(model.path).absolute().parent)
    arguments = tuple(_setting(rule, facts) for rule in ARGUMENTS if rule.value(facts) is not None)
    environment = tuple(_setting(rule, facts) for rule in ENVIRONMENT if rule.value(facts) is not None)
    warnings = tuple(warning.why(facts) for warning in WARNINGS if warning.applies(facts))
    return Recipe(facts.profile.name, path, environment, arguments, warnings)


def _settle(model: ModelConfig, request: Request) -> Facts:
    if model.num_attention_heads % request.tp:
        heads = model.num_attention_heads
        fitting = [str(n) for n in (1, 2, 4, 8, 16) if heads % n == 0]
        message = f"{heads} query heads cannot be spread over --tp {request.tp}"
        raise UsageError(message, path=model.path, hint=f"--tp {' or '.join(fitting)}")
    budget.kv_heads_per_gpu(model.num_kv_heads, request.tp)
    shape = (model.is_moe, model.num_layers, model.num_attention_heads, model.num_kv_heads, model.head_dim)
    profile = KNOWN.get(shape) or _derived_profile(model, request)
    group_size = request.group_size or profile.group_size or model.head_dim
    for dim in {model.head_dim, model.v_head_dim}:
        budget.scale_groups(dim, group_size)
    context = request.context or profile.context
    if context is None:
        raise UsageError("config.json states no context length", path=model.path, hint="add --context N")
    max_mamba = request.max_mamba or profile.max_mamba
    pool = request.pool_tokens or context
    return Facts(
        model=model,
        profile=profile,
        request=request,
        ep=request.ep or (request.tp if model.is_moe else 1),
        group_size=group_size,
        context=context,
        mem_fraction=request.mem_fraction or profile.mem_fraction,
        max_mamba=max_mamba,
        max_requests=request.max_requests or profile.max_requests,
        chunk=request.chunk or profile.chunk or _chunk(model, pool, max_mamba),
        pool=pool,
    )


def _derived_profile(model: ModelConfig, request: Request) -> Profile:
    """Apply the known checkpoints' rules to another model: the same headroom, and slots for eight requests."""
    tiles = model.head_dim % 64 == 0 and model.v_head_dim % 64 == 0
    headroom = 1 - 0.12 * 12 * GB / request.vram
    mem_fraction = max(0.5, min(0.9, int(headroom * 100) / 100))
    requests = 8
    slots = requests * budget.slots_per_request(request.strategy)
    group = 64 if tiles else None
    name = f"{model.model_type}, by the same rules"
    return Profile(name, group, model.max_context, mem_fraction, slots, requests, None, 64, None, measured=False)


def _chunk(model: ModelConfig, pool: int, slots: int) -> int:
    """The smallest chunk whose checkpoints fit the slots; the largest where none does (the rules then refuse it)."""
    if not model.is_hybrid:
        return _CHUNKS[0]
    return next((chunk for chunk in _CHUNKS if budget.chunk_slots(pool, chunk) <= slots), _CHUNKS[-1])


def _check_fit(facts: Facts) -> None:
    """Hold the context against the memory, where the weights' size is known."""
    request, model = facts.request, facts.model
    if request.weights is None or (model.is_hybrid and model.linear is None):
        return
    dtype = facts.profile.ssm_dtype
    slot = budget.mamba_slot_bytes(model.linear, request.tp, dtype) if model.linear else 0
    per_token = budget.token_bytes(model, request.tp, CacheFormat(KVDtype.INT2, facts.group_size))
    memory = budget.Memory(request.vram, facts.mem_fraction, request.weights)
    fitting = budget.fit(memory, per_token, slot, facts.max_mamba if slot else None)
    if fitting.tokens < facts.context:
        raise UsageError(
            f"context {facts.context} does not fit: {fitting.tokens} tokens are left beside weights and state",
            path=model.path,
            hint="escha-oscar budget --config config.json --tp N --vram SIZE --weights SIZE (shows what takes it)",
        )


def _setting(rule: Rule, facts: Facts) -> Setting:
    return Setting(rule.name, rule.value(facts) or "", rule.why(facts), rule.fixed, rule.script)


#: The folders of the pip-installed NVIDIA libraries, found by the Python that serves.
_NVIDIA_LIBRARIES = (
    "import glob, site; "
    'print(":".join(d for p in site.getsitepackages() for d in sorted(glob.glob(p + "/nvidia/*/lib"))))'
)


def as_sh(recipe: Recipe) -> str:
    """Render a bash script; every line says why, and the settings not to change are marked."""
    lines = ["#!/usr/bin/env bash", f"# {recipe.profile}", *(f"# warning: {text}" for text in recipe.warnings)]
    lines += ["set -eu", ""]
    wsl = f'LD_LIBRARY_PATH="$(python -c {shlex.quote(_NVIDIA_LIBRARIES)}):{WSL_LIBRARIES}"'
    if all(setting.name != "LD_LIBRARY_PATH" for setting in recipe.environment):
        lines += ["# on WSL also:", f"# export {wsl}"]
    for setting in recipe.environment:
        value = wsl if setting.name == "LD_LIBRARY_PATH" else f"{setting.name}={shlex.quote(setting.value)}"
        lines += [f"# {_reason(setting)}", f"export {value}"]
    lines += ["", "args=(", f"  --model-path {shlex.quote(recipe.model_path)}"]
    for setting in recipe.arguments:
        flag = f"{setting.name} {setting.value}".rstrip()
        lines.append(f"  {flag}  # {_reason(setting)}")
    return "\n".join([*lines, ")", 'exec python -m sglang.launch_server "${args[@]}"'])


def as_systemd(recipe: Recipe) -> str:
    """Render the [Service] section of a unit; the environment belongs here, a login shell's is not seen."""
    lines = [f"# {recipe.profile}", *(f"# warning: {text}" for text in recipe.warnings), "[Service]"]
    for setting in recipe.environment:
        lines += [f"# {_reason(setting)}", f"Environment={_systemd_quote(f'{setting.name}={setting.value}')}"]
        if setting.name == "LD_LIBRARY_PATH":
            lines.append("# (put the environment's site-packages/nvidia/*/lib folders before it: no globs here)")
    lines += [f"# {setting.name} {setting.value}".rstrip() + f": {_reason(setting)}" for setting in recipe.arguments]
    words = [_systemd_quote(word).replace("$", "$$") for word in recipe.command]
    return "\n".join([*lines, "ExecStart=/usr/bin/env " + " ".join(words)])


def as_data(recipe: Recipe) -> dict[str, Any]:
    """Render plain data for JSON."""
    return {
        "profile": recipe.profile,
        "environment": [asdict(setting) for setting in recipe.environment],
        "arguments": [asdict(setting) for setting in recipe.arguments],
        "launch": list(recipe.command),
        "warnings": list(recipe.warnings),
    }


def _reason(setting: Setting) -> str:
    mark = "do not change" if setting.fixed else "tune"
    script = f" ({setting.script} of serve.sh)" if setting.script else ""
    return f"[{mark}] {setting.why}{script}"


def _systemd_quote(word: str) -> str:
    """Quote one word for a unit file: C escapes in double quotes, and % doubled."""
    escaped = "".join(
        f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else f"\\{c}" if c in '"\\' else c for c in word
    )
    escaped = escaped.replace("%", "%%")
    plain = escaped == word and word and not set(word) & set(" '$;")
    return word if plain else f'"{escaped}"'
