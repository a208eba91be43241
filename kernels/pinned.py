"""Copies between host and GPU by way of page-locked memory, which the GPU reads and writes by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from .device import check_copy

STAGING_BYTES = 8 << 20  # of each of the two buffers: one is filled while the GPU works on the other
Active = Callable[[str], AbstractContextManager[None]]  # what an operation of a device runs inside


class Staging:
    """Two page-locked buffers of one stream; the device lets one thread in at a time."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._runtime, self._stream = cupy.cuda.runtime, stream
        memory = [cupy.cuda.alloc_pinned_memory(STAGING_BYTES) for _ in range(2)]
        self._buffers = [np.frombuffer(part, np.uint8, STAGING_BYTES) for part in memory]
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def copy(self, dst: Any, src: Any) -> None:
        """dst = src for checked contiguous arrays; returns at once unless dst is on the host."""
        to_host, from_host = isinstance(dst, np.ndarray), isinstance(src, np.ndarray)
        if to_host and from_host:
            np.copyto(dst, src)
        elif from_host:
            self._to_device(dst.data.ptr, src.reshape(-1).view(np.uint8))
        elif to_host:
            self._to_host(dst.reshape(-1).view(np.uint8), src.data.ptr)
        else:
            kind = self._runtime.memcpyDeviceToDevice
            self._runtime.memcpyAsync(dst.data.ptr, src.data.ptr, src.nbytes, kind, self._stream.ptr)

    def _to_device(self, pointer: int, values: np.ndarray) -> None:
        for i, start in enumerate(range(0, values.size, STAGING_BYTES)):
            part, buffer, event = values[start : start + STAGING_BYTES], self._buffers[i % 2], self._events[i % 2]
            event.synchronize()  # the copy that used this buffer last
            buffer[: part.size] = part
            self._queue(pointer + start, buffer.ctypes.data, part.size, self._runtime.memcpyHostToDevice, event)

    def _to_host(self, values: np.ndarray, pointer: int) -> None:
        kind, before = self._runtime.memcpyDeviceToHost, None
        for i, start in enumerate(range(0, values.size, STAGING_BYTES)):
            part, buffer, event = values[start : start + STAGING_BYTES], self._buffers[i % 2], self._events[i % 2]
            event.synchronize()
            self._queue(buffer.ctypes.data, pointer + start, part.size, kind, event)
            self._collect(before)
            before = part, buffer, event
        self._collect(before)

    def _collect(self, queued: tuple[np.ndarray, np.ndarray, Any] | None) -> None:
        if queued:
            part, buffer, event = queued
            event.synchronize()
            part[:] = buffer[: part.size]

    def _queue(self, dst: int, src: int, size: int, kind: int, event: Any) -> None:
        self._runtime.memcpyAsync(dst, src, size, kind, self._stream.ptr)
        event.record(self._stream)


class PinnedStage:
    """One page-locked vector (n,) float32, for one thread: what a worker fetches and deposits goes through it whole."""

    def __init__(self, cupy: Any, stream: Any, active: Active, n: int) -> None:
        self._runtime, self._stream, self._active = cupy.cuda.runtime, stream, active
        with active(f"page-lock {n} floats"):
            self._values = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * n), np.float32, n)
        self._pointer = self._values.ctypes.data

    def up(self, dst: Any, src: np.ndarray) -> None:
        """Queue dst = src; `src` may be changed once this returns."""
        check_copy(self._values, src)
        check_copy(dst, self._values)
        with self._active("upload"):
            self._stream.synchronize()  # the copy before may still read the vector
            np.copyto(self._values, src)
            self._queue(dst.data.ptr, self._pointer, self._runtime.memcpyHostToDevice)

    def down(self, src: Any) -> np.ndarray:
        """The values of `src` in the page-locked vector, to be read before the next call; waits for the stream."""
        check_copy(self._values, src)
        with self._active("download"):
            self._queue(self._pointer, src.data.ptr, self._runtime.memcpyDeviceToHost)
            self._stream.synchronize()
        return self._values

    def _queue(self, dst: int, src: int, kind: int) -> None:
        self._runtime.memcpyAsync(dst, src, self._values.nbytes, kind, self._stream.ptr)
