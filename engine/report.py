"""What a run says: a header before it starts, a progress bar or plain lines, and its result."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..kernels import cuda, source
from .layers import Conv2D
from .nets import RECONSTRUCTION
from .session import Session, gigabytes
from .shapes import forward_macs

Record = dict[str, Any]
BAD_SHOWN = 5  # images left out that are named
MEASURED_CHOICES = ("auto: algorithms are measured once on this machine and cached; equal bytes on other machines or "
                    "after the cache is emptied need --conv-algo implicit, or --resume, which keeps the choices")
KEPT_CHOICES = "auto: the algorithms that the checkpoint names; what it does not name is measured"


class Report:
    """Lines on standard output; a `quiet` one (every rank but the first) says nothing, a `plain` one has no bar."""

    def __init__(self, quiet: bool = False, plain: bool = False) -> None:
        self.quiet, self.plain = quiet, plain
        self._bar: Any = None
        self._task: Any = None

    def line(self, text: str) -> None:
        """Say one line, above the progress bar if there is one."""
        if not self.quiet:
            if self._bar is None:
                print(text, flush=True)
            else:
                self._bar.console.print(text, markup=False, highlight=False)

    def header(self, session: Session, gradient: str, folder: Path) -> None:
        """Say what is about to run, on what, with how much memory."""
        for title, text in (*_header(session, gradient), ("run", str(folder))):
            self.line(f"{title:<8} {text}")

    @contextmanager
    def progress(self, done: int, total: int, unit: str = "step") -> Iterator[None]:
        """While entered, steps move a bar if standard output is a terminal, or else each record is a line."""
        if self.quiet or self.plain or sys.stdout is None or not sys.stdout.isatty():
            yield
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(f"{unit} {{task.completed}}/{{task.total}}"), BarColumn(),
                   TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, refresh_per_second=4) as self._bar:
            self._task = self._bar.add_task("", completed=done, total=total)
            try:
                yield
            finally:
                self._bar = None

    def step(self, done: int) -> None:
        """A step is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def record(self, record: Record, total: int | None) -> None:
        """Say a record of the log; total: steps of the run, if they are known."""
        text = (f"epoch {record['epoch']:.2f}  loss {record['loss']:.4f}  lr {record['lr']:.2g}  "
                f"{speed(record['images_per_s'])}")
        if "staleness" in record:
            text += f"  staleness {record['staleness']:.2f}  mini-batch {record['minibatch']:.1f}"
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        else:
            self.line(f"step {record['step']}{f'/{total}' if total else ''}  {text}")
        if "top1" in record:
            self.line(f"test     epoch {record['epoch']:.2f}  loss {record['test_loss']:.4f}  "
                      f"top-1 {record['top1']:.2%}  top-5 {record['top5']:.2%}")

    def summary(self, summary: Record, session: Session, folder: Path) -> None:
        """Say how the run ended, and which images were left out."""
        for path, reason in list(session.dataset.bad.items())[:BAD_SHOWN]:
            self.line(f"skipped  {path}: {reason}")
        if summary["bad_images"] > BAD_SHOWN:
            self.line(f"skipped  {summary['bad_images']} images in all")
        whose = "process" if session.device.kind == "host" else "device"
        self.line(f"done     loss {summary['loss']:.4f}  top-1 {summary['top1']:.2%}  "
                  f"top-5 {summary['top5']:.2%}  in {summary['seconds']:.1f} s, "
                  f"{speed(summary['images_per_s'])}, peak {gigabytes(summary['peak_bytes'])} of the {whose}: "
                  f"{folder}")


def speed(images_per_s: float) -> str:
    """Images a second, three digits or more."""
    return f"{images_per_s:.0f} images/s" if images_per_s >= 100 else f"{images_per_s:.3g} images/s"


def _header(session: Session, gradient: str) -> Iterator[tuple[str, str]]:
    config, spec, plan = session.config, session.spec, session.memory
    missing = cuda.missing() if config.device == "auto" and session.device.kind == "host" else None
    yield "sprint", __version__
    yield "device", session.device.describe() + (f"; no CUDA: {missing}" if missing else "")
    yield "net", (f"{spec.name}, input {'x'.join(map(str, spec.in_shape))}, {spec.classes} classes, "
                  f"{spec.parameter_count:,} parameters, {forward_macs(spec) / 1e6:,.1f} MMAC an image")
    if spec.note:
        yield "", "reconstruction (see README)" if spec.note == RECONSTRUCTION else spec.note
    yield "data", f"{session.dataset.name}: {session.dataset.provenance}"
    yield "update", (f"{config.optimizer}, lr {config.lr:g}, schedule {config.schedule}, weight decay "
                     f"{config.weight_decay:g}; the gradient is {gradient}")
    if config.conv_algo == "auto" and any(isinstance(layer, Conv2D) for layer in spec.layers):
        yield "conv", KEPT_CHOICES if session.saved else MEASURED_CHOICES
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in asdict(plan).items())
    yield "memory", f"planned peak {gigabytes(plan.total)} of {gigabytes(session.available)} free ({parts})"
    if session.device.kind == "host" and not any(source.cache_folder().glob("*.so")):
        yield "kernels", "compiled in the first steps, once on this machine"
