"""The mpirun fixture, and the analytic workers for the tests in process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from launch import find_mpirun, run_program


@pytest.fixture
def mpirun(tmp_path):
    """Return run(ranks, program, *arguments, ft=, limit_s=, env=, during=) -> Finished."""
    if find_mpirun() is None:
        pytest.skip("mpirun is not installed")

    def run(ranks, program, *arguments, **more):
        folder = tmp_path / f"mpirun{len(list(tmp_path.glob('mpirun*')))}"
        folder.mkdir()
        finished = run_program(ranks, program, arguments, folder, **more)
        assert not finished.timed_out, f"job hung for {finished.seconds:.1f} s:\n{finished.out}\n{finished.err}"
        return finished

    return run
