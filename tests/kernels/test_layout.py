import subprocess
import sys

import pytest

from escha_oscar.kernels import resolve_grouping
from escha_oscar.kernels.layout import clip_index, grouping_of


@pytest.mark.parametrize(
    ("head_dim", "group_size", "expected"),
    [
        (256, 256, (256, 1)),
        (256, None, (256, 1)),
        (256, 64, (64, 4)),
        (256, 32, (32, 8)),
        (256, 128, (128, 2)),
        (96, 32, (32, 3)),
    ],
)
def test_groups_that_tile_the_head(head_dim, group_size, expected):
    assert resolve_grouping(head_dim, group_size) == expected


@pytest.mark.parametrize(
    ("head_dim", "group_size"), [(96, 64), (64, 128), (256, 0), (256, -32), (256, 48), (0, 32), (-4, 4), (6, 2)]
)
def test_groups_that_do_not_are_refused_with_both_numbers(head_dim, group_size):
    with pytest.raises(ValueError, match=rf"{group_size}.*{head_dim}|{head_dim}.*{group_size}"):
        resolve_grouping(head_dim, group_size)


@pytest.mark.parametrize(
    ("ratio", "head_dim", "index"),
    [
        (0.92, 256, 235),
        (0.96, 256, 245),
        (0.92, 128, 117),
        (0.96, 128, 122),
        (1.0, 256, 255),
        (1, 256, 255),
        (0.0, 256, -1),
        (0, 128, -1),
    ],
)
def test_clip_index(ratio, head_dim, index):
    assert clip_index(ratio, head_dim) == index


@pytest.mark.parametrize("ratio", [1.2, -0.1, "abc", None, float("nan"), True])
def test_clip_ratio_out_of_range(ratio):
    with pytest.raises(ValueError, match="clip ratio"):
        clip_index(ratio, 256)


def test_scale_buffer_width_gives_the_groups():
    assert grouping_of(256, 16) == (32, 8)
    for width in (0, 3, 1, 14):
        with pytest.raises(ValueError, match=f"{width}.*256"):
            grouping_of(256, width)


def test_layout_needs_no_torch_and_reference_no_triton():
    code = (
        "import sys; from escha_oscar.kernels import resolve_grouping; assert 'torch' not in sys.modules;"
        "from escha_oscar.kernels import reference; assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
