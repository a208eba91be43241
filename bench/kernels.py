"""Run cases: check each, and time it only when it is right, beside the library and against this machine's ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from ..kernels.device import Array, Device
from .ceilings import BUSY, MARGIN, Ceilings, MeasuringError, measure_ceilings, wall_seconds
from .checking import Checked, WrongResult, check
from .dry import DryDevice
from .library import open_library
from .op import Case
from .timing import Flush, Spread, Times, measure

SETS, FEW_SETS, LARGE_BYTES = 3, 2, 256 << 20  # sets of arrays in rotation; fewer of large ones
HOST_COPIES = 8  # of a case's arrays that its check and timing hold at a time, float64 counted twice
DRY_CALLS = 20
Status = Literal["ok", "checked", "wrong", "refused", "skipped"]


@dataclass(frozen=True)
class Settings:
    """seconds: time for each case's rounds; repeats: exactly so many rounds instead; blocks: block sizes to sweep."""

    seconds: float = 0.3
    repeats: int | None = None
    blocks: tuple[int | None, ...] = (None,)
    check_only: bool = False


@dataclass(frozen=True)
class Result:
    """What came of one case. status 'ok': timed; 'checked': right, not timed; else `note` says why there is no time.

    worst: largest error as a share of its tolerance; launch_ms: of the calling thread, without the kernel itself;
    beside: milliseconds by name, in the same rounds, of the library and then of the best copy (library.py).
    """

    case: Case
    block: int | None
    status: Status
    note: str = ""
    worst: float | None = None
    times: Times | None = None
    launch_ms: float | None = None
    beside: dict[str, Spread] | None = None
    ceilings: Ceilings | None = None

    @property
    def spread(self) -> Spread:
        """Milliseconds on the device."""
        assert self.times is not None
        return Spread.of(self.times.device)

    @property
    def gb_per_s(self) -> float:
        """Bytes that must move, 10^9 a second of the median."""
        return self.case.bytes_moved / self.spread.median / 1e6

    @property
    def gflop_per_s(self) -> float:
        """Operations of the plain algorithm, 10^9 a second of the median."""
        return self.case.flops / self.spread.median / 1e6

    @property
    def percent(self) -> float:
        """Median against the ceiling that the case meets first."""
        assert self.ceilings is not None
        return 100 * self.ceilings.least_ms(self.case.bytes_moved, self.case.flops) / self.spread.median

    @property
    def limit(self) -> str:
        """That ceiling: "memory" or "compute"."""
        assert self.ceilings is not None
        return self.ceilings.limit(self.case.bytes_moved, self.case.flops)

    @property
    def library(self) -> tuple[str, Spread]:
        """The library's name and milliseconds."""
        assert self.beside is not None
        return next(iter(self.beside.items()))

    @property
    def ratio(self) -> float:
        """How many times faster than the library, by medians."""
        return self.library[1].median / self.spread.median

    @property
    def percent_of_copy(self) -> float | None:
        """The best copy of as many bytes, in the same rounds, against the median; None for a matrix product."""
        if self.case.op.product:
            return None
        assert self.beside is not None
        return 100 * min(spread.median for spread in self.beside.values()) / self.spread.median

    def plain(self) -> dict[str, Any]:
        """Fit for JSON."""
        case = self.case
        facts = {"problem": case.problem.text, "op": case.op.name, "family": case.op.family, "block": self.block,
                 "calls": case.calls, "status": self.status, "note": self.note, "bytes": case.bytes_moved,
                 "flops": case.flops, "worst_error": self.worst}
        return {**facts, **(self._measured() if self.times else {})}

    def _measured(self) -> dict[str, Any]:
        assert self.times is not None
        name, library = self.library
        return {"device_ms": asdict(self.spread), "samples_ms": self.times.device.tolist(),
                "launch_ms": self.launch_ms, "call_ms": asdict(Spread.of(self.times.launch)),
                "first_ms": self.times.first, "gb_per_s": self.gb_per_s, "gflop_per_s": self.gflop_per_s,
                "limit": self.limit, "percent_of_ceiling": self.percent, "percent_of_copy": self.percent_of_copy,
                "library": {"name": name, **asdict(library)}, "times_library": self.ratio}


def unfit(device: Device, case: Case) -> str | None:
    """Why the device cannot run a case, of which nothing is allocated here; None when it can."""
    need, memory = HOST_COPIES * case.nbytes + case.op.scratch(case.problem), device.memory()
    if need > memory.available:
        return f"needs {need / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB of {memory.total / 1e9:.1f} GB are free"
    return case.op.missing(device, case.problem)


