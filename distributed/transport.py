"""How the flat vectors of all ranks become their sum: in host memory, or in device memory by MPI or NCCL.

The update thread's vectors lie on the host. A device transport copies them up and the sum down around its collective,
through page-locked memory and on a stream of its own, so that it waits for no worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..kernels.cuda import CudaDevice
from ..kernels.device import Array
from .ranks import Comm, StartError, flat

Collective = Callable[[Array, Array], None]  # (send, recv): two arrays of the device


class Transport(Protocol):
    """A collective of all ranks; `name` is the option that asks for it, or host."""

    name: str

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """recv = sum of `send` over the ranks, both (n,) float32 on the host. Raises RankFailed, RuntimeError."""

    def close(self) -> None:
        """Release what it holds, at a good end."""


class HostTransport:
    """The communicator sums the host's vectors as they are."""

    name = "host"

    def __init__(self, comm: Comm, ordered: bool = False) -> None:
        """`ordered`: in rank order, so that a replay can repeat it."""
        self._sum = comm.ordered_allreduce if ordered else comm.allreduce

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """See Transport."""
        self._sum(send, recv)

    def close(self) -> None:
        """Nothing to release."""


class DeviceTransport:
    """`collective` of two vectors of n floats on `device`: the host's goes up before it, the sum comes down after."""

    def __init__(self, name: str, device: CudaDevice, n: int, collective: Collective,
                 close: Callable[[], None] = lambda: None) -> None:
        self.name, self.close = name, close
        self._stage, self._collective = device.stage(n), collective
        self._send, self._recv = device.zeros(n), device.zeros(n)

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """See Transport."""
        flat("allreduce", send, np.float32)
        self._stage.up(self._send, send)
        self._collective(self._send, self._recv)
        np.copyto(flat("allreduce", recv, np.float32), self._stage.down(self._recv))


def by_mpi(comm: Comm, device: CudaDevice, n: int) -> DeviceTransport:
    """MPI gets the device's own vectors, once the stream is done with them."""
    def collective(send: Array, recv: Array) -> None:
        device.synchronize()
        comm.device_allreduce(send, recv)

    return DeviceTransport("cuda-aware", device, n, collective)


def by_nccl(comm: Comm, device: CudaDevice, n: int, identity: str) -> DeviceTransport:
    """NCCL works on the stream of `device`. A collective: all ranks come with the `identity` that one has made."""
    group = device.communicator(comm.size, identity, comm.rank)
    return DeviceTransport("nccl", device, n, group.allreduce, group.close)


def rehearse(comm: Comm, transport: Transport, n: int) -> Callable[[], None]:
    """Make one sum of n floats before any counts; a collective. Returns what raises RuntimeError if it was wrong.

    Raises StartError where it could not be made.
    """
    pattern = np.arange(n, dtype=np.float32) % 251 + 1
    recv = np.full(n, np.nan, np.float32)
    try:
        transport.allreduce(pattern * np.float32(comm.rank + 1), recv)
    except RuntimeError as error:
        raise StartError(f"{transport.name}: a first sum over {comm.size} ranks failed: {error}") from error
    wrong = np.count_nonzero(recv != pattern * np.float32(comm.size * (comm.size + 1) // 2))

    def check() -> None:
        if wrong:
            raise RuntimeError(f"{transport.name}: expected a right first sum over {comm.size} ranks, "
                               f"got {wrong} of {n} floats wrong; leave --{transport.name} out")
    return check
