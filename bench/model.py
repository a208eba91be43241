"""Predict epoch time, mini-batch and staleness of asynchronous training from the network and the machine.

Source: Oyama, Nomura, Sato, Nishimura, Tamatsu, Matsuoka, IPSJ SIG Technical Report 2016-HPC-155, eqs. (7) to
(10); docs/model.md marks what is reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine import memory
from ..engine.layers import NetSpec
from .loops import Pieces, Solution, solve
from .machine import Linear, Machine
from .outcome import Config, Distribution, Outcome
from .pieces import PIECE_OF_STEP, GradientTime, absent, crowds_of, gradient_time, group_of, pieces_of

Array = np.ndarray


def memory_bytes(spec: NetSpec, machine: Machine, subbatch: int) -> int:
    """Bytes that a worker takes on a device; the momentum is the update thread's and lives on the host."""
    return memory.plan(spec, absent(machine), subbatch, conv_algo=machine.conv, optimizer="sgd",
                       workspace_bytes=machine.device.workspace_bytes).total


def predict(spec: NetSpec, machine: Machine, config: Config) -> Outcome:
    """T_GPU, T_Update, T_Epoch, mini-batch, staleness and memory of a configuration, with their uncertainty.

    Raises: UsageError naming a constant that the machine lacks.
    """
    gradient = gradient_time(spec, machine, config.subbatch)
    busy = machine.busy(config.devices, config.ranks_per_host)
    pieces = pieces_of(spec, machine, config.nodes, config.subbatch, gradient, busy)
    solution = solve(pieces, config.nodes, config.devices, config.min_gradients)
    gpu = {name: float(value) for name, value in solution.gpu_terms.items()}
    update = {name: float(value) for name, value in solution.update_terms.items()}
    moved = _moved(machine, gradient, crowds_of(spec, machine, busy), pieces)
    return Outcome(
        "predict", spec.name, machine.name, config, gpu, update, float(solution.t_gpu),
        float(solution.t_update), float(solution.barrier),
        minibatch_distribution(config, float(solution.t_update / solution.t_gpu)),
        staleness_distribution(solution, config.devices),
        memory_bytes(spec, machine, config.subbatch), machine.device.memory_bytes,
        _uncertainty(moved, solution, config), _warnings(machine, gradient), float(solution.wait))


def minibatch_mean(nodes: Any, devices: int, subbatch: Any, ratio: Any) -> Any:
    """Samples of an update; ratio = T_Update / T_GPU. Source: Oyama et al. 2016, eq. (9)."""
    return nodes * devices * subbatch * ratio


def minibatch_distribution(config: Config, ratio: float) -> Distribution:
    """Samples of an update: every device brings floor(ratio) sub-batches, and one more with the rest of ratio.

    Where updates wait for some gradients of each node, those are certain and only the other devices are left to chance.
    Source: reconstruction, from the binomial assumption of Oyama et al. 2016, eq. (8).
    """
    certain = min(config.min_gradients, config.devices) if ratio < 1 else 0
    free = config.devices - certain
    if certain:
        part = (config.devices * ratio - certain) / free if free else 0.0
        brought = certain * config.nodes + np.arange(config.nodes * free + 1)
        chances = _binomial(config.nodes * free, min(max(part, 0.0), 1.0))
        return Distribution(config.subbatch * brought, chances).likely()
    devices = config.nodes * config.devices
    whole = math.floor(ratio)
    extra = _binomial(devices, ratio - whole)
    return Distribution(config.subbatch * (devices * whole + np.arange(devices + 1)), extra).likely()


def staleness_mean(solution: Solution, devices: int) -> Any:
    """Mean over the devices of 1 + r. Source: reconstruction."""
    return 1 + sum(lag for lag in _lags(solution, devices)) / devices