class Blocked:
    """A device whose launches take `block` threads a block."""

    def __init__(self, device: Device, block: int) -> None:
        self._device, self._block = device, block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, family: str, kernel: str, work: Any, *args: Any, block: int | None = None) -> None:
        """Launch with the block size of this object."""
        self._device.launch(family, kernel, work, *args, block=self._block)


class Bench:
    """Runs cases on one device. The ceilings are measured at once, unless `ceilings` are given or nothing is timed."""

    def __init__(self, device: Device, settings: Settings, ceilings: Ceilings | None = None) -> None:
        self.device, self.settings = device, settings
        self.ceilings = ceilings
        if ceilings is None and not settings.check_only:
            self.ceilings = measure_ceilings(device)
        self._flush = Flush(device, self.ceilings.cache_bytes) if self.ceilings else None

    def run(self, cases: Iterable[Case], report: Callable[[Result], None] = lambda result: None) -> list[Result]:
        """Results of all cases at all block sizes, each reported as it is there, in terms of the last ceilings."""
        results = []
        for case in cases:
            for block in self.settings.blocks:
                results.append(self._run_case(case, block))
                report(results[-1])
        return [replace(result, ceilings=self.ceilings) for result in results]

    def _run_case(self, case: Case, block: int | None) -> Result:
        if reason := unfit(self.device, case):
            return Result(case, block, "skipped", reason)
        device: Any = self.device if block is None else Blocked(self.device, block)
        try:
            checked = check(device, case)
            if self.settings.check_only:
                return Result(case, block, "checked", worst=checked.worst)
            return self._timed(case, block, checked)
        except WrongResult as error:
            return Result(case, block, "wrong", str(error))
        except MeasuringError as error:
            return Result(case, block, "refused", str(error))

    def _timed(self, case: Case, block: int | None, checked: Checked) -> Result:
        assert self.ceilings is not None and self._flush is not None
        sets = _copies(self.device, checked.arrays, FEW_SETS if case.nbytes > LARGE_BYTES else SETS)
        beside = open_library(self.device, case, self.ceilings.copy_method)
        calls = [lambda number: checked.run(sets[number % len(sets)]), *beside.values()]
        times, *others = measure(self.device, calls, self._flush, seconds=self.settings.seconds,
                                 repeats=self.settings.repeats)
        self._refuse_impossible(case, times, checked)
        launch = host_launch_ms(self.device, case, checked.arrays) if self.device.kind == "host" \
            else float(np.median(times.launch))
        spreads = {name: Spread.of(other.device) for name, other in zip(beside, others, strict=True)}
        return Result(case, block, "ok", "", checked.worst, times, launch, spreads, self.ceilings)

    def _refuse_impossible(self, case: Case, times: Times, checked: Checked) -> None:
        """Doubt a median that beats the ceilings: measure them again, then ask the wall clock; the machine may be busy.

        Raises MeasuringError when neither explains it.
        """
        what, moved, flops = case.problem.text, case.bytes_moved, case.least_flops
        seen = Spread.of(times.device).median
        assert self.ceilings is not None
        try:
            self.ceilings.refuse(what, seen, moved, flops)
        except MeasuringError:
            self.ceilings = self.ceilings.raised(measure_ceilings(self.device, self.ceilings.cache_bytes))
            self.ceilings.refuse(what, seen, moved, flops, BUSY)
            works: dict[str, Callable[[], None]] = {what: lambda: checked.run(checked.arrays)}
            wall_ms = 1e3 * wall_seconds(self.device, works, next(reversed(checked.arrays.values())))[what]
            if wall_ms > MARGIN * seen:
                self.ceilings.refuse(what, seen, moved, flops)
            self.ceilings = self.ceilings.reached(wall_ms, moved, flops)


def _copies(device: Device, arrays: dict[str, Array], count: int) -> list[dict[str, Array]]:
    """`count` sets of arrays of equal values, the first of them `arrays`."""
    more = [{name: device.upload(device.download(array)) for name, array in arrays.items()} for _ in range(count - 1)]
    return [arrays, *more]


def host_launch_ms(device: Device, case: Case, arrays: dict[str, Array]) -> float | None:
    """Milliseconds that a call costs before its kernels run: checks and conversions. None where it launches nothing."""
    dry = DryDevice("host", device.threads)
    run = case.bind(dry)
    run(arrays)
    if not dry.launches:
        return None
    times = measure(dry, [lambda number: run(arrays)], dry.launches.clear, seconds=0, repeats=DRY_CALLS)
    return Spread.of(times[0].device).median
