# SPDX-License-Identifier: Apache-2.0
"""The INT2 KV layout: where each code, scale and zero lives. Plain Python, no torch.

A slot of one KV head holds ``D / 4`` bytes of codes and ``2 * G`` numbers, ``G = D / group_size``:

* byte ``j`` packs dims ``j``, ``j + D/4``, ``j + D/2``, ``j + 3D/4`` in bits 0-1, 2-3, 4-5, 6-7: quarters, not
  neighbours;
* the numbers are ``[scale0, zero0, scale1, zero1, ...]``; group ``g`` covers ``group_size`` dims from
  ``g * group_size`` on;
* ``value = (code - zero) * scale``, and ``zero`` is a float in code units.
"""

from __future__ import annotations

#: Normalised thresholds and level of the 4-level Lloyd-Max quantiser of a unit normal.
LLOYD_MAX_THRESHOLD = 0.98106527
LLOYD_MAX_LEVEL = 1.50955856
#: Step of the uniform fit to those levels, in standard deviations (1.16: the step the OSCAR kernels store).
LLOYD_MAX_STEP = 2.0 * LLOYD_MAX_LEVEL / 3.0 * 1.16

#: Smallest range of a group; keeps the scale of a constant group finite.
MIN_RANGE = 1e-8


def resolve_grouping(head_dim: int, group_size: int | None) -> tuple[int, int]:
    """Return ``(group_size, num_groups)`` for a head of ``head_dim`` dims; ``None`` means one group per head.

    Raises ValueError, naming both numbers, when the groups do not tile the head or four codes do not fill its bytes.
    """
    if head_dim <= 0 or head_dim % 4:
        raise ValueError(
            f"INT2 needs a head dimension that is a positive multiple of 4, got {head_dim} (group size {group_size})"
        )
    size = head_dim if group_size is None else group_size
    if size <= 0 or head_dim % size:
        raise ValueError(f"group size {group_size} does not divide head dimension {head_dim}")
    return size, head_dim // size


def clip_index(ratio: float, head_dim: int) -> int:
    """Return the index into the row's ascending ``|v|`` whose element is the clip threshold; -1 when clipping is off.

    Raises ValueError when ``ratio`` is not a number in ``[0, 1]``.
    """
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0.0 <= ratio <= 1.0:
        raise ValueError(f"clip ratio must be a number in [0, 1], got {ratio!r}")
    return -1 if ratio == 0 else min(int(ratio * head_dim), head_dim - 1)


def grouping_of(head_dim: int, scales_last_dim: int) -> tuple[int, int]:
    """Return ``(group_size, num_groups)`` of a scale buffer whose last dimension is ``scales_last_dim``.

    Raises ValueError, naming both numbers, when that dimension is no ``2 * G`` with ``G`` dividing ``head_dim``.
    """
    groups = scales_last_dim // 2
    if scales_last_dim < 2 or scales_last_dim % 2 or head_dim % groups:
        raise ValueError(f"a scale buffer with last dimension {scales_last_dim} does not fit head dimension {head_dim}")
    return resolve_grouping(head_dim, head_dim // groups)
