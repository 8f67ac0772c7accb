# SPDX-License-Identifier: Apache-2.0
"""What the launchers need to know about the device a tensor lives on."""

from __future__ import annotations

import contextlib
import ctypes
import functools

import torch

#: Assumed when there is no GPU to ask (the Triton interpreter): grids stay small.
INTERPRETER_PROCESSORS = 4


def on_device(tensor):
    """Context in which a kernel launches on ``tensor``'s GPU, also when that is not the current one."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


@functools.cache
def _cuda_properties(index):
    properties = torch.cuda.get_device_properties(index)
    return properties.multi_processor_count, (properties.major, properties.minor)


def processors(tensor) -> int:
    """Number of multiprocessors of ``tensor``'s device."""
    return _cuda_properties(tensor.device.index)[0] if tensor.device.type == "cuda" else INTERPRETER_PROCESSORS


@functools.cache
def driver_version() -> int:
    """CUDA version that the driver supports, e.g. 12040; 0 where there is none."""
    try:
        query = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion
    except (OSError, AttributeError):
        return 0
    version = ctypes.c_int(0)
    return version.value if query(ctypes.byref(version)) == 0 else 0


def capability(tensor) -> tuple[int, int]:
    """Compute capability of ``tensor``'s device; ``(0, 0)`` where there is none."""
    return _cuda_properties(tensor.device.index)[1] if tensor.device.type == "cuda" else (0, 0)
