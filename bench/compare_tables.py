"""The comparison of two results for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ..engine.screen import print_table
from .compare import ALPHA, Compared

STYLE = {"slower": "red", "faster": "green", "same": ""}


def print_compared(out: Console, compared: Sequence[Compared], unpaired: Sequence[str]) -> None:
    """One row a case, then how many are slower, faster and the same."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("case")
    for name in ("A ms", "B ms", "B / A", "p", ""):
        table.add_column(name, justify="right")
    for each in compared:
        cells = f"{each.a_ms:.4g}", f"{each.b_ms:.4g}", f"{each.ratio:.3f}", f"{each.p:.2g}", each.verdict
        table.add_row(each.name, *cells, style=STYLE[each.verdict])
    print_table(out, table)
    for name in unpaired:
        out.print(f"only in one file: {name}", soft_wrap=True, markup=False)
    count = Counter(each.verdict for each in compared)
    out.print(f"{count['slower']} slower, {count['faster']} faster, {count['same']} the same (medians less than "
              f"{compared[0].threshold:.0%} apart, or apart by chance: Mann-Whitney p of {ALPHA} or more)")
