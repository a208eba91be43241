"""One job for the tests under mpirun: analytic workers, the real loops; what came out goes to rankR.json."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from analytic import Counting, Late, Regression, problem
from sprint.distributed.comm import open_comm
from sprint.distributed.data_parallel import data_parallel, first_share
from sprint.distributed.launch import guard
from sprint.distributed.options import Options
from sprint.distributed.ranks import RankFailed, label
from sprint.distributed.sprint import Sprint
from sprint.distributed.watch import parse_fault

N_PARAMS = 37


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", default="count")
    parser.add_argument("--algorithm", default="sprint")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sizes", default="")  # samples per rank of every batch, for sync
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--params", type=int, default=N_PARAMS)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--form", default="sum")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--stall", type=float, default=20.0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--inject", action="append", default=[])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--hash-of-rank", default="")  # "1:abc...": another configuration on rank 1
    parser.add_argument("--no-data-on", type=int, default=-1)
    parser.add_argument("--raise-before-mpi", type=int, default=-1)
    parser.add_argument("--die-between", type=int, default=-1)
    parser.add_argument("--late-on", type=int, default=-1)  # its last worker fails after the last vote
    parser.add_argument("--raise-in-save", type=int, default=-1)
    return parser.parse_args()


def make_workers(args, comm):
    first, _ = first_share(comm, args.workers)
    if args.kind == "count":
        limit = 0 if comm.rank == args.no_data_on else None
        delay = args.delay * (1 + comm.rank / 2)
        late = args.workers - 1 if comm.rank == args.late_on else -1
        return [(Late if t == late else Counting)(args.params, first + t, 3, delay, limit) for t in range(args.workers)]
    rows, targets, _ = problem()
    if args.sizes:
        sizes = [int(s) for s in args.sizes.split(",")]
        start, total = sum(sizes[:comm.rank]), sum(sizes)
        batches = [np.arange(b + start, b + start + sizes[comm.rank]) for b in range(0, len(rows) - total, total)]
        return [Regression(rows, targets, batches)]
    return [share_of(rows, targets, first + t, args.delay) for t in range(args.workers)]


def share_of(rows, targets, share, delay=0.0):
    batches = np.random.default_rng(share).integers(0, len(rows), (64, 4))
    return Regression(rows, targets, list(batches), delay * (1 + share / 3))


def save_to(folder, comm, args):
    def save(weights, momentum, version, state):
        if comm.rank == args.raise_in_save:
            raise OSError("no space left")
        path = folder / f"checkpoint-rank{comm.ids[comm.rank]}.npz"
        with path.with_suffix(".tmp").open("wb") as file:
            np.savez(file, weights=weights, momentum=momentum, version=version, state=json.dumps(state))
        os.replace(path.with_suffix(".tmp"), path)
    return save


def run(args, comm):
    workers = make_workers(args, comm)
    options = Options(rate=lambda *_: args.rate, momentum=args.momentum, form=args.form, ordered=args.record,
                      stall_s=args.stall, save_every=args.save_every, check_every=10)
    config = dict(item.split(":") for item in args.hash_of_rank.split(",") if item)
    config_hash = config.get(str(comm.rank), "aaaaaaaaaaaa")
    make = data_parallel if args.algorithm == "sync" else Sprint
    params = args.params + (comm.rank if "params" in config else 0)
    weights = np.zeros(workers[0].n_params if workers and "params" not in config else params, np.float32)
    job = make(comm, workers, weights, options, config_hash=config_hash, save=save_to(args.out, comm, args),
               record=args.out if args.record else None, faults=[parse_fault(f) for f in args.inject])
    if comm.rank == args.late_on:
        workers[-1].is_over = lambda: job.progress.samples >= args.samples
    job.start(args.samples)
    (args.out / f"pid-rank{comm.ids[comm.rank]}").write_text(str(os.getpid()))
    ready = args.out / f"began-rank{comm.ids[comm.rank]}"

    def tick(progress):
        if progress.version > 2 and not ready.exists():
            ready.touch()

    progress = job.join(tick)
    if args.die_between >= 0:
        progress = next_segment(args, comm, job)
    final, momentum, published = job.weights.snapshot()
    np.savez(args.out / f"final-rank{comm.ids[comm.rank]}.npz", weights=final, momentum=momentum)
    telemetry = job.telemetry
    (args.out / f"rank{comm.ids[comm.rank]}.json").write_text(json.dumps({
        "version": published.version, "samples": progress.samples, "loss": progress.loss, "size": comm.size,
        "gradients": progress.gradients, "staleness": progress.staleness, "telemetry": telemetry.as_dict(),
        "own": telemetry.staleness.total, "arrows": len(telemetry.arrows),
        "divisions": [getattr(w, "divisions", []) for w in workers], "ids": comm.ids}))
    job.close()
    print(f"{label(comm)} ended at version {published.version}", flush=True)


def next_segment(args, comm, job):
    """Lose a rank while the main threads are the callers of MPI, then go on."""
    if comm.rank == args.die_between:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        try:
            everybody = comm.gather_all([float(job.progress.samples)])
            break
        except RankFailed:
            job.survive()
    assert (everybody == everybody[0]).all()
    job.start(2 * args.samples)
    return job.join()


def main():
    args = arguments()
    with guard():
        if os.environ.get("OMPI_COMM_WORLD_RANK") == str(args.raise_before_mpi):
            raise OSError("raised before MPI")
        comm = open_comm(limit_s=8.0)
    with guard(comm):
        run(args, comm)
    comm.close()


if __name__ == "__main__":
    began = time.time()
    try:
        main()
    except Exception as error:  # as the command line does: one line, then the exit code
        if os.environ.get("OMPI_COMM_WORLD_RANK") == "0":
            time.sleep(float(os.environ.get("SLOW_END_S", 0)))
        print(f"sprint: {error}", file=sys.stderr, flush=True)
        raise SystemExit(getattr(error, "exit_code", 1)) from None
