"""What the asynchronous loop, the synchronous one, replay and emulation ask of a device: one small protocol."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class GradientWorker(Protocol):
    """One device that computes gradients of its own share of the data; used by one thread at a time.

    All flat vectors are float32, one-dimensional, contiguous, of length `n_params`, in host memory.
    A worker may also have `times`, a dict of seconds that the last compute() and deposit() spent in
    "load_image", "deform_image" and "compute_update_val"; what it does not tell counts as gradient.
    """

    n_params: int

    def fetch(self, weights: np.ndarray) -> None:
        """Copy the flat weights into the device; `weights` may be overwritten once this returns."""

    def compute(self) -> tuple[float, int]:
        """Compute the gradient of the next sub-batch; return (sum of its losses, its samples).

        Zero samples mean that this share has nothing to give for this update.
        """

    def deposit(self, buffer: np.ndarray, add: bool, scale: float) -> None:
        """Write (or add, if `add`) scale * sum over the samples of dE/dW into `buffer`; wait for the device."""

    def divide(self, share: int, shares: int, samples: int) -> None:
        """Go on with share `share` of `shares` of the data, of which the whole job has used `samples`."""

    def state(self) -> dict[str, Any]:
        """Position in the data and states of the generators after the last compute()."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where the worker that gave `state` was."""

    def close(self) -> None:
        """Release the device and end the loader."""
