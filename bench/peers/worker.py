"""The process of one contender: answers one JSON line for every JSON line it is asked, and works only then."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .cases import FROZEN_LR, Case
from .contender import Calls, Contender, open_contender


def resident() -> tuple[int, int]:
    """Bytes of this process in the host's memory: present and peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmRSS"].split()[0]), 1024 * int(status["VmHWM"].split()[0])


class Worker:
    """The questions that a process answers, each a method."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self._on_host = contender.case.device.startswith("host")
        self._before = resident()[0] if self._on_host else contender.device_bytes()
        self._calls: tuple[str, Calls] | None = None
        contender.build()

    def losses(self, steps: int) -> list[float]:
        """Mean loss before each of the next steps."""
        found = []
        for _ in range(steps):
            self.contender.step(self.contender.case.lr)
            found.append(self.contender.loss())
        return found

    def steps(self, count: int) -> dict[str, float]:
        """Milliseconds of one of `count` steps after an untimed one."""
        self.contender.step(FROZEN_LR)
        return {"step": self._ms(lambda: self._steps(count)) / count}

    def memory(self) -> dict[str, int]:
        """Peak bytes so far, and how many of them came after the libraries were loaded (of a GPU: these only)."""
        if self._on_host:
            peak = resident()[1]
            return {"peak": peak, "growth": peak - self._before}
        growth = self.contender.device_bytes() - self._before
        return {"peak": growth, "growth": growth}

    def layer(self, name: str, count: int) -> dict[str, float]:
        """Median milliseconds of forward and backward of one layer in `count` calls after an untimed one."""
        if self._calls is None or self._calls[0] != name:
            self._calls = None  # free the arrays of the layer before
            self._calls = name, self.contender.layer(name)
        samples = [[self._ms(call) for call in self._calls[1]] for _ in range(count + 1)]
        forward, backward = np.median(samples[1:], axis=0)
        return {"forward": float(forward), "backward": float(backward)}

    def own_time(self) -> dict[str, float]:
        """What this engine costs besides its kernels (own_time.OwnTime)."""
        from .own_time import own_time

        return asdict(own_time(self.contender.case))

    def version(self) -> str:
        """Of the engine."""
        return self.contender.version()

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self.contender.step(FROZEN_LR)

    def _ms(self, call: Callable[[], Any]) -> float:
        self.contender.synchronize()
        begin = time.perf_counter()
        call()
        self.contender.synchronize()
        return 1e3 * (time.perf_counter() - begin)


def answer(worker: Worker, replies: TextIO) -> None:
    """Answer until the questions end."""
    for line in sys.stdin:
        question = json.loads(line)
        result = getattr(worker, question.pop("ask"))(**question)
        print(json.dumps({"result": result}), file=replies, flush=True)


def main(arguments: list[str]) -> None:
    """Serve contender arguments[0] on the case arguments[1] (JSON); whatever libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer(Worker(open_contender(arguments[0], Case(**json.loads(arguments[1])))), replies)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])
