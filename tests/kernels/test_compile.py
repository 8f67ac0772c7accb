"""Compile for cards that are not here: shared memory within each card's limit, no spilled registers in decode."""

import json
import os
import subprocess
import sys

import pytest

from .capture import SHARED_LIMIT


def spills_allowed(report):
    """What no tile spares from spilling: sixteen groups a head, whose sums alone are 64 registers, and heads of 512."""
    constants = report["constants"]
    dims = max(constants["DK"], constants["DV"])
    group = min(constants["GROUP_K"], constants["GROUP_V"])
    return dims // group > 8 or dims > 256


def check(subset, *cards):
    # A fresh process: in this one the kernels may belong to the interpreter.
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.compile_matrix", subset, *map(str, cards)],
        env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert reports
    for report in reports:
        assert report["shared"] <= SHARED_LIMIT[report["cc"]], report
        if report["kernel"] == "decode_codes_kernel" and not spills_allowed(report):
            assert report["stack"] == 0, report
        check_early_start(report)
    return reports


def check_early_start(report):
    """A kernel that may start early, which only Hopper's do, waits; the first stage before it reads."""
    assert report["early"] == (report["loads_before_wait"] is not None), report
    if report["kernel"] == "decode_codes_kernel":
        assert report["early"] == (report["cc"] == 90), report
        assert not report["loads_before_wait"], report


@pytest.mark.parametrize(
    ("cc", "driver", "early"), [(90, 12030, True), (90, 12020, None), (86, 13000, None), (120, 13000, None)]
)
def test_only_the_card_that_ran_it_starts_early(cc, driver, early):
    code = (
        "import torch; from tests.kernels import compile_matrix as matrix; from tests.kernels.capture import recorded\n"
        f"with recorded({cc}, driver={driver}) as launches: matrix._decode((64, 32, 6, 1), torch.float16)\n"
        "print([dict(launch.options).get('launch_pdl') for launch in launches])"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout.strip() == str([early, early]), run.stderr[-3000:]


# One card with much shared memory and one with little; the matrix has the others.
@pytest.mark.parametrize("cc", [90, 120])
def test_production_launches(cc):
    for report in check("production", cc):
        # On 9.x the spills around a prefill tile of 128 rows cost less than smaller tiles do (measured).
        assert report["stack"] == 0 or (report["kernel"] == "_extend_kernel" and cc == 90), report


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cc", sorted(SHARED_LIMIT))
def test_every_launch(cc):
    check("all", cc)
