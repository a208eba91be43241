"""Score the model on this machine: calibrate it, train at 24 configurations, emulate a cluster, write the tables.

python -m sprint.bench.score_runs FOLDER [DOCUMENT.md]
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.errors import UsageError
from ..engine.nets import build
from ..kernels.source import cache_folder
from .machine import ANY, Machine
from .machine_file import load_machine
from .marks import check_marks, write_between
from .model import predict
from .model_tables import duration
from .others import CALM, others_share
from .outcome import Config

SIZE = {"cnn-a": 28, "lenet": 28}  # pixels, small enough for many updates a second
CLASSES = 10
NODES, DEVICES, SUBBATCHES = (1, 2), (1, 2), (2, 4, 8)
RUN_S, LEAST_STEPS, MOST_STEPS = 8.0, 100, 20_000  # seconds that a run should train, and its updates
LIMITS = {"t_epoch": 0.05, "minibatch": 0.09, "staleness": 0.19}  # errors that the paper reports
NAMES = {"t_epoch": "T_Epoch", "minibatch": "mini-batch", "staleness": "staleness"}
CLUSTER, RANKS, CLUSTER_DEVICES, CLUSTER_SUBBATCH, CLUSTER_UPDATES = "tsubame-kfc", (4, 8, 16), 8, 5, 100
LIMIT_S = 300.0  # of one command
TRIES = 4  # to measure while others take little of the machine


@dataclass(frozen=True)
class Scored:
    """One configuration: where, and what `score` or `emulate` wrote of it."""

    net: str
    nodes: int
    devices: int
    subbatch: int
    predicted: dict[str, Any]
    seen: dict[str, Any]

    def error(self, name: str) -> float:
        """Relative error of T_Epoch, or of the mean of mini-batch or staleness."""
        return _value(self.predicted, name) / _value(self.seen, name) - 1


def run_command(words: Sequence[str], ranks: int = 1, bind: str | None = None, cache: Path | None = None,
                limit_s: float = LIMIT_S) -> None:
    """Run `sprint WORDS` on so many ranks, with a cache folder of its own.

    Raises RuntimeError with its last words when it fails or takes too long.
    """
    launcher = [] if ranks == 1 else [_mpirun(), "--oversubscribe", "-n", str(ranks),
                                      *(["--bind-to", bind] if bind else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb"}
    if cache:
        environment["XDG_CACHE_HOME"] = str(cache.absolute())
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    process = subprocess.Popen([*launcher, sys.executable, "-m", "sprint", *words], env=environment, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # which mpirun hands on to its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        process.kill()
        raise RuntimeError(f"score: expected an end within {limit_s:g} s of sprint {' '.join(words)}") from None
    if process.returncode:
        raise RuntimeError(f"score: expected success of sprint {' '.join(words)}, got exit code "
                           f"{process.returncode}: {said.strip()[-500:]}")


def _mpirun() -> str:
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise RuntimeError("score: expected mpirun, got none (pip install 'sprint-cnn[mpi]')")
    return found


def fresh_cache(folder: Path) -> None:
    """A cache with what is compiled, and without choices of algorithms that were made when the machine was busy."""
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    if cache_folder().is_dir():
        shutil.copytree(cache_folder(), cache / "sprint", ignore=shutil.ignore_patterns("*.json"))


def calmly(make: Callable[[], None]) -> float:
    """Make a measurement, again where other programs disturbed it; returns the share of the machine that they took."""
    for _ in range(TRIES):
        share = others_share(make)
        if share < CALM:
            break
    return share


def calibrated(folder: Path) -> Machine:
    """This machine, measured afresh for the nets of the runs: devices of one core, Allreduce between two ranks."""
    path = folder / "machine.json"
    calmly(lambda: run_command(
        ["calibrate", "-o", str(path), "--nets", ",".join(SIZE), "--image-size", str(max(SIZE.values())),
         "--classes", str(CLASSES), "--subbatch", ",".join(map(str, SUBBATCHES)), "--device", "host",
         "--device-threads", "1"], ranks=max(NODES), bind="none", cache=folder / "cache"))
    return load_machine(path)


def scored_run(folder: Path, machine: Machine, net: str, nodes: int, devices: int, subbatch: int) -> Scored:
    """Train in the paper's free loop for some seconds, then score."""
    spec = build(net, SIZE[net], 1.0, CLASSES)
    expected = predict(spec, machine, Config(nodes, devices, subbatch, ranks_per_host=nodes))
    steps = int(np.clip(RUN_S / expected.t_update, LEAST_STEPS, MOST_STEPS))
    out = folder / f"{net}-{nodes}x{devices}x{subbatch}"

    def train() -> None:
        shutil.rmtree(out, ignore_errors=True)
        run_command(
            ["train", net, "--data", "synthetic", "--classes", str(CLASSES), "--image-size", str(SIZE[net]),
             "--augment", "--algorithm", "sprint", "--min-gradients", "0", "--devices", str(devices), "--device",
             "host", "--device-threads", "1", "--subbatch", str(subbatch), "--steps", str(steps), "--lr", "1e-4",
             "--log-every", "1000000", "--out", str(out)], ranks=nodes, cache=folder / "cache")

    calmly(train)
    run_command(["score", str(out), "--machine", str(folder / "machine.json"), "--json", str(out / "score.json")])
    made = json.loads((out / "score.json").read_text(encoding="utf-8"))
    return Scored(net, nodes, devices, subbatch, made["predict"], made["measure"])


