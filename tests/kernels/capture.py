"""Record the launches that the package makes and compile them for a card that is not here."""

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

#: Shared memory that one program may use, by compute capability.
SHARED_LIMIT = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
_TYPES = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.uint8: "*u8",
    torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One kernel with the types, constants and options of a launch; equal launches compile to the same code."""

    kernel: object
    signature: tuple
    constants: tuple
    divisible: tuple
    options: tuple

    def compile(self, cc):
        """Compile for compute capability ``cc``, e.g. 90."""
        source = ASTSource(
            self.kernel,
            dict(self.signature),
            dict(self.constants),
            {(i,): [["tt.divisibility", 16]] for i in self.divisible},
        )
        return triton.compile(source, target=GPUTarget("cuda", cc, 32), options=dict(self.options))


def _record(kernel, args, kwargs):
    names = kernel.arg_names
    options = {name: kwargs[name] for name in ("num_warps", "num_stages", "launch_pdl") if name in kwargs}
    values = dict(zip(names, args, strict=False)) | {n: v for n, v in kwargs.items() if n in names}
    signature, constants, divisible = [], [], []
    for position, name in enumerate(names):
        value = values[name]
        if kernel.params[position].is_constexpr or (isinstance(value, int) and value == 1):
            signature.append((name, "constexpr"))
            constants.append((name, value))
        elif isinstance(value, torch.Tensor):
            signature.append((name, _TYPES[value.dtype]))
            divisible += [position] if value.data_ptr() % 16 == 0 else []
        elif isinstance(value, int):
            signature.append((name, "i32" if abs(value) < 2**31 else "i64"))
            divisible += [position] if value % 16 == 0 else []
        else:
            signature.append((name, "fp32"))
    return Launch(kernel, tuple(signature), tuple(constants), tuple(divisible), tuple(sorted(options.items())))


@contextlib.contextmanager
def recorded(cc, processors=132, driver=13000):
    """Collect the launches made inside the block, on CPU tensors, as if on a card of capability ``cc``."""
    launches = []

    def run(kernel, *args, grid, warmup, **kwargs):
        launches.append(_record(kernel, args, kwargs))

    from escha_oscar.kernels import decode, prefill

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(triton.JITFunction, "run", run))
        stack.enter_context(mock.patch.object(decode, "processors", lambda tensor: processors))
        stack.enter_context(mock.patch.object(decode, "driver_version", lambda: driver))
        for module in (decode, prefill):
            stack.enter_context(mock.patch.object(module, "capability", lambda tensor: divmod(cc, 10)))
        yield launches


def tool(name):
    """Path of one of the CUDA tools that come with triton."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name


def resources(compiled, folder):
    """Return ``(registers, stack bytes)`` a thread, from the machine code; a stack means spilled registers."""
    cubin = Path(folder) / f"{os.getpid()}.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    report = subprocess.run([tool("cuobjdump"), "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    return int(found[1]), int(found[2])
