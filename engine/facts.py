"""What a checkpoint says beside its arrays, checked before anyone relies on it: whoever wrote it may be mistaken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .config import FLOAT, TrainConfig

SHOWN = 60  # characters of a wrong value that a message has


def checked(text: str) -> dict[str, Any]:
    """The facts in the JSON `text`, `config` as a TrainConfig. Raises ValueError, "expected ..., got ...", one line."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("expected facts in JSON, got none") from None
    if not isinstance(facts, dict):
        raise ValueError(f"expected a JSON object of facts, got {_shown(facts)}")
    for name, (words, holds) in RULES.items():
        if name not in facts or not holds(facts[name]):
            raise ValueError(f"expected {words} as {name}, got {_shown(facts[name]) if name in facts else 'none'}")
    if unknown := sorted(facts.keys() - RULES):
        raise ValueError(f"expected {', '.join(RULES)}, got {_shown(unknown[0])} too")
    _check_channels(facts)
    return facts | {"config": _config(facts["config"]), "image_shape": tuple(facts["image_shape"])}


def _check_channels(facts: dict[str, Any]) -> None:
    """Raise ValueError unless mean and std have one number a channel."""
    channels = facts["image_shape"][0]
    for name in ("mean", "std"):
        if len(facts[name]) != channels:
            raise ValueError(f"expected {name} of each of {channels} channels, got {len(facts[name])}")


def _config(options: dict[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.from_json(options)
    except ValueError as error:
        raise ValueError(f"expected options that fit as config, got wrong ones ({error})") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= FLOAT


def _all(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, list) and all(holds(value) for value in values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by name: in words, and whether a value fits
    "config": ("an object", _is_object),
    "step": ("a whole number >= 0", lambda value: _is_whole(value, 0)),
    "epoch": ("a number >= 0", lambda value: _is_number(value) and value >= 0),
    "worker": ("an object", _is_object),
    "choices": ("an object of texts", lambda value: _is_object(value) and all(map(_is_text, value.values()))),
    "class_names": ("a list of texts", _all(_is_text)),
    "image_shape": ("3 whole numbers > 0", lambda value: _all(lambda n: _is_whole(n, 1))(value) and len(value) == 3),
    "mean": ("a list of numbers", _all(_is_number)),
    "std": ("a list of numbers > 0", _all(lambda value: _is_number(value) and value > 0)),
}
