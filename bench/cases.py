"""THE table: every op with its sizes, arrays, reference, bytes and flops; it drives the check and the timing alike.

Sizes are named as in the code (c n h w k r s, p q; m, n, k of a product) and a problem string lists them. Inputs are
standard normal, so sums of k products have an error near eps * k at most; tolerances say so, and one product left out
(about 1) stands far above them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import gemm, reduce, update
from ..kernels.device import Device
from . import references as ref
from .convolutions import CONVOLUTIONS
from .image_cases import IMAGE_OPS
from .layer_cases import LAYER_CASES
from .op import EPSILON, LARGE, Arrays, Op, Product, Run, Spec, directly, few, normal
from .problems import Grammar, Problem

double = ref.double


# ---- reductions

def _reduction(name: str, axis: int, function: Any) -> Op:
    """Sums in double, or along a block's tree: far below eps times the number of terms; maxima are exact."""
    collect, total = (np.sum, True) if "sum" in name else (np.max, False)
    return Op(Grammar(name, ("m", "j")), "reduce", "m64j524288",
              arrays=lambda p: {"x": Spec((p.m, p.j)), "out": Spec((p.j if axis == 0 else p.m,), "out")},
              bind=directly(function, "x", "out"),
              reference=lambda p, a: {"out": collect(double(a["x"]) if total else a["x"], axis=axis)},
              flops=lambda p: p.m * p.j,
              tolerance=lambda p: (4 * EPSILON * (p.j, p.m)[axis == 0] if total else 0.0, 0.0), kernels=name)


REDUCTIONS = [_reduction("row_sum", 1, reduce.row_sum), _reduction("row_max", 1, reduce.row_max),
              _reduction("column_sum", 0, reduce.column_sum), _reduction("column_max", 0, reduce.column_max)]


# ---- updates of flat parameters

LR, MU, DECAY, EPS = 0.01, 0.9, 5e-4, 1e-8


def _squares(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape, np.float32)


def _update(name: str, roles: dict[str, Any], bind: Any, reference: Any, flops: int) -> Op:
    """Arrays (n) by name and role; h is a sum of squares, so positive."""
    return Op(Grammar(name, ("n",)), "update", LARGE, bind=bind, reference=reference, tolerance=few, kernels=name,
              arrays=lambda p: {key: Spec((p.n,), role, fill=_squares if key == "h" else normal)
                                for key, role in roles.items()},
              flops=lambda p: flops * p.n)


def _decayed(a: Arrays) -> np.ndarray:
    return double(a["g"]) + DECAY * a["w"]


def _momentum(p: Problem, a: Arrays) -> Arrays:
    v = MU * double(a["v"]) - LR * _decayed(a)
    return {"v": v, "w": a["w"] + v}


def _adagrad(p: Problem, a: Arrays) -> Arrays:
    h = a["h"] + _decayed(a) ** 2
    return {"h": h, "w": a["w"] - LR * _decayed(a) / (np.sqrt(h) + EPS)}


UPDATES = [
    _update("scale", {"x": "inout"}, directly(update.scale, "x", alpha=-1.0), lambda p, a: {"x": -double(a["x"])}, 1),
    _update("axpy", {"x": "in", "y": "inout"}, lambda device, p: lambda a: update.axpy(device, LR, a["x"], a["y"]),
            lambda p, a: {"y": double(a["y"]) + LR * a["x"]}, 2),
    _update("sgd", {"w": "inout", "g": "in"}, directly(update.sgd, "w", "g", lr=LR, weight_decay=DECAY),
            lambda p, a: {"w": a["w"] - LR * _decayed(a)}, 4),
    _update("momentum", {"w": "inout", "g": "in", "v": "inout"},
            directly(update.momentum, "w", "g", "v", lr=LR, mu=MU, weight_decay=DECAY), _momentum, 6),
    _update("adagrad", {"w": "inout", "g": "in", "h": "inout"},
            directly(update.adagrad, "w", "g", "h", lr=LR, eps=EPS, weight_decay=DECAY), _adagrad, 8),
]


# ---- copies and products

def _product(p: Problem) -> Product:
    return Product(p.m, p.n, p.k, "ta" in p.words, "tb" in p.words)


def _gemm(name: str, default: str, words: tuple[str, ...], algo: str, **more: Any) -> Op:
    """`ta`, `tb`: a, b are stored transposed; `add`: c is added to."""
    def arrays(p: Problem) -> dict[str, Spec]:
        return {"a": Spec((p.k, p.m) if "ta" in p.words else (p.m, p.k)),
                "b": Spec((p.n, p.k) if "tb" in p.words else (p.k, p.n)),
                "c": Spec((p.m, p.n), "inout" if "add" in p.words else "out")}

    def bind(device: Device, p: Problem) -> Run:
        ta, tb, beta = "ta" in p.words, "tb" in p.words, float("add" in p.words)
        return lambda a: gemm.gemm(device, a["a"], a["b"], a["c"], trans_a=ta, trans_b=tb, beta=beta, algo=algo)

    def reference(p: Problem, a: Arrays) -> Arrays:
        left, right = double(a["a"]), double(a["b"])
        product = (left.T if "ta" in p.words else left) @ (right.T if "tb" in p.words else right)
        return {"c": product + a["c"] if "add" in p.words else product}

    return Op(Grammar(name, ("m", "n", "k"), words=words), "gemm", default, arrays, bind, reference,
              flops=lambda p: 2 * p.m * p.n * p.k, tolerance=lambda p: (4 * EPSILON * p.k, 4e-6), product=_product,
              **more)


PRODUCTS = [
    _gemm("sgemm", "m256n3136k1152", ("ta", "tb", "add"), "blas", kernels="sgemm"),
    _gemm("gemm_tiled", "m256n3136k1152", ("ta", "tb", "add"), "tiled", kernels="gemm",
          missing=lambda device, p: "needs a device with barriers" if device.mode == "fast" else None),
]
COPIES = [
    Op(Grammar("copy", ("n",)), "copy", LARGE, arrays=lambda p: {"x": Spec((p.n,)), "y": Spec((p.n,), "out")},
       bind=lambda device, p: lambda a: device.copy(a["y"], a["x"]), reference=lambda p, a: {"y": a["x"]},
       flops=lambda p: 0),
]
TABLE = [*LAYER_CASES, *CONVOLUTIONS, *PRODUCTS, *UPDATES, *REDUCTIONS, *IMAGE_OPS, *COPIES]
