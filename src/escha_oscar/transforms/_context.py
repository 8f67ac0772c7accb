"""What a transform is given besides the module: the chosen grafts and two facts about the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from escha_oscar.graft import Chosen


@dataclass(frozen=True)
class Context:
    """``path`` is the file being merged; ``chosen`` holds the text of every definition that arrives there.

    ``extra_env`` are environment fields that transplanted code reads (name -> default expression);
    ``extend_takes_scales`` says whether the base's extend kernel has ``k_scale`` and ``v_scale``.
    """

    path: str
    chosen: Chosen = field(default_factory=lambda: Chosen({}))
    kernels: str = "native"
    extra_env: Mapping[str, str] = field(default_factory=dict)
    extend_takes_scales: bool = True
