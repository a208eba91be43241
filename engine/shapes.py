"""The layer table of a net in the terms of the paper: x'_l, x_l, m_l, p_l, parameters, MACs and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .layers import Conv2D, MaxPool2D, NetSpec, Placed

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LayerRow:
    """One layer l with weights. Extents are (height, width); bytes are for `subbatch` samples, activations float32."""

    number: int
    name: str
    kind: str  # "conv" or "fc"
    in_shape: tuple[int, int, int]  # (m_{l-1}, x_{l-1}, x_{l-1})
    window: tuple[int, int]  # c
    stride: tuple[int, int]
    pad: tuple[int, int]
    filters: int  # m_l
    conv_extent: tuple[int, int]  # x'_l
    extent: tuple[int, int]  # x_l
    pool: tuple[int, int]  # p_l
    parameters: int
    macs: int  # of one sample, forward
    activation_bytes: int
    column_bytes: int


def table(spec: NetSpec, subbatch: int = 1) -> list[LayerRow]:
    """Rows of all layers with weights. Source: Oyama et al. 2016, eqs. (2) and (3)."""
    groups: list[list[Placed]] = []
    for placed in spec.placed:
        if placed.parameter_shapes:
            groups.append([])
        if groups:
            groups[-1].append(placed)
    return [_row(number, group, subbatch) for number, group in enumerate(groups, start=1)]


def _row(number: int, group: list[Placed], subbatch: int) -> LayerRow:
    first = group[0]
    layer, conv = first.layer, isinstance(first.layer, Conv2D)
    pools = [p for p in group if isinstance(p.layer, MaxPool2D)]
    parameters = sum(math.prod(shape) for shape in first.parameter_shapes.values())
    weights = math.prod(first.parameter_shapes[f"{first.name}.w"])
    plane = first.out_shape[1] * first.out_shape[2]
    taps = weights // first.out_shape[0]
    pooled = math.prod(pools[-1].out_shape) if pools else 0
    return LayerRow(
        number=number, name=first.name, kind="conv" if conv else "fc", in_shape=first.in_shape,
        window=layer.window if isinstance(layer, Conv2D) else first.in_shape[1:],
        stride=layer.stride if isinstance(layer, Conv2D) else (1, 1),
        pad=layer.pad if isinstance(layer, Conv2D) else (0, 0),
        filters=first.out_shape[0], conv_extent=first.out_shape[1:],
        extent=(pools[-1] if pools else first).out_shape[1:],
        pool=pools[0].layer.window if pools and isinstance(pools[0].layer, MaxPool2D) else (1, 1),
        parameters=parameters, macs=weights * plane,
        activation_bytes=FLOAT_BYTES * subbatch * (math.prod(first.out_shape) + pooled),
        column_bytes=FLOAT_BYTES * subbatch * taps * plane if conv else 0,
    )


def forward_macs(spec: NetSpec) -> int:
    """Multiply-accumulates of one sample's forward pass."""
    return sum(row.macs for row in table(spec))


def training_flops(spec: NetSpec) -> int:
    """Floating-point operations of one sample, forward and backward; the gradient to the image is not computed."""
    rows = table(spec)
    return 2 * (3 * sum(row.macs for row in rows) - rows[0].macs)
