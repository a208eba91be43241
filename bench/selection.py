"""Which cases a command line means: names of ops or families, problem strings, or the public sets of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine.errors import UsageError
from .cases import TABLE
from .op import Case, Op
from .problems import Problem

OPS = {op.name: op for op in TABLE}
FAMILIES = tuple(dict.fromkeys(op.family for op in TABLE))


def named(name: str) -> list[Op]:
    """The op of that name and all ops of the family of that name. Raises UsageError when there is neither."""
    found = [op for op in TABLE if name in (op.name, op.family)]
    if not found:
        known = f"a kernel of {', '.join(OPS)} or a family of {', '.join(FAMILIES)}"
        raise UsageError(f"bench: expected {known}, got '{name}'")
    return found


def default_cases(names: Sequence[str]) -> list[Case]:
    """Each op of the names (all ops without any) at the sizes that it has in the table."""
    ops = [op for name in names for op in named(name)] if names else TABLE
    return [case for op in unique(ops) for case in cases_of(f"{op.name} {op.default}")]


def unique(items: Iterable[Op]) -> list[Op]:
    """Without repetitions, in order."""
    return list({op.name: op for op in items}.values())


def cases_of(text: str) -> list[Case]:
    """The case of a problem string; a family, or an op without one of its choices of words, gives one for each.

    Raises UsageError for a string that names no problem.
    """
    name, sizes, *words = [*text.split(), "", ""][: max(2, len(text.split()))]
    if not name:
        raise UsageError("problem: expected a string like 'conv n8c64h56w56k128r3s3', got an empty one")
    problems = [problem for op in _ops(name, words) for problem in _problems(op, sizes, words)]
    return [case_of(problem) for problem in problems]


def case_of(problem: Problem, calls: int | None = None) -> Case:
    """The case of a problem. Raises UsageError when its sizes do not belong together."""
    case = Case(OPS[problem.op], problem, calls)
    try:
        _ = case.specs
    except (ValueError, TypeError) as error:
        raise UsageError(f"problem '{problem}': {error}") from None
    return case


def _ops(name: str, words: list[str]) -> list[Op]:
    """Ops of a name, of which one at least must know each word."""
    ops = [OPS[name]] if name in OPS else named(name)
    for word in words:
        if not any(word in (*op.grammar.words, *op.grammar.choices) for op in ops):
            raise UsageError(f"problem: expected '{ops[0].grammar.usage}', got the word '{word}'")
    return ops


def _problems(op: Op, sizes: str, words: list[str]) -> list[Problem]:
    grammar = op.grammar
    kept = tuple(word for word in words if word in (*grammar.words, *grammar.choices))
    if grammar.choices and not set(kept) & set(grammar.choices):
        return [grammar.parse(sizes, (*kept, choice)) for choice in grammar.choices]
    return [grammar.parse(sizes, kept)]