def staleness_distribution(solution: Solution, devices: int) -> Distribution:
    """Updates between the fetch of the weights and the update that uses their gradient, all devices together.

    With r of a device (see _lags), S is ceil(r) with probability ceil(r) - r, otherwise ceil(r) + 1.
    Source: reconstruction.
    """
    mass: dict[int, float] = {}
    for lag in (float(lag) for lag in _lags(solution, devices)):
        low = math.ceil(lag)
        mass[low] = mass.get(low, 0.0) + (low - lag) / devices
        mass[low + 1] = mass.get(low + 1, 0.0) + (1 - low + lag) / devices
    values = sorted(mass)
    return Distribution(np.array(values), np.array([mass[v] for v in values])).likely()


def _lags(solution: Solution, devices: int) -> Iterator[Any]:
    """r of each device: (time from fetch to deposit - moment of its visit after a publication) / T_Update.

    The deposit counts from its start: an update thread that comes during it waits and takes the gradient.
    """
    gpu, update = solution.gpu_terms, solution.update_terms
    flight = solution.t_gpu - gpu["lock_weights"] - gpu["update_gradient"]
    visit = (update["lock_gradient"] + update["sum_gradient"]) / devices
    for device in range(devices):
        yield (flight - solution.wait - device * visit) / solution.t_update


def _binomial(trials: int, part: float) -> Array:
    """Probabilities of 0..trials successes, float64."""
    if part <= 0 or part >= 1:
        return np.eye(1, trials + 1, trials if part > 0 else 0)[0]
    count = np.arange(trials + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    choose = logs[-1] - logs - logs[::-1]
    return np.exp(choose + count * math.log(part) + (trials - count) * math.log1p(-part))


def _uncertainty(moved: Iterator[Pieces], solution: Solution, config: Config) -> dict[str, float]:
    """Relative standard deviation of each result, from the pieces with one constant at a time off."""
    centre = _results(solution, config)
    variance = dict.fromkeys(centre, 0.0)
    for pieces in moved:
        result = _results(solve(pieces, config.nodes, config.devices, config.min_gradients), config)
        for name, value in result.items():
            variance[name] += (value / centre[name] - 1) ** 2
    return {name: math.sqrt(value) for name, value in variance.items()}


def _moved(machine: Machine, gradient: GradientTime, crowds: dict[str, Linear], pieces: Pieces) -> Iterator[Pieces]:
    """The pieces with one constant after another made longer by its residual."""
    for name, seconds in gradient.by_constant.items():
        group, _, rest = name.partition(".")
        constant = machine.kernel(rest) if group == "kernels" else machine.gemm[rest]
        if constant.residual:
            yield replace(pieces, compute=pieces.compute + crowds["gradient"].alpha * constant.residual * seconds)
    for step, constant in machine.steps.items():
        piece = PIECE_OF_STEP[step]
        if constant.residual:
            yield replace(pieces, **{piece: getattr(pieces, piece) * (1 + constant.residual)})
    if machine.allreduce.residual:
        yield replace(pieces, reduce=pieces.reduce * (1 + machine.allreduce.residual))
    for group, crowd in crowds.items():
        if crowd.residual:
            yield replace(pieces, **{name: seconds * (1 + crowd.residual) for name, seconds in vars(pieces).items()
                                     if group_of(name) == group})


def _results(solution: Solution, config: Config) -> dict[str, float]:
    ratio = solution.t_update / solution.t_gpu
    minibatch = minibatch_mean(config.nodes, config.devices, config.subbatch, ratio)
    values = {"t_gpu": solution.t_gpu, "t_update": solution.t_update, "minibatch": minibatch,
              "t_epoch": config.images * solution.t_update / minibatch,
              "staleness": staleness_mean(solution, config.devices)}
    return {name: float(value) for name, value in values.items()}


def _warnings(machine: Machine, gradient: GradientTime) -> tuple[str, ...]:
    return tuple(f"{name}: {count} calls lie off the grid measured on {machine.name}; their times are those of "
                 "its edge, scaled by flops" for name, count in gradient.outside.items())
