"""Ctrl-C with manners: the first one asks, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets `asked`, the second raises KeyboardInterrupt, a
    third ends the process. Outside the main thread, where Python handles no signals, `asked` stays False."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.asked = True
