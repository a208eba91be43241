"""Cases of the kernels that layers are made of: columns, bias, activations, max-pooling, softmax and loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import activation, bias, pool, softmax
from ..kernels.conv_shape import ConvShape
from ..kernels.im2col import col2im, im2col
from . import references as ref
from .convolutions import STRIDED, conv_shape, rows_read
from .op import EPSILON, LARGE, Arrays, Op, Spec, directly, exactly, few
from .problems import Grammar, Problem

POOLED: dict[str, int | str] = {"sh": "r", "sw": "s", "ph": 0, "pw": 0}
IMAGES: dict[str, int | str] = {"count": "n"}
WINDOW = ("r", "s", "sh", "sw", "ph", "pw")
double = ref.double


def _column_arrays(x_role: Any, col_role: Any) -> Any:
    def arrays(p: Problem) -> dict[str, Spec]:
        s = conv_shape(p)
        if p.count > s.N:
            raise ValueError(f"expected a count of at most {s.N} images, got {p.count}")
        return {"x": Spec(s.x, x_role, share=rows_read(s) * p.count / s.N),
                "col": Spec((s.rows, p.count * s.P * s.Q), col_role)}

    return arrays


def _col2im_reference(p: Problem, a: Arrays) -> Arrays:
    return {"x": ref.col2im(double(a["col"]), conv_shape(p))}


COLUMNS = [
    Op(Grammar("im2col", tuple("cnhwrs"), STRIDED | IMAGES), "im2col", "c64n4h90w90r3s3",
       arrays=_column_arrays("in", "out"),
       bind=lambda device, p: lambda a: im2col(device, a["x"], a["col"], conv_shape(p)),
       reference=lambda p, a: {"col": ref.im2col(a["x"][:, : p.count], conv_shape(p))},
       flops=lambda p: 0, kernels="im2col"),
    Op(Grammar("col2im", tuple("cnhwrs"), STRIDED), "im2col", "c64n4h90w90r3s3",
       arrays=lambda p: _column_arrays("out", "in")(Problem(p.text, p.op, {**p.sizes, "count": p.n})),
       bind=lambda device, p: lambda a: col2im(device, a["col"], a["x"], conv_shape(p)),
       reference=_col2im_reference,
       flops=lambda p: conv_shape(p).rows * conv_shape(p).columns,
       tolerance=lambda p: (4 * EPSILON * p.r * p.s, 0.0), kernels="col2im",
       from_launch=lambda a: ({key: a["count" if key == "n" else key] for key in ("c", "n", "h", "w", *WINDOW)}, ())),
]


# ---- bias and activations

def _bias(name: str, function: Any, reference: Any) -> Op:
    return Op(Grammar(name, ("k", "j")), "bias", "k64j262144",
              arrays=lambda p: {"y": Spec((p.k, p.j), "inout"), "b": Spec((p.k,))},
              bind=directly(function, "y", "b"),
              reference=lambda p, a: {"y": reference(double(a["y"]) + double(a["b"])[:, None])},
              flops=lambda p: p.k * p.j, tolerance=few, kernels=name)


def _pointwise(name: str, family: str, function: Any, sources: tuple[str, ...], target: str, reference: Any,
               tolerance: Any, flops: int) -> Op:
    """function(device, *sources, target), where with the word `inplace` the target is the last source."""
    last = sources[-1]

    def arrays(p: Problem) -> dict[str, Spec]:
        if "inplace" in p.words:
            return {**{source: Spec((p.n,)) for source in sources}, last: Spec((p.n,), "inout")}
        return {**{source: Spec((p.n,)) for source in sources}, target: Spec((p.n,), "out")}

    def from_launch(a: Arrays) -> tuple[dict[str, int], tuple[str, ...]]:
        return {"n": a["n"]}, ("inplace",) * (a[target].ctypes.data == a[last].ctypes.data)

    return Op(Grammar(name, ("n",), words=("inplace",)), family, LARGE, arrays=arrays,
              bind=lambda device, p: lambda a: function(device, *(a[s] for s in sources), a.get(target, a[last])),
              reference=lambda p, a: {last if "inplace" in p.words else target: reference(*(a[s] for s in sources))},
              flops=lambda p: flops * p.n, tolerance=tolerance, kernels=name, from_launch=from_launch)


ACTIVATIONS = [
    _bias("add_bias", bias.add_bias, lambda y: y),
    _bias("bias_relu", bias.bias_relu, lambda y: np.maximum(y, 0)),
    _pointwise("relu", "activation", activation.relu, ("x",), "y", lambda x: np.maximum(x, 0), exactly, 1),
    _pointwise("relu_backward", "activation", activation.relu_backward, ("y", "dy"), "dx",
               lambda y, dy: np.where(y > 0, dy, 0), exactly, 1),
    _pointwise("sigmoid", "activation", activation.sigmoid, ("x",), "y", lambda x: 1 / (1 + np.exp(-double(x))), few,
               4),
    _pointwise("sigmoid_backward", "activation", activation.sigmoid_backward, ("y", "dy"), "dx",
               lambda y, dy: double(dy) * y * (1 - double(y)), lambda p: (4e-5, 4e-6), 3),  # 1 - y cancels near 1
]


# ---- max-pooling

def _pool_shape(p: Problem) -> ConvShape:
    """Extents of the pool as those of a convolution of equal windows. Raises ValueError when a window holds nothing."""
    pool.pooled_shape((p.c, p.n, p.h, p.w), *_window(p))
    return conv_shape(p)


def _pool_arrays(p: Problem) -> dict[str, Spec]:
    s = _pool_shape(p)
    y, small = (p.c, p.n, s.P, s.Q), pool.arg_dtype((p.r, p.s))
    return {"x": Spec(s.x, share=rows_read(s)), "y": Spec(y, "out"), "arg": Spec(y, "out", small)}


def _unpool_arrays(p: Problem) -> dict[str, Spec]:
    s = _pool_shape(p)
    y, small = (p.c, p.n, s.P, s.Q), pool.arg_dtype((p.r, p.s))

    def argument(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return ref.max_pool(rng.standard_normal(s.x, np.float32), *_window(p))[1].astype(small)

    masked = {"y": Spec(y)} if "relu" in p.words else {}
    return {"dy": Spec(y), "arg": Spec(y, dtype=small, fill=argument), **masked, "dx": Spec(s.x, "out")}


def _window(p: Problem) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (p.r, p.s), (p.sh, p.sw), (p.ph, p.pw)


def _pool_from_launch(a: Arrays) -> tuple[dict[str, int], tuple[str, ...]]:
    """Kernels of one window size leave its arguments out; planes are channels times images."""
    c, n = a["x" if "x" in a else "dx"].shape[:2]
    window = {key: int(a.get(key, usual)) for key, usual in zip(WINDOW, (2, 2, 2, 2, 0, 0), strict=True)}
    return {"c": c, "n": n, "h": a["h"], "w": a["w"], **window}, ("relu",) * bool(a.get("relu"))


POOLS = [
    Op(Grammar("max_pool", tuple("cnhwrs"), POOLED), "pool", "c64n8h180w180r2s2", arrays=_pool_arrays,
       bind=lambda device, p: lambda a: pool.max_pool(device, a["x"], a["y"], a["arg"], *_window(p)),
       reference=lambda p, a: dict(zip(("y", "arg"), ref.max_pool(a["x"], *_window(p)), strict=True)),
       flops=lambda p: p.r * p.s * p.c * _pool_shape(p).N * _pool_shape(p).P * _pool_shape(p).Q,
       kernels="max_pool_(?!.*backward).*", from_launch=_pool_from_launch),
    Op(Grammar("max_pool_backward", tuple("cnhwrs"), POOLED, ("relu",)), "pool", "c64n8h180w180r2s2 relu",
       arrays=_unpool_arrays,
       bind=lambda device, p: lambda a: pool.max_pool_backward(device, a["dy"], a["arg"], a["dx"], *_window(p),
                                                               relu_of=a.get("y")),
       reference=lambda p, a: {"dx": ref.max_pool_backward(a["dy"] * (a.get("y", np.float32(1)) > 0), a["arg"],
                                                           (p.c, p.n, p.h, p.w), *_window(p))},
       flops=lambda p: p.c * p.n * p.h * p.w,
       tolerance=lambda p: (4 * EPSILON * p.r * p.s, 0.0),
       kernels="max_pool_.*backward.*",
       from_launch=_pool_from_launch),
]


# ---- softmax and loss: a sample is a column

SCALE = 0.25


def _labels(p: Problem) -> Spec:
    return Spec((p.n,), dtype=np.int32, fill=lambda rng, shape: rng.integers(0, p.k, shape, np.int32))


def _softmax(name: str, bind: Any, outputs: Any, reference: Any, flops: int, kernel: str | None = None) -> Op:
    return Op(Grammar(name, ("k", "n")), "softmax", "k1000n16384",
              arrays=lambda p: {"z": Spec((p.k, p.n)), "labels": _labels(p), **outputs(p)}, bind=bind,
              reference=reference, flops=lambda p: flops * p.k * p.n, kernels=kernel or name,
              tolerance=lambda p: (1e-6, EPSILON * (16 + 4 * min(p.k, 1024)**0.5)))  # sums of parts of 1024 classes


SOFTMAX = [
    _softmax("softmax", directly(softmax.softmax, "z", "p"), lambda p: {"p": Spec((p.k, p.n), "out")},
             lambda p, a: {"p": ref.softmax(a["z"])}, 5),
    _softmax("softmax_cross_entropy", directly(softmax.softmax_cross_entropy, "z", "labels", "loss", "dz", scale=SCALE),
             lambda p: {"loss": Spec((p.n,), "out"), "dz": Spec((p.k, p.n), "out")},
             lambda p, a: {"loss": ref.cross_entropy(a["z"], a["labels"]),
                           "dz": ref.cross_entropy_gradient(a["z"], a["labels"], SCALE)}, 6),
    _softmax("cross_entropy_loss", directly(softmax.softmax_cross_entropy, "z", "labels", "loss"),
             lambda p: {"loss": Spec((p.n,), "out")}, lambda p, a: {"loss": ref.cross_entropy(a["z"], a["labels"])}, 4),
    _softmax("label_rank", directly(softmax.label_rank, "z", "labels", "rank"),
             lambda p: {"rank": Spec((p.n,), "out", np.int32)},
             lambda p, a: {"rank": ref.label_rank(a["z"], a["labels"])}, 2),
]
LAYER_CASES = [*COLUMNS, *ACTIVATIONS, *POOLS, *SOFTMAX]
