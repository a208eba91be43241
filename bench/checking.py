"""The check that stands before every timing: outputs poisoned, the call made, every element compared with float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels.device import Device
from .op import Arrays, Case, Run

SEED = 20160809
SLICE = 1 << 22  # elements compared at a time, so that a comparison takes little memory


class WrongResult(RuntimeError):
    """An op gave another result than its reference."""


@dataclass(frozen=True)
class Checked:
    """A case that gave the right result: its call, its device arrays, the worst error as a share of the tolerance."""

    run: Run
    arrays: Arrays
    worst: float


def check(device: Device, case: Case) -> Checked:
    """Run the case once on poisoned outputs and compare. Raises WrongResult naming the first element that differs."""
    before = case.inputs(SEED)
    arrays, run = case.upload(device, before), case.bind(device)
    run(arrays)
    expected = case.op.reference(case.problem, before)
    del before
    worst = 0.0
    for name, reference in expected.items():
        worst = max(worst, compare(case, name, device.download(arrays[name]), reference))
    return Checked(run, arrays, worst)


def compare(case: Case, name: str, got: np.ndarray, expected: np.ndarray) -> float:
    """Worst error of `got` as a share of atol + rtol * |expected| (0 where that is 0 and they are equal).

    Raises WrongResult when it exceeds 1, or when `got` is not finite where `expected` is.
    """
    if got.shape != expected.shape:
        raise WrongResult(_message(case, f"{name}{expected.shape}", f"{got.shape}"))
    atol, rtol = case.op.tolerance(case.problem)
    flat, reference, worst = got.reshape(-1), expected.reshape(-1), 0.0
    for first in range(0, flat.size, SLICE):
        part, target = (array[first : first + SLICE].astype(np.float64) for array in (flat, reference))
        error, allowed = np.abs(part - target), atol + rtol * np.abs(target)
        wrong = np.flatnonzero(~(error <= allowed))
        if wrong.size:
            where = np.unravel_index(first + wrong[0], got.shape)
            at = f"{name}[{', '.join(map(str, where))}] = {target[wrong[0]]:.9g} within {allowed[wrong[0]]:.3g}"
            raise WrongResult(_message(case, at, f"{part[wrong[0]]:.9g}"))
        worst = max(worst, float(np.max(error / np.where(allowed > 0, allowed, 1.0), initial=0.0)))
    return worst


def _message(case: Case, expected: str, got: str) -> str:
    repeat = f"sprint bench --check-only --problem '{case.problem}'"
    return f"{case.op.name}: expected {expected}, got {got}; to repeat: {repeat}"
