"""Every op of the table at its own sizes under pytest-benchmark: checked first, never timed when wrong."""

from __future__ import annotations

from typing import Any

import pytest
from sprint.bench.checking import check
from sprint.bench.op import Case
from sprint.bench.selection import default_cases
from sprint.kernels.device import Device


@pytest.mark.parametrize("case", default_cases([]), ids=lambda case: case.problem.text)
def test_kernel(case: Case, device: Device, benchmark: Any) -> None:
    """GB/s and GFLOP/s of the median go into extra_info."""
    if reason := case.op.missing(device, case.problem):
        pytest.skip(reason)
    checked = check(device, case)
    benchmark(checked.run, checked.arrays)
    median_s = benchmark.stats.stats.median
    benchmark.extra_info.update({
        "problem": case.problem.text, "bytes": case.bytes_moved, "flops": case.flops,
        "gb_per_s": case.bytes_moved / median_s / 1e9, "gflop_per_s": case.flops / median_s / 1e9})
