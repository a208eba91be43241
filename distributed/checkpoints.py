"""Checkpoints of a distributed run: one file for the job, and one of each rank for its place in the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import checkpoint, jsontext
from ..engine.checkpoint import Checkpoint
from ..engine.config import TrainConfig
from ..engine.params import views_of
from ..engine.runs import writing
from ..engine.session import Session
from ..kernels.conv_choice import CHOICES
from ..kernels.source import replace_file
from .layout import Layout
from .progress import Progress
from .ranks import Comm

State = dict[str, Any]


class Checkpoints:
    """Saves into one folder; given to Sprint, which calls it on every rank, with its own states each.

    Rank 0 writes the file of the job. When a run dies, nobody knows whether rank 0 lives: then two ranks of every host
    write it, with equal contents, unless it is there.
    """

    def __init__(self, comm: Comm, folder: Path, session: Session, config: TrainConfig, layout: Layout,
                 save_every: int = 0) -> None:
        import safetensors.numpy  # noqa: F401  (now: a forked child that saves must not import)

        self._comm, self._folder, self._session, self._layout = comm, folder, session, layout
        self._config, self._every = config, save_every
        self._choices = CHOICES.table()  # a forked child must not wait for its lock
        self._saved = -1  # version of the last call
        self.asked = False  # the run itself is calling, between two segments

    def __call__(self, weights: np.ndarray, momentum: np.ndarray, version: int, state: State) -> None:
        """weights, momentum (n_params,) float32 of `version`; state: progress and worker states of this rank."""
        if self.asked:
            self._choices = CHOICES.table()
        planned = self.asked or (self._every > 0 and version % self._every == 0 and version != self._saved)
        self._saved = version
        self._save_places(version, state)
        if self._comm.rank == 0:
            self.save(self._checkpoint(weights, momentum, version, state["progress"]))
        elif not planned and self._comm.local_rank < 2 and not (self._folder / checkpoint.file_name(version)).exists():
            checkpoint.add(self._folder, self._checkpoint(weights, momentum, version, state["progress"]))

    def save(self, saved: Checkpoint) -> None:
        """Write the job's file, and drop the places that belong to files dropped."""
        checkpoint.add(self._folder, saved)
        kept = {path.stem for path in checkpoint.newest_first(self._folder)}
        for path in self._folder.glob("step-*.rank*.json"):
            if path.name.partition(".")[0] not in kept:
                path.unlink(missing_ok=True)

    def _checkpoint(self, weights: np.ndarray, momentum: np.ndarray, version: int, progress: State) -> Checkpoint:
        session, dataset = self._session, self._session.dataset
        return Checkpoint(
            config=self._config, step=version, epoch=progress["samples"] / len(dataset.train),
            weights=views_of(weights, session.network.weights.shapes), optimizer={"momentum": momentum},
            worker={"progress": progress, "ids": self._comm.ids, "layout": self._layout.to_json()},
            choices=self._choices, class_names=dataset.class_names, image_shape=dataset.shape,
            mean=dataset.mean.tolist(), std=dataset.std.tolist())

    def _save_places(self, version: int, state: State) -> None:
        path = places_file(self._folder / checkpoint.file_name(version), state["rank"])
        facts = {"samples": state["progress"]["samples"], "workers": state["workers"]}
        with writing(path):
            replace_file(path, jsontext.dumps(facts).encode())


def places_file(path: Path, rank_id: int) -> Path:
    """The file beside the checkpoint `path` that has the worker states of a rank."""
    return path.with_name(f"{path.stem}.rank{rank_id}.json")


def places(path: Path, saved: Checkpoint, layout: Layout) -> dict[int, list[State]]:
    """Worker states for every rank of `layout`, where the checkpoint has them for just such workers; or none.

    `sync` needs only that of the first share, which no mini-batch leaves empty: all workers are at one place.
    """
    before, ids = Layout.from_json(saved.worker["layout"]), saved.worker["ids"]
    samples = saved.worker["progress"]["samples"]
    found = {rank: states for rank in ids if (states := _states(places_file(path, rank), samples))}
    if saved.config.algorithm == "sync":
        first = found.get(ids[0])
        return {rank: first[:1] * layout.workers[rank] for rank in layout.ids} if first else {}
    same = [before.workers[i] for i in ids] == [layout.workers[i] for i in layout.ids]
    return dict(zip(layout.ids, (found[i] for i in ids), strict=True)) if same and len(found) == len(ids) else {}


def _states(path: Path, samples: int) -> list[State] | None:
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return facts["workers"] if facts["samples"] == samples else None


def forget_after(folder: Path, step: int) -> None:
    """Remove the places after `step`, which a run that goes on from there will write anew."""
    for path in folder.glob("step-*.rank*.json"):
        if path.name > checkpoint.file_name(step):
            path.unlink(missing_ok=True)


def progress_of(saved: Checkpoint | None) -> Progress:
    """How far the job was; losses that were none are null in the file."""
    facts = saved.worker["progress"] if saved else {}
    return Progress(**{name: value for name, value in facts.items() if value is not None})
