"""Limits that options and devices share, without anything to load."""

from __future__ import annotations

THREADS = 1024  # of one host device; far beyond that the threads' stacks do not fit
DEVICE = r"auto|(host|cuda)(?::([0-9]{1,4}))?"  # names of devices
DEVICES = "auto, host, host:I, cuda or cuda:I (I of at most 4 digits)"
