"""What documents quote is what commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sprint.bench.quote import main, quoted
from sprint.engine.errors import UsageError

MODEL = Path(__file__).parents[2] / "docs" / "model.md"


def test_a_block_is_replaced_by_its_commands_output_and_the_rest_stays():
    text = "before\n\n<!-- $ sprint --version -->\n```text\nold\nold\n```\n\nafter ```text``` <!-- $ sprint nets -->\n"
    new = quoted(text)
    assert re.fullmatch(r"before\n\n<!-- \$ sprint --version -->\n```text\n\$ sprint --version\nsprint [\d.]+\n```\n\n"
                        r"after ```text``` <!-- \$ sprint nets -->\n", new)
    assert quoted(new) == new


def test_a_failing_command_and_a_document_without_marks_are_refused():
    with pytest.raises(RuntimeError, match=r"^quote: expected success of sprint predict vgg.*, got .*expected one of"):
        quoted("<!-- $ sprint predict vgg --machine tsubame2.5 --nodes 1 --subbatch 1 -->\n```text\n```")
    with pytest.raises(UsageError, match="quote: expected a mark"):
        quoted("plain\n")


def test_the_document_of_the_model_quotes_what_is_printed_now(tmp_path, monkeypatch):
    """Figures may move with the engine and are then renewed by the tool; the words around them may not."""
    copy = tmp_path / "model.md"
    copy.write_text(MODEL.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["quote", str(copy)])
    main()
    words = [re.sub(r"[-+]?[\d.]+|\s+|\*", "", path.read_text(encoding="utf-8")) for path in (MODEL, copy)]
    assert words[0] == words[1]
