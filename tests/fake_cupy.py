"""A stand-in for CuPy: device memory is host memory, kernels run in simt mode, and everything queued waits.

It is stricter than a GPU: work on a stream runs only when somebody waits for it, a launch must come from a thread whose
current device and stream are the arrays', scalars must have their declared type, and arrays do not turn into NumPy's.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
from sprint.kernels import source
from sprint.kernels.host import c_types


class CUDARuntimeError(RuntimeError):
    pass


class CUBLASError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    pass


class ndarray:
    """What the project may use of cupy.ndarray."""

    def __init__(self, host, device):
        self.host, self.device_id = host, device
        self.shape, self.dtype, self.strides, self.ndim = host.shape, host.dtype, host.strides, host.ndim
        self.size, self.nbytes = host.size, host.nbytes
        self.flags = SimpleNamespace(c_contiguous=host.flags.c_contiguous)
        self.data = SimpleNamespace(ptr=host.__array_interface__["data"][0], device_id=device)

    @property
    def __cuda_array_interface__(self):
        return {**self.host.__array_interface__, "version": 3, "strides": None}

    def __getitem__(self, key):
        return ndarray(self.host[key], self.device_id)

    def __len__(self):
        return len(self.host)

    def reshape(self, *shape):
        return ndarray(self.host.reshape(*shape), self.device_id)

    def view(self, dtype):
        return ndarray(self.host.view(dtype), self.device_id)

    def transpose(self, *axes):
        return ndarray(self.host.transpose(*axes), self.device_id)

    @property
    def T(self):
        return self.transpose()

    def fill(self, value):
        FAKE.stream().queue(lambda: self.host.fill(value))

    def __imul__(self, factor):
        FAKE.stream().queue(lambda: np.multiply(self.host, factor, out=self.host))
        return self

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")


class Stream:
    """Runs nothing by itself: only up to what an event or synchronize() waits for."""

    def __init__(self, non_blocking=False):
        self.device, self.non_blocking, self.done, self.work = FAKE.device(), non_blocking, 0, []
        self.ptr = id(self)
        FAKE.streams[self.ptr] = self

    def use(self):
        assert FAKE.device() == self.device, "stream of another device"
        FAKE.local.stream = self

    def queue(self, call):
        self.work.append(call)

    def run(self, until):
        while self.done < until:
            self.done += 1
            self.work[self.done - 1]()

    def synchronize(self):
        self.run(len(self.work))


class Event:
    def __init__(self, disable_timing=False):
        self.stream, self.position, self.timed, self.reached_s = None, 0, not disable_timing, None

    def record(self, stream):
        self.reached_s = None
        stream.queue(self.reach)
        self.stream, self.position = stream, len(stream.work)

    def reach(self):
        self.reached_s = time.perf_counter()

    def synchronize(self):
        if self.stream:
            self.stream.run(self.position)


def get_elapsed_time(first, last):
    if not (first.timed and last.timed) or first.reached_s is None or last.reached_s is None:
        raise CUDARuntimeError("cudaErrorNotReady: device not ready")
    return 1e3 * (last.reached_s - first.reached_s)


class NcclError(RuntimeError):
    pass


class NcclCommunicator:
    """The ranks of a group are threads of this process; they meet when their streams get to the sum."""

    def __init__(self, size, identity, rank):
        assert len(identity) == 128 and all(-128 <= byte < 128 for byte in identity) and 0 <= rank < size
        self.meeting, self.devices, self.sent = FAKE.groups.setdefault(identity, (threading.Barrier(size), {}, {}))
        self.rank = rank
        self.devices[rank] = FAKE.device()
        self.meeting.wait(10)
        if len(set(self.devices.values())) < size:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)")

    def allReduce(self, send, recv, count, datatype, op, stream):
        assert (datatype, op, stream) == (7, 0, FAKE.stream().ptr) and FAKE.device() == self.devices[self.rank]
        FAKE.streams[stream].queue(lambda: self.sum(*(_floats(pointer, count) for pointer in (send, recv))))

    def sum(self, send, recv):
        self.sent[self.rank] = send.copy()
        self.meeting.wait(10)
        total = sum(self.sent[rank] for rank in sorted(self.sent))
        self.meeting.wait(10)
        recv[:] = total

    def destroy(self):
        self.devices.pop(self.rank)


def _floats(pointer, count):
    return np.ndarray(count, np.float32, (ctypes.c_float * count).from_address(pointer))


class RawKernel:
    def __init__(self, module, name):
        self.module, self.name, self.compiled = module, name, False

    def compile(self):
        self.compiled = True

    def __call__(self, grid, block, args):
        assert self.compiled and threading.get_ident() and FAKE.stream().device == FAKE.device()
        FAKE.launches.append(SimpleNamespace(name=self.name, grid=grid, block=block, args=args))
        FAKE.stream().queue(lambda: self.run(grid, block, args))

    @functools.cached_property
    def function(self):
        signature = source.signatures(self.module.family)[self.name]
        function = source.build_kernels(self.module.family, "simt")[f"launch_{self.name}"]
        function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, *c_types(signature)]
        return function

    def run(self, grid, block, args):
        signature = source.signatures(self.module.family)[self.name]
        for parameter, value in zip(signature.parameters, args, strict=True):
            assert parameter.pointer or type(value) is parameter.dtype.type, (parameter.name, type(value))
            assert not parameter.pointer or value.device_id == FAKE.device()
        values = [a.data.ptr if isinstance(a, ndarray) else a.item() for a in args]
        assert self.function((ctypes.c_uint * 6)(*grid, *block), 0, 0, *values) == 0, "a kernel hangs"


class RawModule:
    def __init__(self, *, code, options, backend):
        assert backend == "nvrtc" and all(isinstance(option, str) for option in options)
        if FAKE.fault:
            raise CompileException(FAKE.fault)
        self.family = re.findall(r'#line 1 "(\w+)\.cu"', code)[0]
        FAKE.compiled.append((FAKE.device(), self.family))

    def get_function(self, name):
        return RawKernel(self, name)


class Fake:
    """The state of all devices, and what was asked of them."""

    def __init__(self, devices):
        self.devices, self.local, self.streams, self.fault = devices, threading.local(), {}, ""
        self.launches, self.compiled, self.memory, self.math_modes, self.handles = [], [], [], {}, 0
        self.ranges = []  # labels of NVTX ranges as they begin, None where one ends
        self.memory_limit = 1 << 30
        self.pinned = []  # (address, bytes) of all page-locked memory
        self.groups = {}  # of NCCL, by their identity: barrier, devices and vectors of the ranks

    def device(self):
        return getattr(self.local, "device", 0)

    def stream(self):
        assert hasattr(self.local, "stream"), "work on the default stream"
        return self.local.stream

    def set_device(self, index):
        self.local.device = index

    def allocate(self, shape, dtype, value):
        count = int(np.prod(shape, dtype=np.int64))
        if count * np.dtype(dtype).itemsize > self.memory_limit:
            raise OutOfMemoryError(f"Out of memory allocating {count * np.dtype(dtype).itemsize:,} bytes")
        array = ndarray(np.full(shape, value, dtype), self.device())
        self.stream()
        self.memory.append(array)
        return array

    def empty(self, shape, dtype):
        return self.allocate(shape, dtype, np.nan if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max)

    def zeros(self, shape, dtype):
        return self.allocate(shape, dtype, 0)

    def alloc_pinned(self, size):
        memory = bytearray(size)
        self.pinned.append((np.frombuffer(memory, np.uint8).ctypes.data, size))
        return memory

    def memcpy(self, dst, src, size, kind, stream):
        assert stream == self.stream().ptr and kind in (1, 2, 3)
        host = {1: src, 2: dst, 3: None}[kind]
        assert host is None or any(start <= host and host + size <= start + length for start, length in self.pinned), \
            "an asynchronous copy of memory that is not page-locked"
        self.streams[stream].queue(lambda: ctypes.memmove(dst, src, size))

    def create(self):
        self.handles += 1
        return self.handles

    def sgemm(self, handle, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        """Column-major, as cuBLAS has it; the scalars are read at the call, the matrices later."""
        alpha, beta = (ctypes.cast(p, ctypes.POINTER(ctypes.c_float))[0] for p in (alpha, beta))
        a = _column_major(a, *((k, m) if trans_a else (m, k)), lda)
        b = _column_major(b, *((n, k) if trans_b else (k, n)), ldb)
        c = _column_major(c, m, n, ldc)

        def run():
            product = np.float32(alpha) * ((a.T if trans_a else a) @ (b.T if trans_b else b))
            c[...] = product + np.float32(beta) * c if beta else product

        self.stream().queue(run)


def _column_major(pointer, rows, columns, ld):
    if ld < max(1, rows):
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: leading dimension {ld} of {rows} rows")
    buffer = (ctypes.c_float * (ld * (columns - 1) + rows)).from_address(pointer)
    return np.ndarray((rows, columns), np.float32, buffer, strides=(4, 4 * ld))


def install(monkeypatch, devices=2):
    """Puts the stand-in where `import cupy` finds it, and lets the driver seem to be there. Returns its state."""
    global FAKE
    FAKE = Fake(devices)
    names = ("cupy", "cupy.cuda", "cupy.cuda.nccl", "cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs")
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    cupy, libs = modules["cupy"], modules["cupy_backends.cuda.libs"]
    cupy.ndarray, cupy.RawModule, cupy.empty, cupy.zeros = ndarray, RawModule, FAKE.empty, FAKE.zeros
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 1 << 20)
    cupy.cuda = SimpleNamespace(
        Stream=Stream, Event=Event, get_elapsed_time=get_elapsed_time, alloc_pinned_memory=FAKE.alloc_pinned,
        driver=SimpleNamespace(CUDADriverError=CUDARuntimeError),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        compiler=SimpleNamespace(CompileException=CompileException),
        nvtx=SimpleNamespace(RangePush=FAKE.ranges.append, RangePop=lambda: FAKE.ranges.append(None)),
        runtime=SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: FAKE.devices, setDevice=FAKE.set_device,
            getDevice=FAKE.device, memGetInfo=lambda: (1 << 30, 2 << 30), memcpyAsync=FAKE.memcpy,
            memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
            getDeviceProperties=lambda index: {"name": b"Fake GPU", "major": 9, "minor": 0}))
    modules["cupy.cuda.nccl"].__dict__.update(
        available=True, NcclError=NcclError, NcclCommunicator=NcclCommunicator, NCCL_FLOAT32=7, NCCL_SUM=0,
        get_version=lambda: 22000, get_unique_id=lambda: tuple(np.frombuffer(os.urandom(128), np.int8).tolist()))
    libs.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    libs.cublas = SimpleNamespace(CUBLAS_OP_N=0, CUBLASError=CUBLASError, create=FAKE.create, sgemm=FAKE.sgemm,
                                  setMathMode=FAKE.math_modes.__setitem__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("sprint.kernels.cuda._driver_found", lambda: True)
    return FAKE
