"""Score a finished run against what the model says of it: the same terms, measured by the loops themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from ..engine.nets import build
from ..engine.runs import CONFIG, RunFolder
from .emulate import measured
from .machine import Machine
from .model import predict
from .outcome import GPU_TERMS, UPDATE_TERMS, Config, Distribution, Outcome

HISTOGRAMS = ("staleness_histogram", "minibatch_histogram", "worker_ms", "update_ms")


@dataclass(frozen=True)
class Run:
    """A finished run: how it was configured, on how many ranks and hosts, and the last record of its telemetry."""

    train: TrainConfig
    config: Config
    record: dict[str, Any]
    images_per_s: float

    @property
    def spec(self) -> NetSpec:
        """Its net."""
        return build(self.train.net, self.train.image_size, self.train.width, self.train.classes)


def read_run(path: Path) -> Run:
    """Read the folder of a run. Raises: UsageError that says what it lacks to be scored."""
    if not (path / CONFIG).is_file():
        raise UsageError(f"run: expected a run folder with a {CONFIG}, got {path}")
    facts = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    train = TrainConfig.from_json(facts["config"])
    if train.algorithm != "sprint":
        raise UsageError(f"run: expected one with --algorithm sprint, got {train.algorithm} in {path}")
    records = [record for record in RunFolder(path).metrics() if all(name in record for name in HISTOGRAMS)]
    if not records or not records[-1]["staleness_histogram"]["counts"]:
        raise UsageError(f"run: expected a finished run, got {path}, in which no segment has come to its end")
    return Run(train, _config(train, facts["job"], path), records[-1], _images_per_s(path, records[-1]))


def _config(train: TrainConfig, job: dict[str, Any], path: Path) -> Config:
    kinds = {(row["workers"], row["subbatch"]) for row in job["layout"]}
    if len(kinds) > 1:
        raise UsageError(f"run: expected as many workers and images on every rank, got {sorted(kinds)} in {path}")
    devices, subbatch = kinds.pop()
    ranks_per_host = max(job["hosts"].count(host) for host in job["hosts"])
    return Config(job["ranks"], devices, subbatch, job["images"], ranks_per_host, train.min_gradients)


def _images_per_s(path: Path, record: dict[str, Any]) -> float:
    """Of the whole run where it came to its end, else of the last record."""
    summary = path / "summary.json"
    return json.loads(summary.read_text(encoding="utf-8"))["images_per_s"] if summary.is_file() \
        else record["images_per_s"]


def score(run: Run, machine: Machine) -> tuple[Outcome, Outcome]:
    """(predicted, measured). Raises: UsageError naming a constant that the machine lacks."""
    predicted = predict(run.spec, machine, run.config)
    record = run.record
    minibatch, staleness = (_distribution(record[f"{name}_histogram"]) for name in ("minibatch", "staleness"))
    worker, update = ({name: ms / 1e3 for name, ms in record[f"{loop}_ms"].items()} for loop in ("worker", "update"))
    seen = measured("measure", run.spec, machine, run.config, worker, update, minibatch.mean / run.images_per_s,
                    minibatch, staleness, ())
    return replace(predicted, warnings=(*predicted.warnings, *_unlike(run, machine))), seen


def _distribution(histogram: dict[str, Any]) -> Distribution:
    """A histogram of the telemetry, each bin at its middle."""
    counts, width = np.array(histogram["counts"], np.float64), histogram["width"]
    values = np.arange(len(counts)) * width + (width - 1) // 2
    return Distribution(values, counts / counts.sum()).likely()


def _unlike(run: Run, machine: Machine) -> tuple[str, ...]:
    """In what the run differs from what the model is about."""
    train, kind = run.train, machine.device.kind
    differs = [
        (train.conv_algo != machine.conv, f"convolutions ran as {train.conv_algo}, the machine has {machine.conv}"),
        (not train.device.startswith(kind), f"the run was on {train.device}, the machine has {kind} devices"),
        (kind == "host" and train.device_threads != machine.threads,
         f"devices had {train.device_threads} threads, those of the machine have {machine.threads}"),
        (train.max_staleness is not None or train.warmup_sync > 0, "the run bounded its staleness, the model does not"),
    ]
    return tuple(text for holds, text in differs if holds)


def errors(predicted: Outcome, seen: Outcome) -> dict[str, float]:
    """(predicted) / (measured) - 1 of all terms and results by name; of distributions, the part that does not overlap.

    NaN where nothing was measured.
    """
    found = {f"{loop}.{name}": _error(getattr(predicted, f"{loop}_terms")[name], getattr(seen, f"{loop}_terms")[name])
             for loop, names in (("gpu", GPU_TERMS), ("update", UPDATE_TERMS)) for name in names}
    for name in ("t_gpu", "t_update", "t_epoch"):
        found[name] = _error(getattr(predicted, name), getattr(seen, name))
    for name in ("minibatch", "staleness"):
        guess, truth = getattr(predicted, name), getattr(seen, name)
        found[name] = _error(guess.mean, truth.mean)
        found[f"{name}_distribution"] = 1 - guess.overlap(truth)
    return found


def _error(guess: float, truth: float) -> float:
    return guess / truth - 1 if truth else float("nan")


def plain(predicted: Outcome, seen: Outcome) -> dict[str, Any]:
    """For JSON; an error that cannot be told is NaN."""
    return {"predict": predicted.plain(), "measure": seen.plain(), "errors": errors(predicted, seen)}
