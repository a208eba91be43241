"""sprint, one rank of which does not get on where it is told: stuck.py PLACE RANK WAY SECONDS ARGUMENT..."""

from __future__ import annotations

import os
import signal
import sys
import time

from sprint.__main__ import run
from sprint.distributed import opening, scoring, tracing
from sprint.distributed.checkpoints import Checkpoints

PLACES = {"open": (opening, "_sessions"), "score": (scoring, "evaluate"), "save": (Checkpoints, "__call__"),
          "end": (tracing, "write")}


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


WAYS = {"stop": lambda seconds: os.kill(os.getpid(), signal.SIGSTOP), "sleep": time.sleep, "work": work}


def main():
    place, rank, way, seconds, *arguments = sys.argv[1:]
    holder, name = PLACES[place]
    real = getattr(holder, name)

    def stuck(*positional, **named):
        WAYS[way](float(seconds))
        return real(*positional, **named)

    if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
        setattr(holder, name, stuck)
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