def emulated_run(folder: Path, nodes: int) -> Scored:
    """The cluster that nobody here owns, at its own pace."""
    path = folder / f"emulate-{nodes}.json"
    run_command(["emulate", "cnn-a", "--machine", CLUSTER, "--nodes", str(nodes), "--devices", str(CLUSTER_DEVICES),
                 "--subbatch", str(CLUSTER_SUBBATCH), "--updates", str(CLUSTER_UPDATES), "--json", str(path)],
                ranks=nodes)
    made = json.loads(path.read_text(encoding="utf-8"))
    return Scored("cnn-a", nodes, CLUSTER_DEVICES, CLUSTER_SUBBATCH, made["predict"], made["emulate"])


def table(rows: Sequence[Scored], seen: str) -> str:
    """Markdown: predicted, seen and error of each row, and the mean of the errors' sizes against the limits."""
    head = ["net", "nodes x devices x sub-batch", *(f"{name}, predicted / {seen}" for name in NAMES.values())]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---|" * len(NAMES)]
    for row in rows:
        cells = [f"{_shown(row.predicted, name)} / {_shown(row.seen, name)} ({row.error(name):+.1%})" for name in NAMES]
        lines.append("| " + " | ".join([row.net, f"{row.nodes} x {row.devices} x {row.subbatch}", *cells]) + " |")
    means = mean_errors(rows)
    verdicts = [f"{means[name]:.1%} (limit {limit:.0%}{'' if means[name] <= limit else ', missed'})"
                for name, limit in LIMITS.items()]
    return "\n".join([*lines, "| **mean size of the error** | | " + " | ".join(verdicts) + " |"])


def mean_errors(rows: Sequence[Scored]) -> dict[str, float]:
    """Mean size of the error of each quantity."""
    return {name: float(np.mean([abs(row.error(name)) for row in rows])) for name in NAMES}


def as_unknown(row: Scored, machine: Machine) -> Scored:
    """The same run predicted with what the contention of all nets together says, as for a net that is new."""
    general = replace(machine, contention={ANY: machine.contention.get(ANY, {})})
    config = Config(**row.predicted["config"])
    return replace(row, predicted=predict(build(row.net, SIZE[row.net], 1.0, CLASSES), general, config).plain())


def _value(outcome: dict[str, Any], name: str) -> float:
    value = outcome[name]
    return float(value["mean"] if isinstance(value, dict) else value)


def _shown(outcome: dict[str, Any], name: str) -> str:
    value = _value(outcome, name)
    return duration(value) if name.startswith("t_") else f"{value:.2f}"


def report(machine: Machine, runs: Sequence[Scored], emulated: Sequence[Scored]) -> str:
    """What goes into the document."""
    facts = [f"Measured on {machine.date}: {machine.description}. Training runs of about {RUN_S:g} s each with "
             "`--min-gradients 0` (the paper's free loop), calibrated before them and apart from them.",
             *(f"- {group}: {machine.sources[group]}" for group in ("kernels", "gemm", "contention", "allreduce"))]
    unknown = mean_errors([as_unknown(row, machine) for row in runs])
    general = ("With the contention of both nets together in place of each net's own the mean sizes are "
               f"{', '.join(f'{unknown[name]:.1%}' for name in NAMES)}.")
    cluster = (f"Emulated: CNN-A on the `{CLUSTER}` file, {CLUSTER_UPDATES} updates of the real threads, locks and MPI "
               "code at that machine's pace, all ranks on this host.")
    return "\n".join([*facts, "", table(runs, "measured"), "", general, "", cluster, "", table(emulated, "emulated")])


def main(folder: Path, document: Path | None) -> None:
    """Do it all; the tables go between the marks of `document`, and to the screen."""
    if document:
        check_marks(document, "score")
    folder.mkdir(parents=True, exist_ok=True)
    fresh_cache(folder)
    machine = calibrated(folder)
    runs, cells = [], list(product(SIZE, NODES, DEVICES, SUBBATCHES))
    for number, cell in enumerate(cells, start=1):
        runs.append(scored_run(folder, machine, *cell))
        errors = "  ".join(f"{NAMES[name]} {runs[-1].error(name):+.1%}" for name in NAMES)
        print(f"{number}/{len(cells)}  {cell[0]} {' x '.join(map(str, cell[1:]))}  {errors}", flush=True)
    text = report(machine, runs, [emulated_run(folder, nodes) for nodes in RANKS])
    print(text)
    if document:
        write_between(document, "score", text)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    except IndexError:
        sys.exit("usage: python -m sprint.bench.score_runs FOLDER [DOCUMENT.md]")
    except (UsageError, RuntimeError) as error:
        sys.exit(f"score: {error}")
