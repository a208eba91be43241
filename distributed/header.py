"""What a distributed run says and keeps about who takes part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engine.report import Report
from .opening import Setup
from .ranks import plural

FORMS = {"mean": "the mean over the samples of the mini-batch of all ranks",
         "sum": "the sum over the samples of the mini-batch of all ranks (Oyama et al. 2016, eq. 1)"}

SUMS = {"host": "by MPI in host memory", "cuda-aware": "by MPI in device memory (CUDA-aware)",
        "nccl": "by NCCL in device memory"}


def say(report: Report, setup: Setup, folder: Path) -> None:
    """Say what is about to run, on which ranks and devices, and how the loops go."""
    report.header(setup.sessions[0], FORMS[setup.config.gradient_form], folder)
    where = setup.place
    threads = f", {where.threads} thread{'s' * (where.threads != 1)} each" if where.threads else ""
    report.line(f"{'ranks':<8} {counted(setup)} on {plural(len(set(setup.comm.hosts)), 'host')}; here "
                f"{', '.join(where.names)}{threads} ({setup.cores:g} core{'s' * (setup.cores != 1)} for this rank)")
    if setup.comm.size > 1 or setup.transport.name != "host":
        report.line(f"{'sums':<8} {SUMS[setup.transport.name]}")
    report.line(f"{'loop':<8} {loop(setup)}")


def loop(setup: Setup) -> str:
    """The rules of the loops in words."""
    config, minibatch = setup.config, setup.layout.minibatch
    if config.algorithm == "sync":
        return f"sync: one gradient of every worker an update, mini-batch {minibatch}"
    bound = "unbounded" if config.max_staleness is None else f"at most {config.max_staleness}"
    parts = [f"sprint: asynchronous, {minibatch} samples in one gradient of every worker", f"staleness {bound}"]
    parts += ["rate divided by the staleness"] if config.staleness_lr else []
    parts += [f"{config.warmup_sync} synchronous updates first"] if config.warmup_sync else []
    return ", ".join(parts)


def counted(setup: Setup) -> str:
    """How many ranks and workers."""
    counts = list(setup.layout.workers.values())
    if len(set(counts)) > 1:
        return f"{len(counts)} ranks with {sum(counts)} workers"
    return f"{plural(len(counts), 'rank')} with {plural(counts[0], 'worker')}{' each' * (len(counts) > 1)}"


def facts(setup: Setup) -> dict[str, Any]:
    """The part of config.json about the job; devices, threads and cores are those of rank 0."""
    return {"ranks": setup.comm.size, "hosts": setup.comm.hosts, "layout": setup.layout.to_json(),
            "minibatch": setup.layout.minibatch, "images": setup.images, "gradient_form": setup.config.gradient_form,
            "devices": setup.place.names, "threads": setup.place.threads, "cores": setup.cores,
            "transport": setup.transport.name}
