"""Copies between host and GPU by way of page-locked memory, which the GPU reads and writes by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

STAGING_BYTES = 8 << 20  # of each of the two buffers: one is filled while the GPU works on the other


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
