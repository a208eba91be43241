from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import sprint
from sprint.engine import jsontext
from sprint.engine.runs import RunFolder
from sprint.engine.tracefile import TraceFile

SOURCES = Path(sprint.__file__).parent
OTHERS = {  # write JSON by themselves, of numbers that are finite
    "engine/config.py": "options, checked, for a hash",
    "engine/export.py": "options and texts",
    "distributed/record.py": "whole numbers",
    "kernels/conv_choice.py": "texts",
    "bench/doctor.py": "a text and a whole number, of a child",
    "bench/peers/child.py": "options, checked, for a child",
    "bench/peers/worker.py": "for its parent alone, which must see a loss that is NaN",
}


def strict(text):
    """Parse as readers other than Python's do."""
    def refuse(name):
        pytest.fail(f"{name} is not JSON: {text}")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null_at_any_depth():
    data = {"a": math.nan, "b": [1.5, (math.inf, {"c": -math.inf})], "d": np.float64("nan"), "e": "NaN",
            "f": [True, None]}
    assert strict(jsontext.dumps(data)) == {"a": None, "b": [1.5, [None, {"c": None}]], "d": None, "e": "NaN",
                                            "f": [True, None]}
    assert jsontext.dumps({"a": [1]}, indent=1) == json.dumps({"a": [1]}, indent=1)


def test_all_files_of_a_run_are_json(tmp_path, monkeypatch):
    monkeypatch.setattr("sprint.engine.curves.curves", lambda records, title: str(records).encode())
    folder = RunFolder.create(str(tmp_path), "mlp")
    folder.log({"step": 1, "epoch": 0.0, "loss": math.nan})
    folder.log({"step": 2, "epoch": 0.5, "loss": 2.0})
    folder.write("summary.json", {"steps": 2, "loss": math.inf})
    trace = TraceFile(tmp_path / "trace.json")
    trace.add("update", "update", 0.0, 1.0, loss=math.nan)
    trace.close()
    assert [strict(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [None, 2.0]
    assert strict((tmp_path / "summary.json").read_text())["loss"] is None
    assert strict((tmp_path / "trace.json").read_text())[0]["args"] == {"loss": None}
    folder.draw_curves("")
    assert (tmp_path / "curves.png").read_text() == str([{"step": 2, "epoch": 0.5, "loss": 2.0}])


def test_metrics_of_other_writers_are_read_and_kept_as_json(tmp_path):
    folder = RunFolder.create(str(tmp_path), "mlp")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n')
    assert folder.metrics() == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]
    folder.rewind(1)
    assert strict((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": None}


def test_no_other_module_writes_json_by_itself():
    own = {str(path.relative_to(SOURCES)) for package in ("kernels", "engine", "distributed", "bench")
           for path in (SOURCES / package).rglob("*.py") if "json.dump" in path.read_text("utf-8")}
    assert own - {"engine/jsontext.py"} == set(OTHERS)
    assert "json.dump" not in (SOURCES / "__main__.py").read_text("utf-8")
