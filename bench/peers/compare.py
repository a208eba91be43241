"""Contenders take turns on one case: losses that must agree, then times in alternating rounds, then layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ...engine.fusion import fuse
from .cases import CONTENDERS, OURS, Case
from .child import Child
from .result import CaseResult, LayerTimes, Settings, Times

Report = Callable[[str], None]
MOST_CALLS = 1000  # in one turn


def compare(case: Case, settings: Settings, report: Report = lambda text: None) -> CaseResult:
    """Everything about one case; report(text) tells what is being done.

    Raises RuntimeError when a contender fails.
    """
    with ExitStack() as stack:
        children, losses, memory, layers = {}, {}, {}, []
        for name in CONTENDERS:  # one after the other, for the memory of a GPU is only known for all together
            report(f"{case.title}: losses of {name}")
            children[name] = stack.enter_context(Child(name, case))
            losses[name] = children[name].ask("losses", steps=settings.loss_steps)
            memory[name] = children[name].ask("memory")
        report(f"{case.title}: steps")
        steps = take_turns(children, settings, "steps")
        for stage in fuse(case.spec):
            if stage.kind == "conv":
                report(f"{case.title}: {stage.name}")
                layers.append(LayerTimes(stage.name, take_turns(children, settings, "layer", name=stage.name)))
        own_time = children[OURS].ask("own_time") if case.device.startswith("host") else None
        versions = {name: child.ask("version") for name, child in children.items()}
    return CaseResult(case, versions, losses, steps, memory, layers, own_time)


def take_turns(children: dict[str, Child], settings: Settings, question: str, **arguments: str) -> Times:
    """Answers (milliseconds by name) to a question that takes a `count`, by contender, one a round.

    A turn takes about settings.seconds: an untimed one tells how many calls that is. Who comes first changes from round
    to round, so that whatever else the machine does meets all alike.
    """
    counts = {name: _count(sum(child.ask(question, count=1, **arguments).values()), settings.seconds)
              for name, child in children.items()}
    found: Times = {name: {} for name in children}
    for number in range(settings.rounds):
        for name in _rotated(list(children), number):
            for key, ms in children[name].ask(question, count=counts[name], **arguments).items():
                found[name].setdefault(key, []).append(ms)
    return found


def _count(ms: float, seconds: float) -> int:
    return max(1, min(MOST_CALLS, math.ceil(1e3 * seconds / ms)))


def _rotated(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]
