"""The trace file that Perfetto and Chrome open: one event a line, for whoever has something to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import jsontext

EVENT_LIMIT = 200_000  # events of a trace file; what comes later is counted, not kept


class TraceFile:
    """A Chrome trace (JSON array format), one event a line: what a killed run has written still opens in Perfetto.

    Times are microseconds; pid is the rank, tid the thread. Bounded by EVENT_LIMIT events.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w", encoding="utf-8")
        self._stream.write("[\n")
        self.written = self.dropped = 0

    def add(self, name: str, category: str, begin_ms: float, ms: float, *, rank: int = 0, thread: int = 0,
            **arguments: Any) -> None:
        """Write one complete event."""
        self._write({"name": name, "cat": category, "ph": "X", "ts": round(1e3 * begin_ms, 3),
                     "dur": round(1e3 * ms, 3), "pid": rank, "tid": thread, "args": arguments})

    def name_thread(self, rank: int, thread: int, name: str) -> None:
        """Name a row of the picture."""
        self._write({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})

    def arrow(self, number: int, name: str, begin_ms: float, end_ms: float, source: tuple[int, int],
              target: tuple[int, int]) -> None:
        """Draw an arrow between two (rank, thread) rows."""
        for phase, at, (rank, thread) in (("s", begin_ms, source), ("f", end_ms, target)):
            self._write({"name": name, "cat": "flow", "ph": phase, "id": number, "bp": "e", "ts": round(1e3 * at, 3),
                         "pid": rank, "tid": thread})

    def _write(self, event: dict[str, Any]) -> None:
        if self.written >= EVENT_LIMIT:
            self.dropped += 1
            return
        self._stream.write(jsontext.dumps(event) + ",\n")
        self._stream.flush()
        self.written += 1

    def close(self) -> None:
        """End the array; a reader does not need it."""
        last = {"name": "end", "ph": "M", "pid": 0, "args": {"dropped": self.dropped}}
        self._stream.write(jsontext.dumps(last) + "\n]\n")
        self._stream.close()
