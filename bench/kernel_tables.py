"""Results of the kernel benchmark for people: a table on the screen, and one in Markdown for a README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..engine.screen import print_table
from .ceilings import Ceilings
from .environment import busy
from .kernels import Result

HIDDEN_FIRST = ("MB", "first", "launch", "calls", "min", "n")
RATIO = "x BLAS/copy"
NOTES = ("ms: median, minimum and median absolute deviation (MAD) of n calls on the device, each on cold caches "
         "(flushed by reading twice their size) and on other arrays than the call before. GB/s: bytes that must move. "
         "% of the ceiling that the case meets first: mem, the best copy with these threads, or flop, the peak of "
         "sgemm, which a convolution with fewer products may pass. % of copy: against the best copy of as many bytes, "
         "timed in turn with the case, so it holds on a busy machine too; kernels in place may pass it, for a copy "
         "also loads what it overwrites. x BLAS/copy: times faster than BLAS, or than NumPy's copy of as many bytes, "
         "with the same threads.")
MORE_NOTES = ("launch: ms of the calling thread before the kernel runs. first: ms of the first call, which compiles or "
              "loads. MB: 10^6 bytes that must move. calls: in one training step.")


def ceilings_line(ceilings: Ceilings) -> str:
    """The ceilings in one line."""
    threads = f"{ceilings.threads} thread{'s' * (ceilings.threads > 1)}"
    return (f"ceilings, measured in this run: copy {ceilings.copy_gb_per_s:.1f} GB/s ({ceilings.copy_method}, "
            f"{threads}, beyond the {ceilings.cache_bytes >> 20} MiB cache), in cache {ceilings.cached_gb_per_s:.0f} "
            f"GB/s, sgemm {ceilings.sgemm_gflop_per_s:.0f} GFLOP/s")


def print_results(out: Console, results: Sequence[Result]) -> None:
    """The table of what was timed, then one line for everything that was not."""
    timed = [result for result in results if result.times]
    if timed:
        print_table(out, _table(timed, out.width if out.is_terminal else None))
        out.print(f"{NOTES} {MORE_NOTES}", style="dim")
    print_checked(out, [result for result in results if result.status == "checked"])
    for result in results:
        if result.status in ("wrong", "refused"):
            out.print(f"{result.status}: {result.case.problem}: {result.note}", soft_wrap=True, markup=False)
    for note, count in Counter(result.note for result in results if result.status == "skipped").items():
        out.print(f"skipped {count} case{'s' * (count > 1)}: {note}", soft_wrap=True, markup=False)


def print_checked(out: Console, results: Sequence[Result]) -> None:
    """One line for every case that was only checked."""
    for result in results:
        block = "" if result.block is None else f" block {result.block}"
        error = f"worst error {result.worst:.3f} of the tolerance"
        out.print(f"right: {result.case.problem}{block}: {error}", soft_wrap=True)


def _table(results: Sequence[Result], width: int | None) -> Table:
    """All columns, or as many as fit into `width` characters; the least important ones go first."""
    rows = [_cells(result) for result in results]
    shown = [key for key in rows[0] if any(row[key] for row in rows)]
    widths = {key: 3 + max(len(key), *(len(row[key]) for row in rows)) for key in shown}
    for key in HIDDEN_FIRST:
        if width and sum(widths.values()) > width - 2 and key in shown:
            shown.remove(key)
            del widths[key]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for key in shown:
        table.add_column(key, justify="left" if key == "problem" else "right")
    for row in rows:
        table.add_row(*(row[key] for key in shown))
    return table


def _cells(result: Result) -> dict[str, str]:
    spread, calls, copy = result.spread, result.case.calls, result.percent_of_copy
    assert result.times is not None
    return {"problem": result.case.problem.text, "block": "" if result.block is None else str(result.block),
            "calls": "" if calls is None else str(calls),
            "ms": _ms(spread.median), "min": _ms(spread.least), "MAD": _ms(spread.mad), "n": str(spread.repeats),
            "launch": "-" if result.launch_ms is None else _ms(result.launch_ms), "first": _ms(result.times.first),
            "MB": _ms(result.case.bytes_moved / 1e6), "GB/s": f"{result.gb_per_s:.1f}",
            "GFLOP/s": f"{result.gflop_per_s:.1f}", "% ceiling": _percent(result),
            "% copy": "" if copy is None else f"{copy:.0f}",
            RATIO: f"{result.ratio:.2f} {result.library[0].split()[-1]}"}


def _ms(value: float) -> str:
    """Three figures, and never more than four decimals."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4}f}"


def _percent(result: Result) -> str:
    return f"{result.percent:.0f} {'mem' if result.limit == 'memory' else 'flop'}"


def markdown(results: Sequence[Result], machine: dict[str, Any], ceilings: Ceilings, command: str) -> str:
    """A Markdown table of what was timed, with the machine, the ceilings and the command that wrote it."""
    head = ["problem", "ms", "± MAD", "n", "GB/s", "GFLOP/s", "% of ceiling", "% of copy", RATIO]
    reason = busy(machine)
    lines = [f"`{command}` on {machine['device']}, sprint {machine['sprint']}; {ceilings_line(ceilings)}."
             + (f" Times are upper bounds: {reason}." if reason else ""), "",
             "| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for result in results:
        if result.times:
            row = _cells(result)
            cells = [row[key] for key in ("ms", "MAD", "n", "GB/s", "GFLOP/s", "% ceiling", "% copy", RATIO)]
            block = "" if result.block is None else f" block {result.block}"
            lines.append(f"| `{result.case.problem}`{block} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTES])
