"""Predictions, simulations and plans as tables for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from ..distributed.launch import launched
from ..engine.screen import print_table, screen
from .machine import Machine
from .outcome import GPU_TERMS, UPDATE_TERMS, Outcome
from .plan import ADMISSIBLE, GIB, REASONS, Plan

PAST = {"predict": "predicted", "simulate": "simulated", "emulate": "emulated", "measure": "measured"}
MOST_ERROR = 10.0  # of a term so small that its error says nothing
UNITS_OF_TIME = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def open_screen() -> Console:
    """Where tables go: under a launcher, which gives its ranks a terminal of its own, without colours."""
    return screen(plain=launched() is not None)


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "27.4 min"."""
    for unit, size in UNITS_OF_TIME:
        if seconds >= size:
            value = seconds / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{seconds:.1e} s"


def term_name(loop: str, name: str) -> str:
    """A term as the paper writes it: ("gpu", "lock_weights") is LockWeights_G."""
    written = "".join(word.capitalize() for word in name.split("_"))
    return f"{written}_{loop[0].upper()}" if name.startswith("lock_") else written


def print_outcomes(console: Console, outcomes: list[Outcome], machine: Machine) -> None:
    """One outcome, or several with the difference of the first from the last in percent of that."""
    first, config = outcomes[0], outcomes[0].config
    ways = " and ".join(", ".join(PAST[outcome.method] for outcome in outcomes).rsplit(", ", 1))
    console.print(f"[bold]{first.network}[/] on [bold]{first.machine}[/], {ways}: {config.nodes} nodes x "
                  f"{config.devices} devices, sub-batch {config.subbatch}, {machine.conv} convolution",
                  soft_wrap=True)
    print_table(console, _terms(outcomes, "gpu", GPU_TERMS))
    print_table(console, _terms(outcomes, "update", UPDATE_TERMS))
    print_table(console, _results(outcomes))
    for outcome in outcomes:
        for warning in outcome.warnings:
            console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)


def _columns(title: str, outcomes: list[Outcome], unit: str = "") -> Table:
    table = Table(title, box=None, padding=(0, 1), title_justify="left")
    for outcome in outcomes:
        table.add_column(f"{PAST[outcome.method]}{unit}", justify="right")
    table.add_column("error" if len(outcomes) > 1 else "", justify="right")
    return table


def _terms(outcomes: list[Outcome], loop: str, names: tuple[str, ...]) -> Table:
    table = _columns(f"[bold]{'GPU' if loop == 'gpu' else 'update'} thread[/]", outcomes, " (ms)")
    for name in names:
        values = [getattr(outcome, f"{loop}_terms")[name] for outcome in outcomes]
        table.add_row(term_name(loop, name), *(f"{1e3 * value:.3f}" for value in values),
                      _last(values, outcomes, loop))
    totals = [getattr(outcome, f"t_{loop}") for outcome in outcomes]
    table.add_row(f"[bold]T_{'GPU' if loop == 'gpu' else 'Update'}[/]",
                  *(f"[bold]{1e3 * total:.3f}[/]" for total in totals), _error(totals))
    if loop == "update":
        barriers = [outcome.barrier for outcome in outcomes]
        table.add_row("  T_Barrier, in Allreduce", *(f"{1e3 * b:.3f}" for b in barriers), _error(barriers))
        waits = [outcome.wait for outcome in outcomes]
        if any(waits):
            table.add_row("  wait for gradients", *(f"{1e3 * wait:.3f}" for wait in waits), _error(waits))
    return table


def _last(values: list[float], outcomes: list[Outcome], loop: str) -> str:
    """The last column: share of the loop's time, or the error where there is something to compare with."""
    if len(outcomes) > 1:
        return _error(values)
    return f"{values[0] / getattr(outcomes[0], f't_{loop}'):.1%}"


def _error(values: list[float]) -> str:
    if len(values) < 2 or not values[-1]:
        return ""
    error = values[0] / values[-1] - 1
    return f"{error:+.1%}" if error < MOST_ERROR else f"> +{MOST_ERROR:.0%}"


