"""Which machine a measurement belongs to, so that two are compared only where that means something."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from .. import __version__
from ..kernels import blas
from ..kernels.device import Device
from ..kernels.host import processor_name, usable_cores

SAME = ("processor", "cores", "device", "threads")  # must be equal in a comparison


def machine(device: Device) -> dict[str, Any]:
    """Facts about this machine and device, fit for JSON."""
    return {
        "processor": processor_name(), "cores": usable_cores(), "device": device.describe(), "kind": device.kind,
        "threads": device.threads, "memory_bytes": device.memory().total, "blas": blas.describe(),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "numpy": np.__version__, "sprint": __version__,
    }
