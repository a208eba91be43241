"""JSON that every reader takes: RFC 8259 has no NaN and no infinity, which Python would write all the same."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(data: Any, indent: int | None = None) -> str:
    """The JSON text of `data`, null for every number that is not finite; on one line unless there is an indent."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def loads(text: str | bytes) -> Any:
    """What a JSON text holds; NaN and infinities of foreign writers are None. Raises ValueError."""
    return json.loads(text, parse_constant=lambda name: None)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
