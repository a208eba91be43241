"""Standard output for people: text as wide as the terminal, and tables in which no number is ever cut."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 10_000  # characters of a line
NARROW = 20  # characters of a column of text at which it gives up no more


def screen(plain: bool = False) -> Console:
    """Standard output; a `plain` one has no colours, whatever it is connected to."""
    return Console(highlight=False, force_terminal=False if plain else None)


def print_table(out: Console, table: Table) -> None:
    """Print a table: its text is broken where the terminal is narrow, its numbers (columns to the right) never are.

    Where even that is too wide, the terminal breaks the lines; without a terminal nothing is broken.
    """
    wide, before, spare = out.options.update(width=WIDEST), out.width, 0
    for column in table.columns:
        column.no_wrap, column.overflow = column.justify == "right", "fold"
        if not column.no_wrap:
            cells = (column.header, column.footer, *column.cells)
            spare += max(0, max(Measurement.get(out, wide, cell).maximum for cell in cells) - NARROW)
    most = Measurement.get(out, wide, table).maximum
    out.width = max(before, most - spare) if out.is_terminal else most
    out.print(table)
    out.width = before
