"""Whole convolutions as cases: three directions, each by either algorithm, with the matrix product inside for BLAS."""

from __future__ import annotations

from ..kernels import conv as convolution
from ..kernels.conv import Conv
from ..kernels.conv_shape import ConvShape
from ..kernels.device import Device
from . import references as ref
from .op import EPSILON, Arrays, Op, Product, Run, Spec
from .problems import Grammar, Problem

ALGORITHMS = tuple(name for name in convolution.ALGORITHMS if name != "auto")
WINOGRAD = 36 / 16  # products of a 2x2 tile of outputs of a 3x3 filter, plain and by Lavin and Gray 2016
STRIDED: dict[str, int | str] = {"sh": 1, "sw": 1, "ph": 0, "pw": 0}
DEFAULT = "n16c64h56w56k128r3s3ph1pw1"
PART_BYTES = 64 << 20  # of the columns that BLAS is given at a time


def conv_shape(p: Problem) -> ConvShape:
    """Extents of a problem with windows; k is 1 where it has none. Raises ValueError when the window does not fit."""
    shape = ConvShape(p.c, p.n, p.h, p.w, p.sizes.get("k", 1), p.r, p.s, (p.sh, p.sw), (p.ph, p.pw))
    if shape.P < 1 or shape.Q < 1:
        raise ValueError(f"{p}: expected an output, got {shape.P} x {shape.Q}")
    return shape


def rows_read(s: ConvShape) -> float:
    """Share of the rows of x that some window touches: fewer than all with a stride beyond the window."""
    return (_touched(s, s.pad[0] + s.H) - _touched(s, s.pad[0])) / s.H


def _touched(s: ConvShape, rows: int) -> int:
    """How many of the first rows of the padded image windows touch."""
    stride = s.stride[0]
    if stride <= s.R:
        return min(rows, (s.P - 1) * stride + s.R)
    whole, rest = divmod(rows, stride)
    return whole * s.R + min(rest, s.R) if whole < s.P else s.P * s.R


def _missing(device: Device, p: Problem) -> str | None:
    """Why the device has no such algorithm."""
    try:
        Conv(device, conv_shape(p), _algorithm(p))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


def _algorithm(p: Problem) -> str:
    return next(word for word in ALGORITHMS if word in p.words)


def _bind_forward(device: Device, p: Problem) -> Run:
    conv, relu = Conv(device, conv_shape(p), _algorithm(p)), "relu" in p.words
    workspace = device.empty(-(-conv.workspace_bytes() // 4))
    return lambda a: conv.forward(a["x"], a["w"], a["b"], a["y"], relu, workspace)


def _bind_backward_data(device: Device, p: Problem) -> Run:
    conv = Conv(device, conv_shape(p), _algorithm(p))
    workspace = device.empty(-(-conv.workspace_bytes() // 4))
    return lambda a: conv.backward_data(a["dy"], a["w"], a["dx"], workspace)


def _bind_backward_filter(device: Device, p: Problem) -> Run:
    conv = Conv(device, conv_shape(p), _algorithm(p))
    workspace = device.empty(-(-conv.workspace_bytes() // 4))
    return lambda a: conv.backward_filter(a["x"], a["dy"], a["dw"], a["db"], workspace)


def _forward_arrays(p: Problem) -> dict[str, Spec]:
    s = conv_shape(p)
    return {"x": Spec(s.x, share=rows_read(s)), "w": Spec(s.w), "b": Spec((s.K,)), "y": Spec(s.y, "out")}


def _data_arrays(p: Problem) -> dict[str, Spec]:
    s = conv_shape(p)
    return {"dy": Spec(s.y), "w": Spec(s.w), "dx": Spec(s.x, "out")}


def _filter_arrays(p: Problem) -> dict[str, Spec]:
    s = conv_shape(p)
    return {"x": Spec(s.x, share=rows_read(s)), "dy": Spec(s.y), "dw": Spec(s.w, "out"), "db": Spec((s.K,), "out")}


def _filter_reference(p: Problem, a: Arrays) -> Arrays:
    dw, db = ref.conv_backward_filter(a["x"], a["dy"], conv_shape(p))
    return {"dw": dw, "db": db}


def _parts(s: ConvShape) -> int:
    return min(s.columns, -(-4 * s.rows * s.columns // PART_BYTES))


def _forward_product(p: Problem) -> Product:
    s = conv_shape(p)
    return Product(s.K, s.columns, s.rows, parts=_parts(s))


def _data_product(p: Problem) -> Product:
    s = conv_shape(p)
    return Product(s.rows, s.columns, s.K, trans_a=True, parts=_parts(s))


def _filter_product(p: Problem) -> Product:
    s = conv_shape(p)
    return Product(s.K, s.rows, s.columns, trans_b=True, parts=_parts(s))


def _flops(p: Problem) -> int:
    return 2 * conv_shape(p).macs


def _saving(p: Problem) -> float:
    return WINOGRAD if "winograd" in p.words else 1.0


def _scratch(p: Problem) -> int:
    """Columns: of one image in float64 for the reference, and of all for `explicit`."""
    s = conv_shape(p)
    return s.rows * (8 * s.P * s.Q + 4 * s.columns * ("explicit" in p.words))


def _grammar(name: str, *words: str) -> Grammar:
    return Grammar(name, tuple("nchwkrs"), STRIDED, words, ALGORITHMS)


CONVOLUTIONS = [
    Op(_grammar("conv_forward", "relu"), "conv", DEFAULT, _forward_arrays, _bind_forward,
       lambda p, a: {"y": ref.conv_forward(a["x"], a["w"], a["b"], conv_shape(p), "relu" in p.words)}, _flops,
       lambda p: (4 * EPSILON * conv_shape(p).rows, 4e-6), product=_forward_product, missing=_missing, saving=_saving,
       scratch=_scratch),
    Op(_grammar("conv_backward_data"), "conv", DEFAULT, _data_arrays, _bind_backward_data,
       lambda p, a: {"dx": ref.conv_backward_data(a["dy"], a["w"], conv_shape(p))}, _flops,
       lambda p: (4 * EPSILON * p.k * p.r * p.s, 4e-6), product=_data_product, missing=_missing, saving=_saving,
       scratch=_scratch),
    Op(_grammar("conv_backward_filter"), "conv", DEFAULT, _filter_arrays, _bind_backward_filter, _filter_reference,
       _flops, lambda p: (4 * EPSILON * conv_shape(p).columns, 4e-6), product=_filter_product, missing=_missing,
       saving=_saving, scratch=_scratch),
]
