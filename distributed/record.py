"""The order of an asynchronous run, (worker, version read, update that used it), and its repetition on one device."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .buffers import Deposit
from .options import Options
from .ranks import slice_of
from .worker import GradientWorker


class Record:
    """One rank's log, record-rankR.jsonl: a line is with the kernel before the update it tells of is sent.

    So a killed process leaves every update that it took part in.
    """

    def __init__(self, folder: Path, rank_id: int, ids: list[int], version: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"record-rank{rank_id}.jsonl").open("w", encoding="ascii")
        self.group(ids, version + 1)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def group(self, ids: list[int], first: int) -> None:
        """From update `first` on, these ranks are summed, in this order."""
        self._write({"group": ids, "from": first})

    def update(self, update: int, deposits: list[Deposit]) -> None:
        """Update `update` uses these gradients of this rank."""
        self._write({"update": update, "uses": [[d.worker, d.version, d.division] for d in deposits]})

    def division(self, index: int, share: int, shares: int, samples: int) -> None:
        """Division `index` of the data: this rank's first share, of how many, at how many samples."""
        self._write({"division": index, "share": share, "shares": shares, "samples": samples})

    def digest(self, version: int, crc: int) -> None:
        """The weights of `version` have this CRC-32."""
        self._write({"version": version, "crc": crc})

    def close(self) -> None:
        """Close the log."""
        self._file.close()


@dataclass
class _Log:
    """What one rank recorded."""

    uses: dict[int, list[list[int]]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)
    divisions: dict[int, dict[str, int]] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)


def _read(path: Path) -> _Log:
    log = _Log()
    for text in path.read_text("ascii").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break  # cut off by a kill: the update that it tells of was not sent
        if "update" in line:
            log.uses[line["update"]] = line["uses"]
        elif "group" in line:
            log.groups[line["from"]] = line["group"]
        elif "division" in line:
            log.divisions[line["division"]] = line
        else:
            log.digests[line["version"]] = line["crc"]
    return log


class Replay:
    """Repeats a recorded run on one device, update by update.

    Bit for bit equal if the run summed in rank order (Options.ordered) and the workers are deterministic;
    with the mean form only up to the death of a rank, because what is left is weighted anew.
    """

    def __init__(self, folder: Path, open_worker: Callable[[int, int], GradientWorker], weights: np.ndarray,
                 options: Options, *, momentum: np.ndarray | None = None, samples: int = 0) -> None:
        """`open_worker(rank, worker)` gives the worker that the run had there, in its state at the start.

        weights, momentum: (n,) float32 at the start. Raises FileNotFoundError, ValueError for a log
        without the first update.
        """
        files = {int(p.stem.removeprefix("record-rank")): p for p in folder.glob("record-rank*.jsonl")}
        if not files:
            raise FileNotFoundError(f"replay: expected record-rank*.jsonl in {folder}, got none")
        self._logs = {rank: _read(path) for rank, path in sorted(files.items())}
        self._groups: dict[int, list[int]] = {}
        for log in self._logs.values():
            self._groups.update(log.groups)
        self.version = min(self._groups) - 1
        self.last = min(max(log.uses, default=self.version) for log in self._survivors())
        self.weights = weights.copy()
        self._delta = np.zeros_like(weights) if momentum is None else momentum.copy()
        self._options, self._open = options, open_worker
        self._workers: dict[tuple[int, int], GradientWorker] = {}
        self._division: dict[tuple[int, int], int] = defaultdict(int)
        self._kept = {self.version: (weights.copy(), samples)}
        self._samples = samples
        self._needed = self._last_uses()

    @property
    def groups(self) -> list[list[int]]:
        """The ranks that were summed, from the start on."""
        return [self._groups[first] for first in sorted(self._groups)]

    def _survivors(self) -> list[_Log]:
        return [self._logs[rank] for rank in self._groups[max(self._groups)]]

    def _last_uses(self) -> dict[int, int]:
        """Return, for every version, the last update that uses a gradient computed from it."""
        needed: dict[int, int] = {}
        for log in self._logs.values():
            for update, uses in log.uses.items():
                for _, version, _ in uses:
                    needed[version] = max(needed.get(version, 0), update)
        return needed

    def step(self) -> None:
        """Make the next recorded update. Raises ValueError where the log has a gap or the weights differ."""
        update = self.version + 1
        group = self._groups[max(first for first in self._groups if first <= update)]
        sums, total = [], 0
        for rank in group:
            if update not in self._logs[rank].uses:
                raise ValueError(f"replay: expected update {update} in the record of rank {rank}, got none")
            gradient, samples = self._gradient(rank, update)
            sums.append(gradient)
            total += samples
        received = self._sum(sums, total)
        self._delta = received - self.weights
        self.weights = received
        self.version, self._samples = update, self._samples + total
        self._kept[update] = (received, self._samples)
        self._kept = {v: kept for v, kept in self._kept.items() if self._needed.get(v, 0) > update or v == update}
        self._compare()

    def _gradient(self, rank: int, update: int) -> tuple[np.ndarray, int]:
        """Return what `rank` had collected for `update`, (n,) float32, and its samples."""
        total = 0
        buffers: dict[int, np.ndarray] = {}
        for index, version, division in self._logs[rank].uses[update]:
            worker = self._worker(rank, index, division)
            weights, used = self._kept[version]
            worker.fetch(weights)
            samples = 0
            while not samples:  # sub-batches without samples, which no update used, are not in the record
                _, samples = worker.compute()
            scale = self._options.scale(used, version, update - 1 - version)
            worker.deposit(buffers.setdefault(index, np.zeros_like(self.weights)), True, scale)
            total += samples
        parts = [buffers[index] for index in sorted(buffers)] or [np.zeros_like(self.weights)]
        for part in parts[1:]:
            np.add(parts[0], part, out=parts[0])
        return parts[0], total

    def _worker(self, rank: int, index: int, division: int) -> GradientWorker:
        key = rank, index
        if key not in self._workers:
            self._workers[key] = self._open(rank, index)
        if division != self._division[key]:
            self._division[key] = division
            line = self._logs[rank].divisions[division]
            self._workers[key].divide(line["share"] + index, line["shares"], line["samples"])
        return self._workers[key]

    def _sum(self, sums: list[np.ndarray], total: int) -> np.ndarray:
        """Add what every rank would have sent, in rank order."""
        for rank, send in enumerate(sums):
            if self._options.form == "mean" and total:
                np.multiply(send, np.float32(1 / total), out=send)
            own = slice_of(send.size, rank, len(sums))
            send[own] += self.weights[own]
            send[own] += self._delta[own] * np.float32(self._options.momentum)
        for send in sums[1:]:
            np.add(sums[0], send, out=sums[0])
        return sums[0]

    def _compare(self) -> None:
        for rank, log in self._logs.items():
            crc = log.digests.get(self.version)
            mine = zlib.crc32(self.weights.data)
            if crc not in (None, mine):
                raise ValueError(f"replay: version {self.version}: expected CRC-32 {crc:08x} as on rank {rank}, got "
                                 f"{mine:08x}")

    def run(self) -> np.ndarray:
        """Make all recorded updates; return the weights (n,) float32."""
        while self.version < self.last:
            self.step()
        return self.weights

    def close(self) -> None:
        """Close the workers."""
        for worker in self._workers.values():
            worker.close()
