"""The kill -9 drill: a job under ULFM, ranks killed at random moments, and proof that nothing applied was lost.

python tests/distributed/programs/drill.py --runs 100 --seed 1      (make drill)
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from job import share_of
from launch import descendants, run_program

GOAL = 4500
RATE, MOMENTUM = 0.0001, 0.9


def kill_later(folder, moments):
    """Return what kills the given ranks, `seconds` after rank 0 made its first updates each."""
    def during(process):
        deadline = time.monotonic() + 12
        while not (folder / "began-rank0").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        began = time.monotonic()
        for rank, seconds in moments:
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                victim = int((folder / f"pid-rank{rank}").read_text())
                if victim in descendants(process.pid):  # it may have ended, and its number be another's
                    os.kill(victim, signal.SIGKILL)
    return during


def plan(rng, deaths=1):
    """Draw the job: ranks, workers, kind, and who is killed when (s after the start of the updates)."""
    ranks, workers = rng.choice([2, 3, 4] if deaths == 1 else [3, 4]), rng.choice([1, 2])
    victims = rng.sample(range(ranks), deaths)
    first = rng.uniform(0.0, 0.7)
    gaps = [0.0, rng.choice([0.0, 0.002, 0.01, 0.1])]
    return ranks, workers, rng.choice(["count", "regression"]), [(v, first + g) for v, g in zip(victims, gaps)]  # noqa: B905


def drill(folder, seed, deaths=1):
    """Run one drill with 1 or 2 deaths; return (outcome, seconds).

    The outcome is "survived", "late" (a victim had reached the end before), or what is wrong.
    """
    ranks, workers, kind, moments = plan(random.Random(seed), deaths)
    more = ["--rate", RATE, "--momentum", MOMENTUM, "--record"] if kind == "regression" else ["--rate", 1.0]
    done = run_program(ranks, "job.py", ["--out", folder, "--kind", kind, "--workers", workers, "--samples",
                                         GOAL * ranks * workers // 4, "--delay", 0.002, "--stall", 8, *more],
                       folder, ft=True, during=kill_later(folder, moments))
    if done.timed_out:
        return f"hung: {done.out[-500:]} {done.err[-1500:]}", done.seconds
    dead = {rank for rank, _ in moments}
    ended = {rank for rank in range(ranks) if (folder / f"rank{rank}.json").exists()}
    living = sorted(set(range(ranks)) - dead)
    missing = [rank for rank in living if rank not in ended]
    if missing:
        return f"ranks {missing} did not reach the end: {done.err[-2000:]}", done.seconds
    wrong = check_count(folder, living, workers) if kind == "count" else check_replay(folder, living, ranks, workers)
    return wrong or ("late" if ended & dead else "survived"), done.seconds


def _ends(folder, living):
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in living]
    return found, [np.load(folder / f"final-rank{rank}.npz")["weights"] for rank in living]


def check_count(folder, living, workers):
    """With rate 1 and no momentum the weights are the counts of the samples applied."""
    found, finals = _ends(folder, living)
    for rank, mine, w in zip(living, found, finals, strict=True):
        if w.tobytes() != finals[0].tobytes() or mine["version"] != found[0]["version"]:
            return f"rank {rank} ended with other weights than rank {living[0]}"
        if w[0] != mine["samples"] or w[1:].sum() != w[0]:
            return f"rank {rank}: {mine['samples']} samples applied, the weights have {w[0]}"
        own = w[1 + rank * workers:1 + (rank + 1) * workers].sum()
        if own != 3 * mine["own"]:
            return f"rank {rank}: {3 * mine['own']} of its samples were applied, the weights have {own}"
    return check_division(found, workers) if found[0]["size"] == len(living) else ""


def check_division(found, workers):
    """After the last death every share of the data belongs to exactly one living worker."""
    last = [d[-1] for mine in found for d in mine["divisions"] if d and d[-1][1] == workers * len(found)]
    shares = sorted(share for share, _, _ in last)
    return "" if len(set(shares)) == len(shares) else f"shares {shares} are not divided once each"


def check_replay(folder, living, ranks, workers):
    """What the logs of all ranks, the dead ones too, say was applied gives the same weights bit for bit."""
    from analytic import problem
    from sprint.distributed.options import Options
    from sprint.distributed.record import Replay

    rows, targets, _ = problem()
    found, finals = _ends(folder, living)
    options = Options(rate=lambda samples, version: RATE, momentum=MOMENTUM, ordered=True)
    replay = Replay(folder, lambda rank, t: share_of(rows, targets, rank * workers + t), np.zeros(37, np.float32),
                    options)
    while replay.version < found[0]["version"]:
        replay.step()
    if any(w.tobytes() != replay.weights.tobytes() for w in finals):
        return "the replay of what was applied gives other weights"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deaths", type=int, choices=[1, 2], default=1, help="2: the second at most 0.1 s later")
    args = parser.parse_args()
    outcomes, seconds = collections.Counter(), []
    for seed in range(args.seed, args.seed + args.runs):
        with tempfile.TemporaryDirectory() as name:
            outcome, took = drill(Path(name), seed, args.deaths)
        seconds.append(took)
        outcomes[outcome if outcome in ("survived", "late") else "failed"] += 1
        if outcome not in ("survived", "late"):
            print(f"seed {seed}: {plan(random.Random(seed), args.deaths)}: {outcome}", flush=True)
    print(f"{args.runs} drills from seed {args.seed}, {args.deaths} killed: {dict(outcomes)}; "
          f"longest {max(seconds):.1f} s")
    raise SystemExit(bool(outcomes["failed"]))


if __name__ == "__main__":
    main()
