"""Short training runs on small nets, and what tests ask of them."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
from sprint.engine import checkpoint, trainer
from sprint.engine.config import TrainConfig
from sprint.engine.report import Report
from sprint.engine.runs import RunFolder

# 40 training images in sub-batches of 6: 7 steps an epoch, the last one of 4 images
SMALL = TrainConfig("cnn-a", data="synthetic", classes=7, limit=40, image_size=12, width=0.1, subbatch=6, lr=0.02,
                    conv_algo="explicit", device="host", device_threads=1, log_every=3)


class Lines(Report):
    """A report that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def line(self, text):
        self.lines.append(text)

    @property
    def text(self):
        return "\n".join(self.lines)


def run(path, report=None, given=None, **options):
    """Train SMALL with other options into `path`; returns (summary, records)."""
    config = replace(SMALL, out=str(path), **options)
    summary = trainer.train(config, report or Lines(), given)
    return summary, RunFolder(Path(path)).metrics()


def last(path):
    return checkpoint.load(checkpoint.find(path))


def assert_same_state(a, b):
    for kind in ("weights", "optimizer"):
        left, right = getattr(a, kind), getattr(b, kind)
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].tobytes() == right[name].tobytes(), name
    assert (a.step, a.epoch, a.worker) == (b.step, b.epoch, b.worker)


def stop_after(monkeypatch, step):
    """Ctrl-C comes while step number `step` is being made."""
    advance = trainer.Trainer.advance

    def advance_and_interrupt(self, lr):
        advance(self, lr)
        if self.step == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer.Trainer, "advance", advance_and_interrupt)


def draw_folders(root, names):
    """Six images of each class, told apart by their brightness, for training and for testing."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in names:
            (root / part / name).mkdir(parents=True)
            for i in range(6):
                level = {"a": 20, "b": 120, "c": 220}[name] + rng.integers(-9, 9, (12, 12, 3))
                Image.fromarray(level.astype(np.uint8)).save(root / part / name / f"{i}.png")
