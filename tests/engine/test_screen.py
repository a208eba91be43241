"""Tables are shown with every number whole, however narrow the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from sprint.engine.screen import print_table, screen

NUMBERS = ("1,234,567.891", "0.07", "12.5 ± 3%", "1.07 NumPy", "98765432109")
WORDS = "far too long for a column of any terminal, and " * 3 + "a_word_that_is_longer_than_all_the_others"

LEAST = 89  # characters that the numbers need beside narrow columns of text


def shown(width, terminal):
    """The lines of a table of two rows, without trailing spaces."""
    out = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    table = Table("case", show_footer=True)
    for _ in range(4):
        table.add_column("a head", NUMBERS[4], justify="right")
    table.add_column("why", "")
    table.add_row("one", *NUMBERS[:4], WORDS)
    table.add_row("two", *NUMBERS[:4], "short")
    print_table(out, table)
    assert out.width == width  # for the text that follows
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [150, 100, 80, 40, 10])
def test_on_a_terminal_text_is_broken_and_numbers_are_whole(width):
    lines = shown(width, terminal=True)
    text = "\n".join(lines)
    assert "…" not in text and text.count(NUMBERS[4]) == 4
    assert [all(number in line for number in NUMBERS[:4]) for line in lines].count(True) == 2
    last = "".join(line.split("│")[-2].strip() for line in lines if line.startswith("│"))
    assert WORDS.replace(" ", "") in last.replace(" ", "")
    assert max(map(len, lines)) <= max(width, LEAST)


def test_without_a_terminal_every_row_is_a_line():
    lines = [line.strip("│ ") for line in shown(30, terminal=False)]
    assert any(line.startswith("one") and line.endswith(WORDS) for line in lines)


def test_a_plain_screen_has_no_colours(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for plain in (False, True):
        screen(plain).print("[bold]x[/]")
    assert [("\x1b" in line) for line in capsys.readouterr().out.splitlines()] == [True, False]
