"""Threads that work ahead on a stream of tasks and hand the results over in the order of the tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

Task = TypeVar("Task")
Result = TypeVar("Result")


class Prefetch(Generic[Task, Result]):
    """An iterator over work(task, buffer) for each task, made by `threads` threads within `buffers`.

    A result may use its buffer until the next one is asked for; then the buffer goes to another task.
    An exception in a thread is raised by the next `next()`, before any results that wait. Nothing runs before
    start(), nothing after close(). All state is under one condition; only `work` runs outside of it.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        work: Callable[[Task, np.ndarray], Result],
        buffers: list[np.ndarray],
        threads: int,
    ):
        self._tasks, self._work = tasks, work
        self._changed = threading.Condition()
        self._free = list(buffers)
        self._ready: dict[int, tuple[Result, np.ndarray]] = {}
        self._held: np.ndarray | None = None  # the buffer behind the result handed over last
        self._claimed = self._given = 0
        self._ended = False  # no more tasks, closed or failed
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"loader-{i}", daemon=True) for i in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads and wait for them, at most one task each."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __iter__(self) -> Prefetch[Task, Result]:
        return self

    def __next__(self) -> Result:
        with self._changed:
            if self._held is not None:
                self._free.append(self._held)
                self._held = None
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or self._given in self._ready or self._drained())
            if self._error:
                raise self._error
            if self._given not in self._ready:
                raise StopIteration
            result, self._held = self._ready.pop(self._given)
            self._given += 1
            return result

    def _drained(self) -> bool:
        return self._ended and self._given == self._claimed

    def _run(self) -> None:
        try:
            while (claim := self._claim()) is not None:
                number, task, buffer = claim
                result = self._work(task, buffer)
                with self._changed:
                    self._ready[number] = result, buffer
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error, self._ended = error, True
                self._changed.notify_all()

    def _claim(self) -> tuple[int, Task, np.ndarray] | None:
        """Take the next task and a free buffer together, so the oldest task always has one."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._free)
            task = None if self._ended else next(self._tasks, None)
            if task is None:
                self._ended = True
                self._changed.notify_all()
                return None
            self._claimed += 1
            return self._claimed - 1, task, self._free.pop()
