"""Which machine a measurement belongs to, so that two are compared only where that means something."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import numpy as np

from .. import __version__
from ..kernels import blas
from ..kernels.device import Device
from ..kernels.host import processor_name, usable_cores

SAME = ("processor", "cores", "device", "threads")  # must be equal in a comparison


def busy(facts: dict[str, Any]) -> str | None:
    """Why times on this machine are upper bounds, or None when it has cores to spare."""
    load, cores = facts["load_average"], facts["cores"]
    return f"the machine was not idle: a load of {load:.1f} on {cores} cores" if load > cores else None


def warn_if_busy(facts: dict[str, Any]) -> None:
    """Say on standard error that times will be upper bounds, where they will."""
    if reason := busy(facts):
        print(f"warning: times are upper bounds: {reason}", file=sys.stderr)


def machine(device: Device) -> dict[str, Any]:
    """Facts about this machine and device, fit for JSON; load_average: processes that want a core now."""
    return {
        "processor": processor_name(), "cores": usable_cores(), "device": device.describe(), "kind": device.kind,
        "threads": device.threads, "memory_bytes": device.memory().total, "blas": blas.describe(),
        "load_average": os.getloadavg()[0], "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "numpy": np.__version__, "sprint": __version__,
    }
