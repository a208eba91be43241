"""Measure a machine: every constant of the performance model for some nets, on a device and between ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..distributed.ranks import Comm
from ..engine.layers import NetSpec
from ..kernels.device import Device
from ..kernels.host import processor_name, usable_cores
from . import environment
from .crowding import check_unbound, measure_crowd
from .fit import fit_kernel, fit_linear, spread
from .gauge import Gauge, product_bytes
from .gemm_time import GemmEstimate, GemmTable
from .grids import errors, measure_table
from .loop_gauge import measure_images, measure_steps
from .machine import Allreduce, DeviceFacts, Linear, Machine
from .needs import Product, Size, kernel_cases, products
from .op import Case
from .ranks_gauge import measure_allreduce

Report = Callable[[str, float], None]
STARTS = {"kernels": 0.0, "products": 0.15, "loops": 0.6, "images": 0.68, "Allreduce": 0.7, "gradients": 0.75}
MOST_SIZES = 9  # of a kernel that are measured
MEMORY_PART = 8  # the arrays of one call take no more than this part of the device's memory
LEAST_PARAMETERS = 4096
T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """seconds: for each call; limit_s: of the longest call; trials_s: of the gradients measured whole;
    most_parameters: of the buffers that the steps of the loops are measured on."""

    seconds: float
    limit_s: float
    trials_s: float
    most_parameters: int


QUICK = Effort(0.01, 0.03, 10.0, 4_000_000)
FULL = Effort(0.05, 0.5, 100.0, 32_000_000)


@dataclass(frozen=True)
class Wanted:
    """What the machine file shall be good for: nets, sub-batches, and how convolutions run."""

    specs: Sequence[NetSpec]
    subbatches: Sequence[int]
    conv: str
    effort: Effort

    @property
    def between(self) -> list[int]:
        """Sub-batches that are only for checking."""
        pairs = zip(self.subbatches[:-1], self.subbatches[1:], strict=True)
        return [(low + high) // 2 for low, high in pairs if high - low > 1]


@dataclass
class Calibration:
    """What came out. checks: (time by the model) / (measured time) - 1 of calls that nothing was fitted to, by group:
    "kernels", "gemm"; "gradient": of whole gradients, the factor for crowding taken into account."""

    machine: Machine
    checks: dict[str, list[float]] = field(default_factory=dict)


def calibrate(device: Device, wanted: Wanted, comm: Comm, name: str, description: str,
              report: Report) -> Calibration | None:
    """Measure all constants on rank 0, and the Allreduce on all ranks; a collective. None on the other ranks.

    report(what, done) is called as each part begins, `done` from 0 to 1. An empty description becomes the processor's.
    """
    if device.kind == "host":
        check_unbound(comm)
    made = _Maker(device, wanted, name, description, report).measure() if comm.rank == 0 else None
    comm.meet(np.zeros(1))
    report("Allreduce", STARTS["Allreduce"])
    allreduce = measure_allreduce(comm, _parameters(wanted), wanted.effort.seconds * 20)
    machine = replace(made.machine, allreduce=allreduce) if made else None
    report("whole gradients and loops", STARTS["gradients"])
    crowd = measure_crowd(comm, device, wanted.specs, wanted.subbatches, machine, wanted.conv, wanted.effort.trials_s)
    if made is None or machine is None:
        return None
    checks = {**made.checks, "gradient": crowd.off}
    machine = replace(machine, contention=crowd.contention, jitter=crowd.jitter)
    return Calibration(replace(machine, sources=_sources(machine, comm, checks)), checks)


def _sources(machine: Machine, comm: Comm, checks: dict[str, list[float]]) -> dict[str, str]:
    """Where the values come from, and what the checks said of them."""
    meeting = f"measured among {comm.size} ranks on {len(set(comm.hosts))} hosts" if comm.size > 1 \
        else "one rank only: alpha is a guess (run it under mpirun)"
    sources = {**machine.sources, "allreduce": meeting,
               "contention": "whole gradients, and the running loops, against the sum of their parts",
               "jitter": "from one whole gradient to the next, one device alone", "conv": "as asked for",
               "threads": "as asked for"}
    for group, field_name in (("kernels", "kernels"), ("gemm", "gemm"), ("gradient", "contention")):
        if off := checks.get(group):
            sources[field_name] += f"; off by {np.median(np.abs(off)):.1%} in the median of {len(off)} checks"
    return sources


class _Maker:
    """One rank's part of it."""

    def __init__(self, device: Device, wanted: Wanted, name: str, description: str,
                 report: Report) -> None:
        self.device, self.wanted, self.report = device, wanted, report
        self.name = name
        self.description = description or f"{usable_cores()}-core {processor_name()}"
        self.gauge = Gauge(device, wanted.effort.seconds)
        self.checks: dict[str, list[float]] = {}

    def measure(self) -> Calibration:
        kernels = self._kernels()
        gemm = self._gemm()
        self.report("steps of the loops", STARTS["loops"])
        steps = measure_steps(self.device, _parameters(self.wanted), 20 * self.wanted.effort.seconds)
        steps |= self._images()
        machine = Machine(
            self.name, self.description, time.strftime("%Y-%m-%d"), self.device.threads, self._facts(),
            self.wanted.conv, kernels, gemm, steps, Allreduce(0.0, 0.0), sources=self._sources())
        return Calibration(machine, self.checks)

    def _facts(self) -> DeviceFacts:
        memory = self.device.memory().total
        if self.device.kind == "cuda":
            return DeviceFacts("cuda", self.device.describe(), 1, memory)
        count = max(1, usable_cores() // self.device.threads)
        return DeviceFacts("host", self.device.describe(), count, memory // count)

    def _kernels(self) -> dict[str, Linear]:
        self.report("kernels", STARTS["kernels"])
        cases: dict[str, dict[Size, Case]] = {}
        for spec in self.wanted.specs:
            for kernel, found in kernel_cases(spec, self.device, self.wanted.subbatches, self.wanted.conv,
                                              None).items():
                cases.setdefault(kernel, {}).update(found)
        return {kernel: self._kernel(found)
                for kernel, found in self._each("kernels", "products", sorted(cases.items()))}

    def _each(self, part: str, following: str, items: list[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        """The named items, each reported as its turn comes."""
        for index, (name, item) in enumerate(items):
            begin, end = STARTS[part], STARTS[following]
            self.report(f"{part}: {name}", begin + (end - begin) * index / len(items))
            yield name, item

    def _kernel(self, cases: dict[Size, Case]) -> Linear:
        """Fitted to every other of some sizes spread over all, checked at the others; the ends are fitted to."""
        fitting = [size for size, case in cases.items() if self._fits(case.nbytes)]
        some = spread([elements for elements, _ in fitting], MOST_SIZES)
        sizes = sorted(size for size in fitting if size[0] in some)
        times = {size: self.gauge.case(cases[size]) for size in sizes}
        held = sizes[1:-1:2] if len(sizes) > 4 else []
        fitted = [size for size in sizes if size not in held]
        line = fit_kernel(fitted, [times[size] for size in fitted])
        self._check("kernels", [line.time(*size) / times[size] - 1 for size in held])
        return fit_kernel(sizes, list(times.values()))

    def _fits(self, nbytes: float) -> bool:
        return nbytes * MEMORY_PART <= self.device.memory().available

    def _gemm(self) -> dict[str, GemmTable | GemmEstimate]:
        limit = self.wanted.effort.limit_s
        calls, held = (_by_path(self._products(batches)) for batches in (self.wanted.subbatches, self.wanted.between))
        tables: dict[str, GemmTable | GemmEstimate] = {}
        for path, wanted in self._each("products", "loops", sorted(calls.items())):
            table = measure_table([p for p in wanted if self._fits(product_bytes(p))] or wanted[:1],
                                  self.gauge.product, limit)
            tables[path] = table
            times = {p.sizes: self.gauge.product(p) for p in held.get(path, [])
                     if not table.time(*map(np.asarray, p.sizes))[1]}
            self._check("gemm", errors(table, times).values())
        return tables

    def _products(self, subbatches: Sequence[int]) -> Iterator[Product]:
        for spec in self.wanted.specs:
            yield from products(spec, self.device, subbatches, self.wanted.conv, None)

    def _check(self, group: str, off: Iterable[float]) -> None:
        self.checks.setdefault(group, []).extend(off)

    def _images(self) -> dict[str, Linear]:
        self.report("images", STARTS["images"])
        seen: dict[float, tuple[float, float]] = {}
        for spec in self.wanted.specs:
            seen |= measure_images(self.device, spec, spread(self.wanted.subbatches, 4))
        values = sorted(seen)
        return {name: fit_linear(values, [seen[value][place] for value in values])
                for place, name in enumerate(("load_image", "deform_image"))}

    def _sources(self) -> dict[str, str]:
        facts = environment.machine(self.device)
        nets = ", ".join(f"{spec.name} of {spec.in_shape[1]} pixels" for spec in self.wanted.specs)
        batches = ", ".join(map(str, self.wanted.subbatches))
        measured = f"measured by sprint calibrate {facts['sprint']} for {nets}, sub-batches {batches}"
        return {"device": f"{facts['processor']}, {facts['cores']} cores, {facts['system']}, {facts['blas']}",
                "kernels": measured, "gemm": measured,
                "steps": f"{measured}; images are read ahead by a thread and deformed"}


def _by_path(found: Iterator[Product]) -> dict[str, list[Product]]:
    paths: dict[str, dict[tuple[float, float, float], Product]] = {}
    for product in found:
        paths.setdefault(product.path, {}).setdefault(product.sizes, product)
    return {path: list(calls.values()) for path, calls in paths.items()}


def _parameters(wanted: Wanted) -> list[int]:
    """Counts around those of the nets: the same on every rank."""
    counts = {min(spec.parameter_count, wanted.effort.most_parameters) for spec in wanted.specs}
    smaller = {max(LEAST_PARAMETERS, count // part) for count in counts for part in (2, 4)}
    return spread(sorted(counts | smaller), 6)
