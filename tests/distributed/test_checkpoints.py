from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from sprint.distributed.checkpoints import progress_of
from sprint.distributed.progress import Progress
from sprint.engine import checkpoint
from sprint.engine.checkpoint import Checkpoint
from sprint.engine.config import TrainConfig


def refuse(name):
    pytest.fail(f"{name} is not JSON")


def test_a_job_without_a_loss_yet_is_saved_as_json_and_read_back(tmp_path):
    at = Progress(version=3, samples=0)
    assert math.isnan(at.loss)
    array = np.zeros(2, np.float32)
    path = checkpoint.add(tmp_path, Checkpoint(
        TrainConfig("mlp"), 3, 0.0, {"w": array}, {"momentum": array}, {"progress": asdict(at)}, {}, ["a"], (1, 2, 2),
        [0.0], [1.0]))
    header = path.read_bytes()[8:]
    facts = json.JSONDecoder().raw_decode(header.decode("latin-1"))[0]["__metadata__"]["sprint"]
    assert json.loads(facts, parse_constant=refuse)["worker"]["progress"]["loss"] is None
    back = progress_of(checkpoint.load(path))
    assert (back.version, back.samples) == (3, 0) and math.isnan(back.loss) and math.isnan(back.start_loss)
