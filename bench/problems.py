"""Problem strings: one line such as "conv_forward n8c64h56w56k128r3s3 explicit" names one kernel call and its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..engine.errors import UsageError

SIZE_LIMIT = 2**31 - 1
_SIZES = re.compile(r"(?:[a-z]+[0-9]+)+")
_SIZE = re.compile(r"([a-z]+)([0-9]+)")
_MAY_BE_ZERO = ("ph", "pw")


@dataclass(frozen=True)
class Problem:
    """Sizes of one call of `op`: `problem.n` is the size n, `"relu" in problem.words` an option.

    text: the canonical string; equal problems have equal strings.
    """

    text: str
    op: str
    sizes: Mapping[str, int] = field(compare=False)
    words: tuple[str, ...] = field(compare=False, default=())

    def __getattr__(self, key: str) -> int:
        try:
            return self.sizes[key]
        except KeyError:
            raise AttributeError(key) from None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Grammar:
    """What a problem string of one op holds.

    keys: sizes that must be there, in canonical order; defaults: further sizes, a number or the key whose value they
    take; words: options; choices: words of which exactly one must be there.
    """

    op: str
    keys: tuple[str, ...]
    defaults: Mapping[str, int | str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The form of the string, for messages."""
        optional = f"[{''.join(f'{key}.' for key in self.defaults)}]" if self.defaults else ""
        words = [*self.words, "|".join(self.choices)] if self.choices else self.words
        sizes = "".join(f"{key}." for key in self.keys) + optional
        return " ".join([self.op, sizes, *(f"[{word}]" for word in words)])

    def make(self, sizes: Mapping[str, int], words: tuple[str, ...] = ()) -> Problem:
        """The problem of these sizes (defaults may be left out). Raises UsageError when something is missing or odd."""
        full = {key: sizes[key] for key in self.keys if key in sizes}
        if len(full) < len(self.keys) or set(sizes) - set(self.keys) - set(self.defaults):
            raise self._unfit(f"sizes {' '.join(sizes) or 'none'}")
        for key, default in self.defaults.items():
            full[key] = sizes.get(key, full[default] if isinstance(default, str) else default)
        for key, value in full.items():
            if not (key not in _MAY_BE_ZERO) <= value <= SIZE_LIMIT:
                raise self._unfit(f"{key}={value}")
        chosen = tuple(word for word in (*self.words, *self.choices) if word in words)
        if len(chosen) != len(words) or (self.choices and len(set(chosen) & set(self.choices)) != 1):
            raise self._unfit(f"words {' '.join(words) or 'none'}")
        return Problem(self._text(full, chosen), self.op, full, chosen)

    def parse(self, sizes_text: str, words: tuple[str, ...]) -> Problem:
        """The problem of "n8c64h56w56" and words. Raises UsageError."""
        found = _SIZE.findall(sizes_text)
        if not _SIZES.fullmatch(sizes_text) or len({key for key, _ in found}) < len(found):
            raise self._unfit(f"'{sizes_text}'")
        return self.make({key: int(value) for key, value in found}, words)

    def _text(self, sizes: Mapping[str, int], words: tuple[str, ...]) -> str:
        shown = [f"{key}{sizes[key]}" for key in self.keys]
        for key, default in self.defaults.items():
            if sizes[key] != (sizes[default] if isinstance(default, str) else default):
                shown.append(f"{key}{sizes[key]}")
        return " ".join([self.op, "".join(shown), *words])

    def _unfit(self, got: str) -> UsageError:
        return UsageError(f"problem: expected '{self.usage}', each . a whole number, got {got}")
