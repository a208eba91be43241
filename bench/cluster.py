"""The threads, mutexes and meetings of a simulated cluster, event by event.

Source: Oyama et al. 2016, algorithm 1 (GPU thread) and algorithm 2 (update thread).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from .loops import Pieces
from .outcome import Config


def _simpy() -> Any:
    """The module simpy. Raises: RuntimeError that says how to get it."""
    try:
        import simpy
    except ImportError:
        raise RuntimeError("simulate: expected simpy, got none (pip install 'sprint-cnn[plan]')") from None
    return simpy


class Mutex:
    """First come, first served, without an event: everybody says at once for how long.

    Requests are made in the order of time, so each can be told its moment when it asks, and what it does inside counts
    as done for all who ask later.
    """

    __slots__ = ("free_at",)

    def __init__(self) -> None:
        self.free_at = 0.0

    def enter(self, now: float, hold: float) -> float:
        """The moment at which one who asks `now`, to stay for `hold` seconds, gets in."""
        begin = self.free_at if self.free_at > now else now
        self.free_at = begin + hold
        return begin


class Node:
    """What the threads of one node share; each GradBuf holds the weight versions of the gradients inside."""

    __slots__ = ("buffers", "dead", "locks", "number", "pace", "version", "weights")

    def __init__(self, number: int, devices: int, pace: float) -> None:
        self.number, self.pace, self.version, self.dead = number, pace, 0, False
        self.weights = Mutex()
        self.locks = [Mutex() for _ in range(devices)]
        self.buffers: list[list[int]] = [[] for _ in range(devices)]


class Tally:
    """Sums over the turns after the warm-up of `skip` updates: seconds by term, and what the updates held."""

    def __init__(self, skip: int, updates: int) -> None:
        self.skip, self.last = skip, skip + updates
        self.gpu = {"lock_weights": 0.0, "fetch_weights": 0.0, "compute_gradient": 0.0, "lock_gradient": 0.0}
        self.update = {"lock_gradient": 0.0, "sum_gradient": 0.0, "barrier": 0.0, "lock_weights": 0.0}
        self.gpu_turns = self.update_turns = 0
        self.gradients = np.zeros(self.last + 1, dtype=np.int64)  # by update
        self.staleness: Counter[int] = Counter()
        self.moments: list[float] = []  # at which each update's nodes were all there

    def gpu_turn(self, version: int, lock: float, fetch: float, compute: float, deposit_lock: float) -> None:
        """One turn of a GPU thread, in seconds."""
        if version < self.skip:
            return
        sums = self.gpu
        sums["lock_weights"] += lock
        sums["fetch_weights"] += fetch
        sums["compute_gradient"] += compute
        sums["lock_gradient"] += deposit_lock
        self.gpu_turns += 1

    def update_turn(self, version: int, lock: float, add: float, barrier: float, publish_lock: float) -> None:
        """One turn of an update thread, in seconds."""
        if version < self.skip:
            return
        sums = self.update
        sums["lock_gradient"] += lock
        sums["sum_gradient"] += add
        sums["barrier"] += barrier
        sums["lock_weights"] += publish_lock
        self.update_turns += 1

    def gathered(self, version: int, versions: list[int]) -> None:
        """What one node brings to the update after `version`: gradients, each made with its own version."""
        self.gradients[version] += len(versions)
        if version >= self.skip:
            self.staleness.update(version - made for made in versions)


class Cluster:
    """All nodes, their threads and the Allreduce between them.

    pieces_for: number of nodes alive -> Pieces (floats); computes: seconds of ComputeGradient, one a turn;
    slow: node -> how many times longer its gradients take; skip, updates: how many updates to play as a warm-up
    and then to count.
    """

    def __init__(self, config: Config, pieces_for: Callable[[int], Pieces], computes: Iterator[float],
                 slow: Mapping[int, float], skip: int, updates: int) -> None:
        self.env = _simpy().Environment()
        self.pieces_for, self.computes = pieces_for, computes
        self.members = config.nodes
        self.pieces = pieces_for(self.members)
        self.nodes = [Node(n, config.devices, slow.get(n, 1.0)) for n in range(config.nodes)]
        self.tally = Tally(skip, updates)
        self.waiting: set[int] = set()
        self.meeting, self.finished = self.env.event(), self.env.event()

    def run(self, starts: np.ndarray, deaths: Mapping[int, float], detect_s: float) -> Tally:
        """Play until the last update.

        starts: (nodes, devices) seconds at which the GPU threads begin; deaths: node -> second; detect_s: seconds
        from a death until the others go on without the node.
        """
        for node, row in zip(self.nodes, starts.tolist(), strict=True):
            for device, start in enumerate(row):
                self.env.process(self._gpu_thread(node, device, start))
            self.env.process(self._update_thread(node))
        for number, second in deaths.items():
            self.env.process(self._death(self.nodes[number], second, detect_s))
        self.env.run(until=self.finished)
        return self.tally

    def _gpu_thread(self, node: Node, device: int, start: float) -> Generator[Any, Any, None]:
        env, lock, mine = self.env, node.locks[device], -1
        yield env.timeout(start)
        while not node.dead:
            pieces, now = self.pieces, env.now
            fetch = pieces.fetch if node.version > mine else 0.0
            mine, locked = node.version, node.weights.enter(now, fetch)
            compute = next(self.computes) * node.pace
            yield env.timeout(locked - now + fetch + pieces.load + pieces.deform + compute + pieces.update_val)
            ready = env.now
            begin = lock.enter(ready, pieces.deposit)
            node.buffers[device].append(mine)
            self.tally.gpu_turn(mine, locked - now, fetch, compute, begin - ready)
            yield env.timeout(begin - ready + pieces.deposit)

    def _update_thread(self, node: Node) -> Generator[Any, Any, None]:
        env = self.env
        while not node.dead:
            pieces, version, lock, add, brought = self.pieces, node.version, 0.0, 0.0, list[int]()
            for device, mutex in enumerate(node.locks):
                now, hold = env.now, 0.0
                if node.buffers[device]:
                    hold = pieces.add if brought else pieces.take
                    brought += node.buffers[device]
                    node.buffers[device] = []
                wait = mutex.enter(now, hold) - now
                lock, add = lock + wait, add + hold
                if wait + hold:
                    yield env.timeout(wait + hold)
            if not brought:
                add = pieces.clear
            yield env.timeout((0.0 if brought else pieces.clear) + pieces.old + pieces.momentum_add)
            if node.dead:
                return
            self.tally.gathered(version, brought)
            arrived = env.now
            yield self._arrive(node)
            barrier = env.now - arrived
            yield env.timeout(self.pieces.reduce + pieces.momentum)
            now = env.now
            publish_lock = node.weights.enter(now, pieces.publish) - now
            node.version += 1
            yield env.timeout(publish_lock + pieces.publish)
            self.tally.update_turn(version, lock, add, barrier, publish_lock)

    def _arrive(self, node: Node) -> Any:
        """Come to the Allreduce; the event comes when all members are there."""
        meeting = self.meeting
        self.waiting.add(node.number)
        self._meet()
        return meeting

    def _meet(self) -> None:
        if len(self.waiting) < self.members:
            return
        meeting, self.meeting = self.meeting, self.env.event()
        self.waiting.clear()
        self.tally.moments.append(self.env.now)
        meeting.succeed()
        if len(self.tally.moments) > self.tally.last:
            self.finished.succeed()

    def _death(self, node: Node, second: float, detect_s: float) -> Generator[Any, Any, None]:
        """The node falls silent; the others wait for it until they notice, then go on without it."""
        yield self.env.timeout(second)
        node.dead = True
        self.waiting.discard(node.number)
        yield self.env.timeout(detect_s)
        self.members -= 1
        self.pieces = self.pieces_for(self.members)
        self._meet()
