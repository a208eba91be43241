"""The comparison for people: on the screen, and in Markdown for a README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from .cases import OURS, THEIRS
from .result import CaseResult

HEAD = ("training step", "sprint images/s", "PyTorch images/s", "ratio", "sprint peak MiB", "PyTorch peak MiB",
        "loss", "loss differs by", "outside kernels")
NOTE = ("Steps: forward, backward, momentum update. PyTorch: the better of its layouts, default and channels_last. "
        "Ratios above 1: sprint is faster; medians over the rounds. Peak: resident memory of the process (behind the "
        "slash: without the libraries it had loaded before). Loss: from the first to the last compared step, and the "
        "worst relative difference between the two. Layers: with their ReLU and pool, forward / backward.")


def table(results: Sequence[CaseResult]) -> Table:
    """Cases, one a row."""
    return _table(HEAD, [_cells(each) for each in results])


def layer_table(results: Sequence[CaseResult]) -> Table:
    """Layers, one a row, and cases."""
    return _table(*_layers(results))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column is text, the others are numbers."""
    result = Table(head[0], box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head[1:]:
        result.add_column(name, justify="right")
    for row in rows:
        result.add_row(*row)
    return result


def markdown(results: Sequence[CaseResult], machine: dict[str, Any], rounds: int, command: str, date: str) -> str:
    """Both tables, where and how they were measured."""
    head, rows = _layers(results)
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    versions = results[0].versions
    facts = (f"{machine['processor']}, {threads}, float32; PyTorch {versions[THEIRS[0]]}, sprint {versions[OURS]}; "
             f"median of {rounds} alternating rounds, {date}, load {machine['load']:.1f} before. `{command}`")
    return "\n\n".join([_markdown(HEAD, [_cells(each) for each in results]), _markdown(head, rows), f"{facts}\n{NOTE}"])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line = "|".join(["---", *["---:"] * (len(head) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" if row else f"|{line}|" for row in (head, (), *rows))


def _cells(each: CaseResult) -> list[str]:
    layout = " (channels_last)" if each.peer.endswith("channels_last") else ""
    losses = each.losses[OURS]
    share = "" if each.own_share is None else f"{each.own_share:.1%}"
    return [each.case.title, f"{each.images_per_s(OURS):.1f}", f"{each.images_per_s(each.peer):.1f}{layout}",
            f"{each.ratio:.2f}", _memory(each, OURS), _memory(each, each.peer), f"{losses[0]:.2f} → {losses[-1]:.2f}",
            f"{each.loss_difference:.0e}", share]


def _memory(each: CaseResult, name: str) -> str:
    memory = each.memory[name]
    return f"{memory['peak'] / 2**20:.0f} / {memory['growth'] / 2**20:.0f}"


def _layers(results: Sequence[CaseResult]) -> tuple[list[str], list[list[str]]]:
    columns = [{layer.name: f"{layer.ratio('forward'):.2f} / {layer.ratio('backward'):.2f}" for layer in each.layers}
               for each in results]
    names = max((list(column) for column in columns), key=len)
    return ["layer", *[each.case.title for each in results]], [[n, *[c.get(n, "") for c in columns]] for n in names]
