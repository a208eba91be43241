"""Reading a hand-written JSON object field by field, every complaint one line that names the field."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..engine.errors import UsageError


class Fields:
    """One JSON object being read. `where` starts each message; `path` is the dotted way to this object.

    Every method raises UsageError ("where path.key: expected ..., got ...") for a missing or unfit field.
    """

    def __init__(self, data: Any, where: str, path: str = "") -> None:
        self.where, self.path, self.used = where, path, set[str]()
        if not isinstance(data, dict):
            raise UsageError(f"{where}{path or 'file'}: expected an object, got {_short(data)}")
        self.data: dict[str, Any] = data

    def unfit(self, key: str, expected: str, got: Any) -> UsageError:
        """The error for a field whose value does not fit."""
        return UsageError(f"{self.where}{self._dotted(key)}: expected {expected}, got {_short(got)}")

    def take(self, key: str, expected: str) -> Any:
        """The raw value of a field that must be there."""
        self.used.add(key)
        if key not in self.data:
            raise UsageError(f"{self.where}{self._dotted(key)}: expected {expected}, got nothing")
        return self.data[key]

    def number(self, key: str, default: float | None = None, *, positive: bool = False) -> float:
        """A finite number >= 0, or > 0."""
        expected = "a number > 0" if positive else "a number >= 0"
        value = self._optional(key, expected, default)
        if not _is_number(value) or value < 0 or (positive and value == 0):
            raise self.unfit(key, expected, value)
        return float(value)

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number >= least."""
        value = self._optional(key, f"a whole number >= {least}", default)
        if not _is_number(value) or value != int(value) or value < least:
            raise self.unfit(key, f"a whole number >= {least}", value)
        return int(value)

    def text(self, key: str, allowed: tuple[str, ...] = (), default: str | None = None) -> str:
        """A text, one of `allowed` if given."""
        expected = "one of " + ", ".join(allowed) if allowed else "a text"
        value = self._optional(key, expected, default)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise self.unfit(key, expected, value)
        return value

    def numbers(self, key: str) -> np.ndarray:
        """A list of one or more numbers > 0, as float64."""
        values = self.take(key, "a list of numbers > 0")
        if not isinstance(values, list) or not values or not all(_is_number(v) and v > 0 for v in values):
            raise self.unfit(key, "a list of numbers > 0", values)
        return np.array(values, dtype=np.float64)

    def pairs(self, key: str) -> tuple[tuple[float, float], ...]:
        """One or more pairs of numbers > 0."""
        expected = "a list of pairs of numbers > 0"
        values = self.take(key, expected)
        if not (isinstance(values, list) and values and all(
                isinstance(pair, list) and len(pair) == 2 and all(_is_number(v) and v > 0 for v in pair)
                for pair in values)):
            raise self.unfit(key, expected, values)
        return tuple((float(first), float(second)) for first, second in values)

    def inside(self, key: str, *, optional: bool = False) -> Fields:
        """The object under `key`; an empty one if it may be absent and is."""
        value = self._optional(key, "an object", {} if optional else None)
        return Fields(value, self.where, self._dotted(key))

    def groups(self) -> dict[str, Fields]:
        """Every field, each an object."""
        return {key: self.inside(key) for key in self.data}

    def texts(self) -> dict[str, str]:
        """Every field, each a text."""
        return {key: self.text(key) for key in self.data}

    def nothing_else(self) -> None:
        """Refuse fields that nobody asked for: a misspelt one would otherwise be lost in silence."""
        for key in self.data:
            if key not in self.used:
                raise self.unfit(key, "no such field", self.data[key])

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _optional(self, key: str, expected: str, default: Any) -> Any:
        self.used.add(key)
        if default is not None and key not in self.data:
            return default
        return self.take(key, expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    text = "an object" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
