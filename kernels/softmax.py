"""Softmax, cross-entropy and the rank of the right class; a sample is a column (kernels of softmax.cu)."""

from __future__ import annotations

import math

import numpy as np

from .conv_shape import expect_shape
from .device import Array, Device, rows

CLASS_LIMIT = 2**24  # classes are counted in float32


def softmax(device: Device, logits: Array, p: Array) -> None:
    """p[k,n] = exp(logits[k,n]) / sum over k of the same.

    logits, p (K,N) float32; p may be logits. Raises ValueError on other shapes.
    """
    K, N = _classes("softmax", logits)
    expect_shape("softmax", p=(p.shape, (K, N)))
    device.launch("softmax", "softmax", rows(N), logits, p, K, N)


def softmax_cross_entropy(device: Device, logits: Array, labels: Array, loss: Array,
                          dlogits: Array | None = None, scale: float = 1.0) -> None:
    """loss[n] = log(sum of exp(logits[:,n])) - logits[label[n],n]; dlogits = scale d(sum of loss)/d(logits).

    logits, dlogits (K,N) float32, dlogits may be logits, None: no gradient; labels (N) int32; loss (N)
    float32. A loss beyond float32 is the largest float; a label outside 0..K-1 gives loss NaN (check_labels
    finds it beforehand). Raises ValueError when the shapes do not belong together or scale is not finite.
    """
    K, N = _classes("softmax_cross_entropy", logits)
    expect_shape("softmax_cross_entropy", labels=(labels.shape, (N,)), loss=(loss.shape, (N,)))
    if not math.isfinite(scale):
        raise ValueError(f"softmax_cross_entropy: expected scale finite, got {scale}")
    if dlogits is None:
        device.launch("softmax", "cross_entropy_loss", rows(N), logits, labels, loss, K, N)
        return
    expect_shape("softmax_cross_entropy", dlogits=(dlogits.shape, (K, N)))
    device.launch("softmax", "softmax_cross_entropy", rows(N), logits, labels, loss, dlogits, scale, K, N)


def label_rank(device: Device, logits: Array, labels: Array, rank: Array) -> None:
    """rank[n] = how many classes come before the label's: top-1 is rank 0, top-5 rank < 5.

    Among equal logits the smaller class comes first; NaN comes before everything, so that a diverged net is
    never right. A label outside 0..K-1 has rank K. logits (K,N) float32; labels, rank (N) int32. Raises
    ValueError on other shapes.
    """
    K, N = _classes("label_rank", logits)
    expect_shape("label_rank", labels=(labels.shape, (N,)), rank=(rank.shape, (N,)))
    device.launch("softmax", "label_rank", rows(N), logits, labels, rank, K, N)


def check_labels(labels: np.ndarray, classes: int) -> None:
    """Check labels on the host, of any integer type, before they become int32.

    Raises TypeError when they are not integers, ValueError with the sample's index and label when one is not
    a class.
    """
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels: expected integers, got {labels.dtype}")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        first, more = wrong[0], f" and {wrong.size - 1} more" * (wrong.size > 1)
        got = f"{labels.flat[first]} at sample {first}{more}"
        raise ValueError(f"labels: expected 0 to {classes - 1}, got {got}")


def _classes(op: str, logits: Array) -> tuple[int, int]:
    if logits.ndim != 2 or not 1 <= logits.shape[0] <= CLASS_LIMIT:
        raise ValueError(f"{op}: expected logits(K,N), K from 1 to {CLASS_LIMIT}, got {tuple(logits.shape)}")
    return logits.shape[0], logits.shape[1]
