"""How training scales on this machine: speed of two ranks against one, and accuracy on many ranks and workers.

python -m sprint.bench.scaling speed        CNN-A at 92 px: images a second of 2 ranks x 1 one-core worker over 1 rank
python -m sprint.bench.scaling accuracy     CNN-A at 28 px on digits: 1, 2, 4 ranks x 1, 2 workers against one device

With --document FILE the table also goes between the marks `scaling-speed` or `scaling-accuracy` of FILE. Everything is
a `sprint train` of its own; the figures are those of its summary.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..kernels.host import processor_name, usable_cores
from .marks import check_marks, write_between

Summary = dict[str, Any]
SPEED = ["cnn-a", "--data", "digits", "--limit", "512", "--image-size", "92", "--subbatch", "16", "--lr", "0.001"]
ACCURACY = ["cnn-a", "--data", "digits", "--image-size", "28", "--epochs", "4"]
SUBBATCH = 32  # of one device with its defaults (lr 0.01, momentum 0.9), and of all workers together
BOUNDED, FREE = "sprint", "sprint, free"  # the staleness is at most 1; nobody ever waits
RATES = ["--lr", "0.02", "--momentum", "0.5", "--schedule", "warmup:50+cosine"]
ASYNCHRONOUS = {BOUNDED: [*RATES, "--max-staleness", "1"], FREE: [*RATES, "--staleness-lr"]}
GRIDS = [(ranks, workers) for ranks in (1, 2, 4) for workers in (1, 2)]


def train(ranks: int, options: list[str], folder: Path) -> Summary:
    """Run `sprint train` on `ranks` ranks, one-core workers anywhere on this machine, and return its summary.

    Raises RuntimeError with the end of what it said when it fails.
    """
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise RuntimeError("scaling: expected mpirun, got none: pip install 'sprint-cnn[mpi]'")
    command = [mpirun, "--bind-to", "none", "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "sprint",
               "train", *options, "--device", "host", "--device-threads", "1", "--out", str(folder)]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **root}, check=False)
    if done.returncode:
        raise RuntimeError(f"scaling: {' '.join(command)} ended with {done.returncode}: {done.stderr[-400:]}")
    return json.loads((folder / "summary.json").read_text("utf-8"))


def speed(repeats: int, updates: int, folder: Path) -> Iterator[str]:
    """Images a second of the whole job, in turns, so that a busy moment meets all of them."""
    jobs = {"1 rank": (1, ["--algorithm", "sprint"]), "2 ranks": (2, ["--algorithm", "sprint"]),
            "2 ranks, sync": (2, ["--algorithm", "sync"])}
    seen: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats):
        for name, (ranks, options) in jobs.items():
            run = train(ranks, [*SPEED, *options, "--steps", str(updates)], folder / f"{name}-{repeat}")
            seen[name].append(run["images_per_s"])
    base = statistics.median(seen["1 rank"])
    yield (f"CNN-A at 92 px, {SPEED[SPEED.index('--subbatch') + 1]} images a gradient, one-core workers, "
           f"{repeats} runs of {updates} updates in turns, median (range)")
    for name, values in seen.items():
        middle = statistics.median(values)
        yield f"{name:<14} {middle:7.2f} images/s ({min(values):.2f} to {max(values):.2f})  ratio {middle / base:.2f}"


def accuracy(algorithms: list[str], folder: Path) -> Iterator[str]:
    """Top-1 of every grid of ranks and workers against one device, with the documented rates."""
    local = train(1, [*ACCURACY, "--subbatch", str(SUBBATCH)], folder / "local")
    for name, rates in ASYNCHRONOUS.items():
        yield f"{name} has {' '.join(rates)}"
    yield "sync and local have the defaults"
    yield ("algorithm     ranks  workers of each  sub-batch   top-1  against local  updates  staleness (most)  "
           "mini-batch  images/s")
    yield _row("local", 1, 1, SUBBATCH, local, local)
    for name in algorithms:
        for ranks, workers in GRIDS:
            subbatch = SUBBATCH // (ranks * workers)
            options = ["--algorithm", name.partition(",")[0], "--devices", str(workers), "--subbatch", str(subbatch),
                       *ASYNCHRONOUS.get(name, [])]
            run = train(ranks, [*ACCURACY, *options], folder / f"{name}-{ranks}x{workers}")
            yield _row(name, ranks, workers, subbatch, run, local)


def _row(name: str, ranks: int, workers: int, subbatch: int, run: Summary, local: Summary) -> str:
    late = f"{run['staleness']:.2f} ({run['staleness_largest']})" if "staleness" in run else ""
    return (f"{name:<12}  {ranks:5}  {workers:15}  {subbatch:9}  {run['top1']:6.2%}  "
            f"{100 * (run['top1'] - local['top1']):+13.2f}  {run['steps']:7}  {late:>16}  "
            f"{run.get('minibatch', SUBBATCH):10.1f}  {run['images_per_s']:8.0f}")


def where() -> str:
    """Machine, version and day of a table."""
    return (f"{processor_name()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f} before; sprint {__version__}, "
            f"{datetime.now(UTC).date().isoformat()}")


def main() -> None:
    """Print one table, a line at a time, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("speed", "accuracy"))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each job (speed)")
    parser.add_argument("--updates", type=int, default=24, help="updates of each run (speed)")
    names = (*ASYNCHRONOUS, "sync")
    parser.add_argument("--algorithms", nargs="+", default=names, choices=names, help="rows (accuracy)")
    parser.add_argument("--document", type=Path, help="a file with marks")
    args = parser.parse_args()
    mark, lines = f"scaling-{args.table}", [where()]
    if args.document:
        check_marks(args.document, mark)
    with tempfile.TemporaryDirectory(prefix="sprint-scaling-") as name:
        folder = Path(name)
        table = (speed(args.repeats, args.updates, folder) if args.table == "speed"
                 else accuracy(args.algorithms, folder))
        for line in table:
            print(line, flush=True)
            lines.append(line)
    if args.document:
        write_between(args.document, mark, "\n".join(["```", *lines, "```"]))


if __name__ == "__main__":
    main()
