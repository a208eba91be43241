"""The price of an update over the same NumPy adds and Allreduce of the same bytes, written out by hand.

mpirun -n 2 python tests/distributed/programs/update_loop.py     prints one line per size: n, workers, ms, ms, ratio
"""

import statistics
import sys
import time

import numpy as np
from sprint.distributed.buffers import TAIL, Deposit, GradientBuffer, VersionedWeights
from sprint.distributed.comm import open_comm
from sprint.distributed.options import Options
from sprint.distributed.progress import Progress
from sprint.distributed.ranks import slice_of
from sprint.distributed.telemetry import WORKER_TERMS, Clock, Telemetry
from sprint.distributed.update import Updater
from sprint.distributed.watch import Pulse


class Still:
    """Leaves a small gradient in the buffer."""

    def deposit(self, buffer, add, scale):
        buffer.fill(1e-6)


class Bare:
    """Algorithm 2 as it stands, with no locks, versions, checks or recovery."""

    def __init__(self, comm, n, workers):
        self.comm, self.own = comm, slice_of(n, comm.rank, comm.size)
        self.gradients = [np.full(n + TAIL, 1e-6, np.float32) for _ in range(workers)]
        self.send, self.recv, self.latest = (np.zeros(n + TAIL, np.float32) for _ in range(3))
        self.delta = np.zeros(self.own.stop - self.own.start, np.float32)
        self.old = np.zeros_like(self.delta)

    def step(self):
        np.copyto(self.send, self.gradients[0])
        for gradient in self.gradients[1:]:
            np.add(self.send, gradient, out=self.send)
        np.copyto(self.old, self.latest[self.own])
        mine = self.send[self.own]
        np.add(mine, self.old, out=mine)
        np.multiply(self.delta, np.float32(0.9), out=self.delta)
        np.add(mine, self.delta, out=mine)
        self.comm.allreduce(self.send, self.recv)
        np.subtract(self.recv[self.own], self.old, out=self.delta)
        np.copyto(self.latest, self.recv)


def measure(comm, n, workers, repeats):
    """Return the medians (ms) of our update and of the bare one, made in turns."""
    weights, telemetry = VersionedWeights(np.zeros(n, np.float32)), Telemetry(workers)
    buffers = [GradientBuffer(n, 0) for _ in range(workers)]
    options = Options(rate=lambda samples, version: 1.0)
    updater = Updater(comm, weights, buffers, options, telemetry, Progress())
    bare, clock, pulse, together = Bare(comm, n, workers), Clock(WORKER_TERMS), Pulse("update"), np.zeros(1)
    times = {"ours": [], "bare": []}
    for repeat in range(repeats + 3):
        for t, buffer in enumerate(buffers):
            buffer.deposit(Still(), Deposit(t, weights.published.version, 0, 1, 1.0), lambda late: 1.0, clock)
        for name, step in (("ours", lambda: updater.step(pulse)), ("bare", bare.step)):
            comm.meet(together)
            began = time.perf_counter()
            step()
            if repeat >= 3:
                times[name].append(1e3 * (time.perf_counter() - began))
    return statistics.median(times["ours"]), statistics.median(times["bare"])


def main():
    comm = open_comm()
    sizes = [int(float(x)) for x in sys.argv[1:]] or [100_000, 1_000_000, 5_000_000]
    for n in sizes:
        for workers in (1, 2):
            ours, bare = measure(comm, n, workers, max(15, int(5e7 / n / 5)) if n < 1e6 else 25)
            if comm.rank == 0:
                print(f"{n} parameters, {workers} workers: update {ours:.3f} ms, bare {bare:.3f} ms, "
                      f"ratio {ours / bare:.2f}", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
