"""sprint with the stand-in for CuPy, and MPI as it is: stand_in.py PROGRAM_OF_THE_CHILD ARGUMENT..."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import fake_cupy
from sprint.__main__ import run
from sprint.distributed import probe

fake_cupy.install(pytest.MonkeyPatch())
probe.PROGRAM = sys.argv[1]
sys.exit(run(sys.argv[2:]))