def _results(outcomes: list[Outcome]) -> Table:
    table = _columns("[bold]result[/]", outcomes)

    def row(name: str, key: str, text: Callable[[float], str], value: Callable[[Outcome], float]) -> None:
        values = [value(outcome) for outcome in outcomes]
        spread = [f" ± {o.uncertainty[key]:.0%}" if o.uncertainty.get(key) else "" for o in outcomes]
        table.add_row(name, *(text(v) + s for v, s in zip(values, spread, strict=True)), _error(values))

    row("T_Epoch", "t_epoch", duration, lambda o: o.t_epoch)
    row("mini-batch, mean", "minibatch", "{:.1f}".format, lambda o: o.minibatch.mean)
    row("mini-batch, deviation", "", "{:.1f}".format, lambda o: o.minibatch.deviation)
    row("staleness, mean", "staleness", "{:.2f}".format, lambda o: o.staleness.mean)
    row("staleness, deviation", "", "{:.2f}".format, lambda o: o.staleness.deviation)
    middle = [f"{o.minibatch.quantile(0.05)} to {o.minibatch.quantile(0.95)}" for o in outcomes]
    table.add_row("mini-batch, 90% of updates", *middle, "")
    table.add_row("staleness, 90% of gradients",
                  *(f"{o.staleness.quantile(0.05)} to {o.staleness.quantile(0.95)}" for o in outcomes), "")
    if len(outcomes) > 1:
        for name, title in (("minibatch", "mini-batch"), ("staleness", "staleness")):
            common = [getattr(o, name).overlap(getattr(outcomes[-1], name)) for o in outcomes]
            table.add_row(f"{title}, overlap with {PAST[outcomes[-1].method]}", *(f"{part:.0%}" for part in common), "")
    memory = f"{outcomes[0].memory_bytes / GIB:.2f} of {outcomes[0].memory_limit / GIB:.2f} GiB"
    table.add_row("memory of a device", memory, *[""] * len(outcomes))
    return table


def print_plan(console: Console, plan: Plan, show: int, every: bool) -> None:
    """The best `show` admissible configurations and why the others lost; with `every`, each with its reason."""
    ranked = plan.ranked()
    count = len(plan.nodes) * len(plan.subbatches)
    console.print(f"[bold]{plan.network}[/] on [bold]{plan.machine}[/], {plan.devices} devices a node: "
                  f"{len(ranked)} of {count} configurations are admissible", soft_wrap=True)
    if ranked:
        print_table(console, _ranking(plan, ranked if every else ranked[:show]))
        console.print("* = shortest epoch with so few nodes (Pareto front)")
    if len(ranked) < count:
        print_table(console, _losers(plan, every))


def _ranking(plan: Plan, cells: list[tuple[int, int]]) -> Table:
    table = Table("", box=None, padding=(0, 1))
    for name in ("nodes", "sub-batch", "T_Epoch", "mini-batch", "staleness", "GiB"):
        table.add_column(name, justify="right")
    table.add_column("why not the best")
    for cell in cells:
        row, column = cell
        table.add_row("*" if plan.front[cell] else "", str(plan.nodes[row]), str(plan.subbatches[column]),
                      duration(plan.t_epoch[cell]), f"{plan.minibatch[cell]:.1f}", f"{plan.staleness[cell]:.2f}",
                      f"{plan.memory[cell] / GIB:.2f}", plan.reason(*cell))
    return table


def _losers(plan: Plan, every: bool) -> Table:
    """Counts by reason with an example, or every configuration that is not admissible."""
    cells = [(row, column) for row in range(len(plan.nodes)) for column in range(len(plan.subbatches))
             if plan.verdict[row, column] != ADMISSIBLE]
    table = Table("lost for", box=None, padding=(0, 1))
    table.add_column("configurations", justify="right")
    table.add_column("nodes x sub-batch")
    if every:
        for cell in cells:
            table.add_row(REASONS[plan.verdict[cell]], "1", _where(plan, cell))
        return table
    nearest: dict[int, tuple[int, int]] = {}
    for cell in cells:  # of each reason the one with the shortest epoch
        verdict = int(plan.verdict[cell])
        if verdict not in nearest or plan.t_epoch[cell] < plan.t_epoch[nearest[verdict]]:
            nearest[verdict] = cell
    for verdict, number in Counter(int(plan.verdict[cell]) for cell in cells).most_common():
        table.add_row(REASONS[verdict], str(number), f"e.g. {_where(plan, nearest[verdict])}")
    return table


def _where(plan: Plan, cell: tuple[int, int]) -> str:
    return f"{plan.nodes[cell[0]]} x {plan.subbatches[cell[1]]}: {plan.reason(*cell)}"
