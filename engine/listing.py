"""The nets as tables: all of them, or one by layer in the terms of the paper."""

from __future__ import annotations

from typing import Any

from . import jsontext
from .layers import NetSpec
from .nets import NAMES, RECONSTRUCTION, build
from .screen import print_table, screen
from .shapes import forward_macs, table, training_flops

Row = dict[str, Any]
WORDS = ("net", "input", "layer")  # columns of text
TERMS = "x'_l, x_l: size before and after pooling; m_l: maps (channels); p_l: pool window"


def net_rows() -> list[Row]:
    """One object a net, at its own size."""
    return [_summary(build(name)) for name in NAMES]


def _summary(spec: NetSpec) -> Row:
    kinds = [row.kind for row in table(spec)]
    return {"net": spec.name, "input": "x".join(map(str, spec.in_shape)), "classes": spec.classes,
            "conv": kinds.count("conv"), "fc": kinds.count("fc"), "parameters": spec.parameter_count,
            "MMAC": forward_macs(spec) / 1e6, "GFLOP fwd+bwd": training_flops(spec) / 1e9, "note": spec.note}


def layer_rows(spec: NetSpec, subbatch: int) -> list[Row]:
    """One object a layer with weights: x'_l before pooling, x_l after, m_l channels, p_l pool window, for one
    sample MMAC and for `subbatch` samples the bytes of activations and of the column buffer."""
    return [{"l": row.number, "layer": row.name, "x'_l": _extent(row.conv_extent), "x_l": _extent(row.extent),
             "m_l": row.filters, "p_l": _extent(row.pool), "parameters": row.parameters, "MMAC": row.macs / 1e6,
             "activation bytes": row.activation_bytes, "column bytes": row.column_bytes}
            for row in table(spec, subbatch)]


def totals(spec: NetSpec, rows: list[Row]) -> Row:
    """The sums under a layer table; columns are the largest, for layers share one buffer."""
    return {"parameters": spec.parameter_count, "MMAC": forward_macs(spec) / 1e6,
            "GFLOP fwd+bwd": training_flops(spec) / 1e9,
            "activation bytes": sum(row["activation bytes"] for row in rows),
            "column bytes": max(row["column bytes"] for row in rows)}


def _extent(pair: tuple[int, int]) -> int | str:
    """A square extent is one number."""
    return pair[0] if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def show(name: str | None, image_size: int | None, width: float, classes: int | None, subbatch: int,
         as_json: bool) -> None:
    """Print all nets, or the layers of the net `name`, as a table or JSON. Raises UsageError."""
    if name is None:
        rows, foot, note = net_rows(), None, RECONSTRUCTION
    else:
        spec = build(name, image_size, width, classes)
        rows, note = layer_rows(spec, subbatch), spec.note
        foot = totals(spec, rows)
    if as_json:
        facts = rows if name is None else {**_summary(spec), "subbatch": subbatch, "layers": rows}
        print(jsontext.dumps(facts, indent=2))
        return
    _print_table(rows, foot)
    if name:
        screen().print(TERMS, style="dim", soft_wrap=True)
    print(f"{'cnn-a, cnn-b, cnn-c: ' if name is None else ''}{note}")


def _print_table(rows: list[Row], foot: Row | None) -> None:
    from rich import box
    from rich.table import Table

    keys = [key for key in rows[0] if key != "note"]
    table = Table(box=box.SIMPLE_HEAD, show_footer=foot is not None)
    for key in keys:
        last = _cell(key, foot[key]) if foot and key in foot else ""
        table.add_column(key.replace("bytes", "MiB"), last, justify="left" if key in WORDS else "right")
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in keys))
    print_table(screen(), table)


def _cell(key: str, value: Any) -> str:
    if key.endswith("bytes"):
        return f"{value / 2**20:,.2f}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if key == "parameters" else str(value)
