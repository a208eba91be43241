"""Simulate the asynchronous loops of a cluster: the same threads, mutexes, barriers and Allreduce, by events.

No equation says how long anybody waits: the locks are taken and the nodes meet, so the distributions that the
formulas only approximate come out by counting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from .bounds import finite, whole
from .cluster import Cluster, Tally
from .loops import Pieces, solve
from .machine import Machine
from .model import memory_bytes
from .outcome import Config, Distribution, Outcome
from .pieces import gradient_time, pieces_of

LEAST_UPDATES = 10
LONGEST_DETECT = 3600.0  # seconds, through which every other node is played
DRAWS = 1 << 14


@dataclass(frozen=True)
class Weather:
    """What makes a run differ from the smooth one.

    jitter: relative standard deviation of the time of a gradient, log-normal around the model's.
    times: seconds of ComputeGradient measured elsewhere, drawn in place of the model's.
    slow: node -> how many times longer its gradients take. deaths: node -> second at which it dies.
    detect_s: seconds from a death until the other nodes go on without it.
    """

    jitter: float = 0.0
    times: Sequence[float] = ()
    slow: Mapping[int, float] = field(default_factory=dict)
    deaths: Mapping[int, float] = field(default_factory=dict)
    detect_s: float = 1.0

    def check(self, nodes: int) -> None:
        """Raises: UsageError naming the field that does not fit a run of `nodes` nodes."""
        finite("simulate: jitter", self.jitter)
        finite("simulate: detect", self.detect_s, LONGEST_DETECT)
        for seconds in self.times:
            finite("simulate: times", seconds, positive=True)
        for name, values in (("slow", self.slow), ("kill", self.deaths)):
            for node, value in values.items():
                whole(f"simulate: node of {name}", node, 0, nodes - 1)
                finite(f"simulate: {name}", value, positive=True)
        if len(self.deaths) >= nodes:
            raise UsageError(f"simulate: kill: expected fewer than {nodes} deaths, got {len(self.deaths)}")


def simulate(spec: NetSpec, machine: Machine, config: Config, weather: Weather, *, updates: int = 200,
             seed: int = 0) -> Outcome:
    """Play a warm-up of three turns of the GPU threads or more, then `updates` updates, and count.

    The GPU threads begin at random moments of a turn, for a run forgets that all began together.
    Raises: UsageError naming a constant that the machine lacks, what does not fit in the weather, or updates
    too few for any gradient to arrive.
    """
    whole("simulate: updates", updates, LEAST_UPDATES)
    whole("simulate: seed", seed, 0)
    weather.check(config.nodes)
    gradient = gradient_time(spec, machine, config.subbatch)
    busy = machine.busy(config.devices, config.ranks_per_host)

    def pieces_for(nodes: int) -> Pieces:
        return floats(pieces_of(spec, machine, nodes, config.subbatch, gradient, busy))

    random = np.random.default_rng(seed)
    first = pieces_for(config.nodes)
    smooth = solve(first, config.nodes, config.devices)
    skip = max(updates // 10, math.ceil(3 * smooth.t_gpu / smooth.t_update))
    starts = random.uniform(0, float(smooth.t_gpu), (config.nodes, config.devices))
    cluster = Cluster(config, pieces_for, computes(first.compute, weather, random), weather.slow, skip, updates)
    tally = cluster.run(starts, weather.deaths, weather.detect_s)
    if not tally.staleness:
        raise UsageError(f"simulate: updates: expected enough for a gradient to arrive, got {updates}")
    return _outcome(tally, first, spec, machine, config)


def floats(pieces: Pieces) -> Pieces:
    """The pieces of one configuration as plain numbers."""
    return Pieces(**{name: float(value) for name, value in vars(pieces).items()})


def computes(compute: float, weather: Weather, random: np.random.Generator) -> Iterator[float]:
    """Seconds of ComputeGradient, one after another, drawn by the block."""
    spread = float(np.sqrt(np.log1p(weather.jitter**2)))
    while True:
        if len(weather.times):
            block = random.choice(np.asarray(weather.times, dtype=np.float64), DRAWS)
        else:
            block = compute * random.lognormal(-(spread**2) / 2, spread, DRAWS)
        yield from block.tolist()


def _outcome(tally: Tally, pieces: Pieces, spec: NetSpec, machine: Machine, config: Config) -> Outcome:
    """The counts in the form that predictions have. Pieces that nothing disturbs keep their given length."""
    gpu = {name: total / tally.gpu_turns for name, total in tally.gpu.items()}
    update = {name: total / tally.update_turns for name, total in tally.update.items()}
    barrier = update.pop("barrier")
    gpu_terms = {
        "lock_weights": gpu["lock_weights"], "fetch_weights": gpu["fetch_weights"], "load_image": pieces.load,
        "deform_image": pieces.deform, "compute_gradient": gpu["compute_gradient"],
        "compute_update_val": pieces.update_val, "lock_gradient": gpu["lock_gradient"],
        "update_gradient": pieces.deposit}
    update_terms = {
        "lock_gradient": update["lock_gradient"], "sum_gradient": update["sum_gradient"],
        "update_old_weights": pieces.old, "add_momentum": pieces.momentum_add,
        "allreduce": barrier + pieces.reduce, "update_momentum": pieces.momentum,
        "lock_weights": update["lock_weights"], "update_weights": pieces.publish}
    moments = np.array(tally.moments[tally.skip:])
    minibatch = Distribution.counted(config.subbatch * tally.gradients[tally.skip + 1:len(tally.moments)])
    ages = np.array(sorted(tally.staleness))
    staleness = Distribution.counted(ages, np.array([tally.staleness[age] for age in ages]))
    return Outcome("simulate", spec.name, machine.name, config, gpu_terms, update_terms,
                   sum(gpu_terms.values()), float(np.diff(moments).mean()), barrier, minibatch, staleness,
                   memory_bytes(spec, machine, config.subbatch), machine.device.memory_bytes)
