"""Reading a hand-written JSON object field by field, every complaint one line that names the field."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.errors import UsageError
from .bounds import MANY, finite, positives, range_of, short, whole


class Fields:
    """One JSON object being read. `where` starts each message; `path` is the dotted way to this object.

    Every method raises UsageError ("where path.key: expected ..., got ...") for a missing or unfit field.
    """

    def __init__(self, data: Any, where: str, path: str = "") -> None:
        self.where, self.path, self.used = where, path, set[str]()
        if not isinstance(data, dict):
            raise UsageError(f"{where}{path or 'file'}: expected an object, got {short(data)}")
        self.data: dict[str, Any] = data

    def unfit(self, key: str, expected: str, got: Any) -> UsageError:
        """The error for a field whose value does not fit."""
        return UsageError(f"{self._name(key)}: expected {expected}, got {short(got)}")

    def take(self, key: str, expected: str) -> Any:
        """The raw value of a field that must be there."""
        self.used.add(key)
        if key not in self.data:
            raise UsageError(f"{self._name(key)}: expected {expected}, got nothing")
        return self.data[key]

    def number(self, key: str, default: float | None = None, *, positive: bool = False) -> float:
        """A finite number >= 0, or > 0."""
        value = self._optional(key, range_of(positive=positive), default)
        return finite(self._name(key), value, positive=positive)

    def whole(self, key: str, default: int | None = None, *, most: int = MANY) -> int:
        """A whole number >= 1."""
        return whole(self._name(key), self._optional(key, "a whole number >= 1", default), most=most)

    def text(self, key: str, allowed: tuple[str, ...] = (), default: str | None = None) -> str:
        """A text, one of `allowed` if given."""
        expected = "one of " + ", ".join(allowed) if allowed else "a text"
        value = self._optional(key, expected, default)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise self.unfit(key, expected, value)
        return value

    def numbers(self, key: str) -> np.ndarray:
        """A list of one or more numbers > 0, as float64."""
        return np.array(positives(self._name(key), self.take(key, "a list of numbers > 0")))

    def grid(self, key: str, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers > 0 or null in nested lists of this shape, as float64 with NaN for null."""
        values = self.take(key, f"lists of shape {shape}")
        self._check_grid(key, values, shape)
        return np.array(values, dtype=np.float64)

    def _check_grid(self, key: str, values: Any, shape: tuple[int, ...]) -> None:
        if not shape:
            if values is not None:
                finite(self._name(key), values, positive=True)
        elif not isinstance(values, list) or len(values) != shape[0]:
            raise self.unfit(key, f"a list of {shape[0]}", values)
        else:
            for at, inner in enumerate(values):
                self._check_grid(f"{key}[{at}]", inner, shape[1:])

    def pairs(self, key: str) -> tuple[tuple[float, float], ...]:
        """One or more pairs of numbers > 0."""
        expected = "a list of pairs of numbers > 0"
        values = self.take(key, expected)
        if not (isinstance(values, list) and values and all(isinstance(v, list) and len(v) == 2 for v in values)):
            raise self.unfit(key, expected, values)
        pairs = [positives(f"{self._name(key)}[{at}]", pair) for at, pair in enumerate(values)]
        return tuple((first, second) for first, second in pairs)

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

    def _name(self, key: str) -> str:
        return self.where + self._dotted(key)

    def _optional(self, key: str, expected: str, default: Any) -> Any:
        self.used.add(key)
        if default is not None and key not in self.data:
            return default
        return self.take(key, expected)
