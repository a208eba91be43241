"""`sprint replay RUN`: the recorded order of an asynchronous run, made again on one device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import checkpoint
from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..engine.params import views_of
from ..engine.runs import CONFIG
from ..engine.session import Session, open_session
from ..engine.worker import Worker
from .checkpoints import places, progress_of
from .layout import Layout
from .opening import rules
from .ranks import plural
from .record import Replay
from .shares import open_worker, resume_worker

RECORD = "record"


@dataclass(frozen=True)
class Compared:
    """A checkpoint of the run against the replay: floats, how many differ, and the largest difference."""

    path: Path
    version: int
    floats: int
    different: int
    largest: float


class Rerun:
    """A recorded run with the one device that repeats it. Raises UsageError for a run without a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, job = _facts(folder)
        path = checkpoint.find(folder / RECORD)
        self.start = checkpoint.load(path)
        self.layout = Layout.from_json(job["layout"])
        self._sessions: dict[int, Session] = {}
        self._places = places(path, self.start, self.layout)
        options = rules(self.config, job["minibatch"], job["images"])
        weights = self._session(self.layout.subbatch[0]).network.weights
        self.replay = Replay(folder / RECORD, self._worker, weights.device.download(weights.flat), options,
                             momentum=self.start.optimizer["momentum"], samples=progress_of(self.start).samples)

    @property
    def device(self) -> str:
        """The device in words."""
        return self._session(self.layout.subbatch[0]).device.describe()

    def _session(self, subbatch: int) -> Session:
        """Workers with the same sub-batch use one network in turns."""
        if subbatch not in self._sessions:
            first = next(iter(self._sessions.values()), None)
            config = replace(self.config, subbatch=subbatch)
            self._sessions[subbatch] = (replace(first, config=config) if first else open_session(config, self.start))
        return self._sessions[subbatch]

    def _worker(self, rank: int, index: int) -> Worker:
        """Worker `index` of `rank` as it was at the start."""
        layout, session = self.layout, self._session(self.layout.subbatch[rank])
        worker = open_worker(
            session, self.config.algorithm,
            lambda share, shares: layout.part(share, layout.living(self.replay.groups, shares)),
            layout.first_share(rank) + index, len(layout.batches(layout.ids)), progress_of(self.start).samples)
        if self._places:
            resume_worker(worker, self._places[rank][index])
        return worker

    def run(self) -> Iterator[Compared]:
        """Make all recorded updates; compare with every checkpoint that the run has left."""
        shapes = self._session(self.layout.subbatch[0]).network.weights.shapes
        try:
            while self.replay.version < self.replay.last:
                self.replay.step()
                path = self.folder / "checkpoints" / checkpoint.file_name(self.replay.version)
                if path.exists():
                    yield _compare(path, self.replay.version, views_of(self.replay.weights, shapes))
        finally:
            self.replay.close()


def _facts(folder: Path) -> tuple[TrainConfig, dict[str, Any]]:
    if not (folder / CONFIG).is_file():
        raise UsageError(f"replay: expected a run folder, got {folder}")
    facts = json.loads((folder / CONFIG).read_text("utf-8"))
    config = TrainConfig.from_json(facts["config"])
    if not config.deterministic:
        raise UsageError(f"replay: expected a run with --deterministic, which keeps its order, got {folder}")
    return replace(config, resume=None), facts["job"]


def _compare(path: Path, version: int, mine: dict[str, np.ndarray]) -> Compared:
    """Bits, not values: a NaN equals itself here, and -0 is not 0."""
    saved = checkpoint.load(path).weights
    different, largest, floats = 0, 0.0, 0
    for name, theirs in saved.items():
        unequal = mine[name].view(np.uint32) != theirs.view(np.uint32)
        different, floats = different + int(unequal.sum()), floats + theirs.size
        if unequal.any():
            largest = max(largest, float(np.abs(mine[name][unequal] - theirs[unequal]).max()))
    return Compared(path, version, floats, different, largest)


def replay(folder: Path) -> Iterator[str]:
    """Repeat the run in `folder`; gives a line for each checkpoint compared, and a last one.

    Raises UsageError; RuntimeError when weights differ; ValueError where the record has a gap or another digest.
    """
    rerun = Rerun(folder)
    first, wrong, compared = rerun.replay.version, 0, 0
    yield (f"replay   updates {first + 1} to {rerun.replay.last}, ranks {len(rerun.layout.ids)}, "
           f"workers {len(rerun.layout.batches(rerun.layout.ids))}, on {rerun.device}")
    for found in rerun.run():
        compared, wrong = compared + 1, wrong + (found.different > 0)
        verdict = "equal bit for bit" if not found.different else (
            f"{found.different} of {found.floats} weights differ, by {found.largest:.3g} at most")
        yield f"version {found.version}: {verdict}: {found.path}"
    if wrong or not compared:
        raise RuntimeError(f"replay: expected weights equal to those of the run's checkpoints, got {wrong} of "
                           f"{compared} that differ")
    yield (f"done     {plural(rerun.replay.last - first, 'update')} repeated, "
           f"{plural(compared, 'checkpoint')} equal")
