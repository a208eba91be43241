"""The helpers of small_runs.py for all tests here, and runs without pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def undrawn(request, monkeypatch):
    """Curves cost more than small runs; a test with "folder" in its name has them."""
    if "folder" not in request.node.name:
        monkeypatch.setattr("sprint.engine.curves.curves", lambda *_arguments: b"")
