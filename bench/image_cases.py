"""Cases of what happens to images, uint8 (N,H,W,C), on their way in, and of dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import dropout, image
from . import references as ref
from .op import EPSILON, LARGE, Arrays, Op, Spec, directly, few
from .problems import Grammar, Problem

double = ref.double


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 256, shape, np.uint8)


def _flags(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2, shape, np.uint8)


def _pixels(p: Problem, role: Any = "in", **more: Any) -> Spec:
    return Spec((p.n, p.h, p.w, p.c), role, np.uint8, _bytes, **more)


def _statistics(p: Problem) -> dict[str, Spec]:
    return {name: Spec((p.c,), fill=lambda rng, shape: rng.uniform(0.25, 0.75, shape).astype(np.float32))
            for name in ("mean", "std")}


def _normalized(p: Problem, a: Arrays) -> Arrays:
    x = double(a["images"]).transpose(3, 0, 1, 2) / 255
    return {"x": (x - double(a["mean"])[:, None, None, None]) / double(a["std"])[:, None, None, None]}


def _corners(p: Problem) -> Spec:
    limits = np.array([max(p.h - p.p, 0), max(p.w - p.q, 0)])
    return Spec((p.n, 2), dtype=np.int32, fill=lambda rng, shape: rng.integers(0, limits + 1, shape).astype(np.int32))


def _cropped(p: Problem, a: Arrays) -> Arrays:
    h = np.minimum(a["corners"][:, :1] + np.arange(p.p), p.h - 1)
    w = np.minimum(a["corners"][:, 1:] + np.arange(p.q), p.w - 1)
    return {"out": a["images"][np.arange(p.n)[:, None, None], h[:, :, None], w[:, None, :]]}


def _mirrored(p: Problem, a: Arrays) -> Arrays:
    return {"out": np.where(a["flags"][:, None, None, None] > 0, a["images"][:, :, ::-1], a["images"])}


def _affine(p: Problem) -> Spec:
    """Warps near the identity, some of them beyond the border."""
    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        near = np.array([p.w / p.q, 0, 0, 0, p.h / p.p, 0]) + 0.1 * rng.standard_normal(shape)
        near[:, 2::3] += 3 * rng.standard_normal((p.n, 2))
        return near.astype(np.float32)

    return Spec((p.n, 6), fill=fill)


SEED, OFFSET, RATE = 2016, 9, 0.5
IMAGE_OPS = [
    Op(Grammar("to_float", tuple("cnhw")), "image", "c3n128h224w224",
       arrays=lambda p: {"images": _pixels(p), "x": Spec((p.c, p.n, p.h, p.w), "out")},
       bind=directly(image.to_float, "images", "x"),
       reference=lambda p, a: {"x": double(a["images"]).transpose(3, 0, 1, 2) / 255},
       flops=lambda p: p.c * p.n * p.h * p.w, tolerance=few, kernels="to_float"),
    Op(Grammar("normalize", tuple("cnhw")), "image", "c3n128h224w224",
       arrays=lambda p: {"images": _pixels(p), **_statistics(p), "x": Spec((p.c, p.n, p.h, p.w), "out")},
       bind=directly(image.normalize, "images", "x", "mean", "std"), reference=_normalized,
       flops=lambda p: 3 * p.c * p.n * p.h * p.w, tolerance=few, kernels="normalize"),
    Op(Grammar("crop", tuple("cnhwpq")), "image", "c3n256h256w256p224q224",
       arrays=lambda p: {"images": _pixels(p, share=min(1.0, p.p / p.h)), "corners": _corners(p),
                         "out": Spec((p.n, p.p, p.q, p.c), "out", np.uint8)},
       bind=directly(image.crop, "images", "corners", "out"), reference=_cropped, flops=lambda p: 0, kernels="crop"),
    Op(Grammar("mirror", tuple("cnhw")), "image", "c3n256h256w256",
       arrays=lambda p: {"images": _pixels(p), "out": _pixels(p, "out"),
                         "flags": Spec((p.n,), dtype=np.uint8, fill=_flags)},
       bind=directly(image.mirror, "images", "flags", "out"), reference=_mirrored, flops=lambda p: 0, kernels="mirror"),
    Op(Grammar("deform", tuple("cnhwpq")), "image", "c3n128h256w256p224q224",
       arrays=lambda p: {"images": _pixels(p), "affine": _affine(p), **_statistics(p),
                         "x": Spec((p.c, p.n, p.p, p.q), "out")},
       bind=directly(image.deform, "images", "affine", "mean", "std", "x"),
       reference=lambda p, a: {"x": ref.deform(a["images"], a["affine"], a["mean"], a["std"], (p.p, p.q))},
       flops=lambda p: 12 * p.c * p.n * p.p * p.q, kernels="deform",
       tolerance=lambda p: (16 * EPSILON * max(p.h, p.w) / 0.25, 4e-6)),  # float32 positions, neighbours up to 1 apart
    Op(Grammar("dropout", ("n",)), "dropout", LARGE,
       arrays=lambda p: {"x": Spec((p.n,)), "y": Spec((p.n,), "out")},
       bind=directly(dropout.dropout, "x", "y", seed=SEED, offset=OFFSET, rate=RATE),
       reference=lambda p, a: {"y": ref.dropout(a["x"], SEED, OFFSET, RATE)},
       flops=lambda p: p.n, tolerance=few, kernels="dropout"),
]
