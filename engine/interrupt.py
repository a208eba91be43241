"""Ctrl-C with manners: the first one asks, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets `number`, the second ends the program, a third ends
    the process. Outside the main thread, where Python handles no signals, `number` stays None.

    The second raises KeyboardInterrupt for SIGINT, SystemExit with code 143 for SIGTERM.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

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
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(exit_code(number))
        self.number = signal.Signals(number)


def exit_code(number: int) -> int:
    """Of a process that a signal has ended, as shells count."""
    return 128 + number
