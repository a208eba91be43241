"""Numbers that people give, as an option or in a file: finite and within their bounds, or refused in one line."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..engine.errors import UsageError

LARGEST = 1e24  # of any number: what the model makes of it, squares among them, stays finite in float64
MANY = 10**15  # of any whole number: a petabyte of memory
MOST = {"nodes": 100_000, "devices": 1024, "subbatch": 100_000, "images": MANY, "ranks_per_host": 100_000}


def fits(value: Any, least: float = 0, most: float = LARGEST, *, positive: bool = False) -> bool:
    """Whether a value is a number (true is none) from `least` to `most`, or above 0; NaN and inf never are."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and least <= value <= most and not (positive and value == 0)


def range_of(most: float = LARGEST, *, positive: bool = False) -> str:
    """What `finite` expects, in words."""
    return f"a number {'>' if positive else '>='} 0 and <= {most:g}"


def finite(name: str, value: Any, most: float = LARGEST, *, positive: bool = False) -> float:
    """A number from 0 to `most`, or above 0. Raises: UsageError naming it."""
    if not fits(value, 0, most, positive=positive):
        raise UsageError(f"{name}: expected {range_of(most, positive=positive)}, got {short(value)}")
    return float(value)


def whole(name: str, value: Any, least: int = 1, most: int = MANY) -> int:
    """A whole number from `least` to `most`. Raises: UsageError naming it."""
    if not fits(value, least, most) or value != int(value):
        raise UsageError(f"{name}: expected a whole number from {least} to {most}, got {short(value)}")
    return int(value)


def positives(name: str, values: Any) -> list[float]:
    """A list of one or more numbers > 0. Raises: UsageError naming it, or the place of the number that is none."""
    if not isinstance(values, list) or not values:
        raise UsageError(f"{name}: expected a list of numbers > 0, got {short(values)}")
    return [finite(f"{name}[{at}]", value, positive=True) for at, value in enumerate(values)]


def short(value: Any) -> str:
    """The value as a message shows it: one line, 60 characters at most."""
    text = "an object" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
