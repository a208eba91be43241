"""Predict epoch time, mini-batch and staleness of asynchronous training from the network and the machine.

Source: Oyama, Nomura, Sato, Nishimura, Tamatsu, Matsuoka, IPSJ SIG Technical Report 2016-HPC-155, eqs. (4) to
(10); docs/model.md marks what is reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..engine import memory
from ..engine.layers import NetSpec
from ..kernels.device import Device
from .loops import Pieces, Solution, solve
from .machine import CROWDED, PER_PARAMETER, PER_PIXEL, Linear, Machine, net_key
from .outcome import Config, Distribution, Outcome
from .work import Call, GradientWork

Array = np.ndarray
PIECE_OF_STEP = {"load_image": "load", "deform_image": "deform", "compute_update_val": "update_val",
                 "fetch_weights": "fetch", "update_gradient": "deposit", "take_gradient": "take",
                 "sum_gradient": "add", "clear_gradient": "clear", "update_old_weights": "old",
                 "add_momentum": "momentum_add", "update_momentum": "momentum", "update_weights": "publish"}
GROUP_OF_PIECE = {"compute": "gradient", "load": "images", "deform": "images", "fetch": "copies",
                  "update_val": "copies", "deposit": "copies", "reduce": "allreduce"}  # all others: "update"
SLICED = ("update_old_weights", "add_momentum", "update_momentum")


@dataclass(frozen=True, eq=False)
class GradientTime:
    """Seconds of T_ComputeGradient by constant ("kernels.im2col", "gemm.sgemm.nt") and in all, and its launches.

    Arrays have the shape of the sub-batches asked for; outside: constant -> how many of its calls lie off the grid.
    Source: Oyama et al. 2016, eq. (4).
    """

    by_constant: dict[str, Array]
    total: Array
    launches: Array
    outside: dict[str, int]


def gradient_time(spec: NetSpec, machine: Machine, subbatch: Any) -> GradientTime:
    """T_ComputeGradient for each sub-batch of an array, nothing else running on the host.

    Raises: UsageError naming a constant that the machine lacks. Source: Oyama et al. 2016, eqs. (4) to (6).
    """
    work = GradientWork(spec, subbatch, machine.conv, _absent(machine), machine.device.workspace_bytes)
    by_constant: dict[str, Array] = {}
    outside: dict[str, int] = {}
    launches = np.zeros(work.samples.shape)
    for part in work.parts:
        timed = [[_call_time(machine, call) for call in way] for way in part]
        chosen = np.argmin([sum((seconds for seconds, _ in way), np.zeros(work.samples.shape)) for way in timed],
                           axis=0)
        for number, (way, times) in enumerate(zip(part, timed, strict=True)):
            for call, (seconds, off) in zip(way, times, strict=True):
                name = _constant(machine, call)
                launches = launches + np.where(chosen == number, call.times, 0.0)
                by_constant[name] = by_constant.get(name, 0.0) + np.where(chosen == number, seconds, 0.0)
                outside[name] = outside.get(name, 0) + bool(np.any(off & (chosen == number)))
    total = np.asarray(sum(by_constant.values()))
    return GradientTime(by_constant, total, launches, {name: count for name, count in outside.items() if count})


def _constant(machine: Machine, call: Call) -> str:
    """The machine's field that a call takes its time from."""
    name = machine.gemm_path(call.name) if call.group == "gemm" else call.name
    return f"{call.group}.{name}"


def _call_time(machine: Machine, call: Call) -> tuple[Array, Array]:
    """Seconds of all launches of a call, and where a size lies off the measured grid (bool)."""
    if call.group == "gemm":
        seconds, off = machine.gemm[machine.gemm_path(call.name)].time(*call.sizes)
        return call.times * seconds, off & (call.times > 0)
    seconds = call.times * machine.kernel(call.name).time(call.sizes[0])
    return seconds, np.zeros(seconds.shape, dtype=bool)


@dataclass(frozen=True)
class _AbsentDevice:
    """A device that is not here: all that planning asks of one."""

    name: str
    kind: str
    threads: int
    mode: str = "fast"

    def describe(self) -> str:
        return self.name


def _absent(machine: Machine) -> Device:
    return cast(Device, _AbsentDevice(machine.device.name, machine.device.kind, machine.threads))


def memory_bytes(spec: NetSpec, machine: Machine, subbatch: int) -> int:
    """Bytes that a worker takes on a device; the momentum is the update thread's and lives on the host."""
    return memory.plan(spec, _absent(machine), subbatch, conv_algo=machine.conv, optimizer="sgd",
                       workspace_bytes=machine.device.workspace_bytes).total


def pieces_of(spec: NetSpec, machine: Machine, nodes: Any, subbatch: Any, gradient: GradientTime,
              busy: float) -> Pieces:
    """The pieces of both loops. nodes, subbatch: numbers or arrays that broadcast together.

    gradient: as gradient_time has it for these sub-batches; busy: devices on one host, which hold each other up.
    """
    alone = _pieces_alone(spec, machine, nodes, subbatch) | {"compute": gradient.total}
    calls = {"compute": gradient.launches, "deform": np.asarray(subbatch), "load": 0, "publish": 0,
             "reduce": 1 + np.log2(nodes)}
    crowds, pieces = _crowds(spec, machine, busy), {}
    for name, seconds in alone.items():
        crowd = crowds[_group(name)]
        pieces[name] = crowd.alpha * seconds + crowd.beta * calls.get(name, 1)
    return Pieces(**pieces)


def _crowds(spec: NetSpec, machine: Machine, busy: float) -> dict[str, Linear]:
    """What others on the host make of each group of pieces."""
    return {group: machine.crowding(net_key(spec), group, busy) for group in CROWDED}


def _group(piece: str) -> str:
    return GROUP_OF_PIECE.get(piece, "update")


def _pieces_alone(spec: NetSpec, machine: Machine, nodes: Any, subbatch: Any) -> dict[str, Any]:
    """Seconds of each piece but the gradient where nobody else is busy."""
    parameters, pixels = spec.parameter_count, math.prod(spec.in_shape) * np.asarray(subbatch)
    alone: dict[str, Any] = {"reduce": machine.allreduce.time(nodes, parameters)}
    for name in PER_PIXEL:
        alone[PIECE_OF_STEP[name]] = machine.steps[name].time(pixels)
    for name in (*PER_PARAMETER, "take_gradient", "clear_gradient"):
        share = parameters / nodes if name in SLICED else parameters
        alone[PIECE_OF_STEP[name]] = machine.steps[name].time(share)
    return alone


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
    moved = _moved(machine, gradient, _crowds(spec, machine, busy), pieces)
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
                                     if _group(name) == group})


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
