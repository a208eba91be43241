"""How far apart the nodes come to the Allreduce because their update threads waited for locks.

Ours, beyond the paper: its eq. (8) knows only that nodes sum up different numbers of GradBufs. But an update thread
that finds a GradBuf (or LatestWeights) being written waits for it, and the slowest of many nodes has waited longest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray
POINTS = 128  # of the grid over the time that a node may take
ROWS = 24  # of a large table that are worked out; those between follow by interpolation


def lock_spread(devices: int, nodes: Any, t_gpu: Array, t_update: Array, add: float, deposit: float,
                fetch: float) -> Array:
    """Seconds that waiting for locks adds to the barrier of eq. (8), for every cell of t_gpu and t_update.

    add, deposit, fetch: seconds of summing a GradBuf, of depositing into it, and of fetching the weights.
    """
    nodes = np.broadcast_to(nodes, t_gpu.shape)
    if t_gpu.ndim < 2 or len(t_gpu) <= ROWS:
        return _spread(devices, nodes, t_gpu, t_update, add, deposit, fetch)
    rows = np.unique(np.geomspace(1, len(t_gpu), ROWS).round().astype(int)) - 1
    some = _spread(devices, nodes[rows], t_gpu[rows], t_update[rows], add, deposit, fetch)
    columns = [np.interp(np.log(nodes[:, c]), np.log(nodes[rows, c]), some[:, c]) for c in range(some.shape[1])]
    return np.stack(columns, axis=1)


def _spread(devices: int, nodes: Array, t_gpu: Array, t_update: Array, add: float, deposit: float,
            fetch: float) -> Array:
    """E(max over the nodes) - E(one) of the collecting time, with the waits and without: their difference."""
    longest = devices * (add + deposit + fetch)
    if longest == 0:
        return np.zeros(t_gpu.shape)
    step = longest / (POINTS - 2)
    full = np.minimum(t_update / t_gpu, 1.0)[..., None]
    depositing = np.minimum(deposit / t_gpu, full[..., 0])[..., None]
    fetching = np.minimum(fetch / np.maximum(t_gpu, t_update), 1.0)[..., None]
    nothing, whole = _lump(0.0, step), _lump(add, step)
    plain = (1 - full) * nothing + full * whole
    waiting = (1 - full) * nothing + (full - depositing) * whole + depositing * _flat(add, deposit, step)
    publishing = (1 - fetching) * nothing + fetching * _flat(0.0, fetch, step)
    count = nodes[..., None].astype(np.float64)
    alone, together = np.fft.rfft(plain), np.fft.rfft(waiting) * np.fft.rfft(publishing)
    return step * (_excess(together, devices, count) - _excess(alone, devices, count))


def _excess(transform: Array, devices: int, nodes: Array) -> Array:
    """E(max over the nodes) - E(one), in grid steps, of the sum over the devices of what `transform` describes."""
    reached = np.clip(np.cumsum(np.fft.irfft(transform**devices, POINTS), axis=-1), 0.0, 1.0)
    return np.sum(reached - reached**nodes, axis=-1)


def _lump(at: float, step: float) -> Array:
    """All mass at one time, shared by the two grid points around it so that the mean is kept: (POINTS,)."""
    place = np.clip(at / step - np.arange(POINTS), -1.0, 1.0)
    return 1 - np.abs(place)


def _flat(start: float, length: float, step: float, parts: int = 32) -> Array:
    """Mass spread evenly over start..start + length: (POINTS,)."""
    middles = start + length * (np.arange(parts) + 0.5) / parts
    return np.mean([_lump(middle, step) for middle in middles], axis=0)
