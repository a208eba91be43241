"""Kernels under AddressSanitizer and UBSan: planted faults stop the process and name the line; sound kernels pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
RUNNER = Path(__file__).parents[1] / "sanitize.py"
PROGRAM = """
import sys
import numpy as np
from sprint.kernels.device import elements
from sprint.kernels.simt import SimtDevice

TEXT = '''
extern "C" __global__ void planted(const float* x, float* y, i64 n, int big) {
  __shared__ float part[8];
  part[threadIdx.x % 8] = 0.f;
  __syncthreads();
  GRID_STRIDE_LOOP(i, n) {
    const float v = x[i];
    y[i] = FAULT;
  }
}
extern "C" __global__ void sound(const float* x, float* y, i64 n) {
  float row[64];
  BLOCK_ROWS(r, n) {
    for (int i = 0; i < 64; ++i) row[i] = x[r] + i;
    const float most = block_max(row[threadIdx.x % 64]), sum = block_sum(row[threadIdx.x % 64]);
    if (threadIdx.x == 0) y[r] = sum + most;
  }
}
'''.replace("FAULT", sys.argv[1])
n, x = 33, np.arange(33, dtype=np.float32)
for order in ("forward", "reverse", "shuffle"):
    for block in (32, 64, 256):
        device, y = SimtDevice(block=block, order=order, text=TEXT, sanitize=True), np.zeros(n, np.float32)
        device.launch("planted", "sound", elements(n), x, y, n)
        lane = np.arange(block) % 64
        assert np.array_equal(y, block * x + lane.sum() + x + lane.max())
        device.launch("planted", "planted", elements(n), x, y, n, 2**31 - 1)
print("finished")
"""


def run(fault):
    return subprocess.run([sys.executable, str(RUNNER), "-c", PROGRAM, fault], capture_output=True, text=True,
                          timeout=120, check=False)


def test_sound_kernels_pass():
    done = run("v + part[threadIdx.x % 8]")
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr


@pytest.mark.parametrize("fault, report", [
    ("x[i + 1]", "heap-buffer-overflow"),
    ("x[i - 1]", "heap-buffer-overflow"),
    ("v + (float)(big + (int)i + 1)", "signed integer overflow"),
    ("v + (float)(1 << ((int)i + 3))", "shift exponent 32 is too large"),
    ("part[i % 9]", "index 8 out of bounds"),
])
def test_planted_faults_stop_the_process_and_name_their_line(fault, report):
    done = run(fault)
    assert done.returncode != 0 and "finished" not in done.stdout
    assert report in done.stderr and "planted.cu:8" in done.stderr, done.stderr
