"""SPRINT: worker threads that never wait for each other, and one update thread per rank (Oyama et al. 2016).

batches -> Worker[g]: fetch weights -> forward -> backward -> deposit gradient        one thread per device
                                                                |
update thread: collect -> allreduce -> momentum -> publish weights(version)           the only caller of MPI
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .buffers import GradientBuffer, VersionedWeights
from .gate import Gate
from .launch import FORWARD_S
from .options import Options
from .progress import Progress
from .pulse import LOCAL, RANKS, Pulse
from .ranks import AgreedError, Comm, agree_signature, label
from .record import Record
from .saver import Save, Saver
from .telemetry import Telemetry
from .transport import Transport
from .update import Updater
from .watch import DrilledWorker, Drills, Fault, Watch, signals
from .worker import GradientWorker
from .worker_loop import WorkerLoop

END_S = 5.0  # how long a failing or interrupted rank tries to end together with the others
TICK_S = 0.02


class Interrupted(AgreedError):
    """A signal on some rank ended the run after the same update everywhere."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Sprint:
    """One rank's part of a run. start() and join() make a segment of it; any number may follow each other.

    What is in flight at the end of a segment is used by the next one, so pauses (to evaluate, with the
    main thread as the caller of MPI) lose no gradient.
    """

    def __init__(self, comm: Comm, workers: Sequence[GradientWorker], weights: np.ndarray, options: Options, *,
                 config_hash: str, momentum: np.ndarray | None = None, progress: Progress | None = None,
                 save: Save | None = None, record: Path | None = None, faults: Sequence[Fault] = (),
                 transport: Transport | None = None, watch: Watch | None = None, go_on: str = "") -> None:
        """Prepare; nothing starts and nothing is sent.

        weights, momentum: (n_params,) float32, copied. progress: where an earlier run stopped.
        save(weights, momentum, version, state) is called on every rank, by the main thread: every
        `save_every` updates with the same version everywhere, and with the last published one when the run
        fails (after a signal to one of several ranks in a forked child, so it must only write files).
        `state` has this rank's worker states, as of the last gradient in that version.
        record: folder of the log that Replay reads. transport: of the sums over the ranks; None: the host's.
        watch: of the whole run; None: one for the segments only.
        go_on: words for people whose job the launcher has killed.
        """
        start = progress or Progress()
        self.comm, self.options = comm, options
        self.weights = VersionedWeights(weights, momentum, start.version, start.samples)
        self.telemetry = Telemetry(len(workers))
        self._drills = Drills(list(faults), comm.ids[comm.rank])
        self._workers = [self._drilled(worker, t) for t, worker in enumerate(workers)]
        self._buffers = [GradientBuffer(weights.size, start.version) for _ in workers]
        self._gate = Gate([b.filled for b in self._buffers], options.bound, options.min_gradients)
        self._watch = watch or Watch(comm, options.stall_s)
        self._config_hash, self._keep_states = config_hash, save is not None
        self._record = None if record is None else Record(record, comm.ids[comm.rank], comm.ids, start.version)
        self._updater = Updater(comm, self.weights, self._buffers, options, self.telemetry, start, self._record,
                                self._redivide, transport)
        self._loops = [WorkerLoop(t, worker, self.weights, self._buffers[t], self._gate, options,
                                  self.telemetry.worker_clocks[t], self._keep_states)
                       for t, worker in enumerate(self._workers)]
        self._saver = Saver(comm, self._updater, save, go_on)
        self._divisions = 0  # how often the data have been divided anew
        self._agreed = False
        self._reset(0, None)

    @property
    def progress(self) -> Progress:
        """Of the whole job, as of the last published version."""
        return self._updater.progress

    def _drilled(self, worker: GradientWorker, index: int) -> GradientWorker:
        if not self._drills.open:
            return worker
        return DrilledWorker(worker, self._drills, index, lambda: self.weights.published.version + 1)

    def _reset(self, samples: int, updates: int | None) -> None:
        self._goal, self._last = samples, updates
        self._worker_errors: list[BaseException] = []
        self._update_error: BaseException | None = None
        self._signal = self._updater.stop_signal = 0
        self._left = False  # after the last update, together with all other ranks
        self._deadline = 0.0  # moment by which a rank in trouble must have ended with the others
        self._threads: list[threading.Thread] = []

    def start(self, samples: int, updates: int | None = None) -> None:
        """Start the threads; they end, on all ranks after the same update, when `samples` are used in all.

        updates: or when so many are made in all, if that is earlier.
        Raises AgreedError on every rank if their configuration, parameters or versions differ.
        """
        self._reset(samples, updates)
        self.comm.ended = False
        if not self._agreed:
            agree_signature(self.comm, self._config_hash, self.weights.n_params, self.progress.version)
            self._updater.states = [w.state() if self._keep_states else {} for w in self._workers]
            self._agreed = True
        self._gate.open(self.progress.version)
        self._watch.pulses.clear()
        targets: list[tuple[str, Callable[[Pulse], None]]] = [("update", self._update)]
        targets += [(f"worker {t}", self._worker_thread(t)) for t in range(len(self._workers))]
        self._threads = [threading.Thread(target=loop, args=(self._watch.pulse(name),), name=name, daemon=True)
                         for name, loop in targets]
        for thread in self._threads:
            thread.start()

    def _worker_thread(self, t: int) -> Callable[[Pulse], None]:
        def run(pulse: Pulse) -> None:
            try:
                self._loops[t].run(pulse)
            except BaseException as error:
                self._worker_failed(t, error)
            finally:
                self._gate.leave(t)
        return run

    def _redivide(self, share: int, shares: int, samples: int) -> None:
        self._divisions += 1
        for loop in self._loops:
            loop.division = (self._divisions, share, shares, samples)
        if self._record:
            self._record.division(self._divisions, share, shares, samples)

    def _worker_failed(self, t: int, error: BaseException) -> None:
        if self.comm.size > 1:  # the others' messages come later: this is the one that tells why
            text = "".join(traceback.format_exception(error))
            print(f"sprint: {label(self.comm)}: worker {t} failed:\n{text}", file=sys.stderr, end="", flush=True)
            time.sleep(FORWARD_S)  # a busy launcher may forward what two ranks say in any order
            error.told = True  # type: ignore[attr-defined]  # for launch.guard, which would tell it again
        self._worker_errors.append(error)
        self._updater.failed = True
        self._deadline = time.monotonic() + END_S
        self._gate.hurry()

    # Algorithm 2: the update thread

    def _update(self, pulse: Pulse) -> None:
        try:
            while not self._over():
                if not self._one_update(pulse):
                    return
            self._gate.published(self.progress.version, last=True)
            pulse.enter("wait for the workers", self.progress.version, LOCAL)
            self._gate.drain()
            self._leave_together(pulse)
        except AgreedError as error:
            self._gate.close()
            self._update_error = self._finish_after(error, pulse)  # known to join() when all have left
        except BaseException as error:
            self._update_error = error
        finally:
            pulse.enter("end", 0, LOCAL)
            self._gate.close()

    def _one_update(self, pulse: Pulse) -> bool:
        """Make an update; False: the main thread is in trouble, of which the other ranks do not know."""
        clock, update = self.telemetry.update_clock, self.progress.version + 1
        clock.restart()
        pulse.enter("wait for gradients", update, LOCAL)
        if not self._gate.hold(update):
            return False
        clock.lap("wait")
        self._updater.step(pulse, lambda: self._drills.before_exchange(update))
        clock.finish()
        if self.options.save_every and update % self.options.save_every == 0:
            self._saver.keep()
        self._gate.published(update, last=self._over())
        return True

    def _over(self) -> bool:
        at = self.progress
        if self._last is not None and at.version >= self._last:
            return True
        return at.samples >= self._goal or at.stop_signal > 0 or at.failed_rank != -1

    def _leave_together(self, pulse: Pulse) -> None:
        pulse.enter("leave together", self.progress.version, RANKS)
        self._updater.finish()
        self._left = True

    def _finish_after(self, error: AgreedError, pulse: Pulse) -> BaseException:
        try:
            self._leave_together(pulse)
            return error
        except BaseException as worse:
            return worse

    # the main thread

    def join(self, tick: Callable[[Progress], None] | None = None) -> Progress:
        """Wait for the end of the segment, return the progress of the job; `tick` is called meanwhile and at the end.

        Raises what a thread raised; AgreedError when another rank failed or the run diverged; Interrupted
        after SIGINT or SIGTERM; Stalled naming what is stalled. A checkpoint is saved before.
        """
        try:
            with signals(self.stop), self.comm.pulse.within("train", LOCAL):
                while any(thread.is_alive() for thread in self._threads):
                    self._look_round()
                    if tick:
                        tick(self.progress)
                    next(t for t in self._threads if t.is_alive() or t is self._threads[-1]).join(TICK_S)
                if tick:
                    tick(self.progress)
                self._saver.save_kept()
            self.comm.ended = self._left
            self._raise_outcome()
        except BaseException:
            self._gate.close()
            self._saver.rescue()
            raise
        return self.progress

    def _look_round(self) -> None:
        self._watch.check()
        self._saver.save_kept()
        if self._signal and not self._deadline:
            self._deadline = time.monotonic() + END_S
            self._gate.hurry()
            self._saver.rescue_detached()
        if self._update_error and not self._left:
            raise self._update_error
        if self._deadline and time.monotonic() > self._deadline and not self._left:
            self._raise_outcome()
            raise RuntimeError(f"{label(self.comm)}: the other ranks did not end with it in {END_S:g} s")

    def stop(self, number: int) -> None:
        """Ask all ranks for the end as if the signal `number` had come; between start() and the end of join()."""
        self._signal = number
        self._updater.stop_signal = number

    @property
    def unheard(self) -> int:
        """The signal that came too late for the ranks to agree on it in the last segment, or 0."""
        return 0 if self.progress.stop_signal else self._signal

    def _raise_outcome(self) -> None:
        at, where = self.progress, f"stopped at version {self.progress.version}"
        if self._worker_errors:
            self.comm.ended &= at.failed_rank != -1  # it may have failed after the last vote: the others do not know
            raise self._worker_errors[0]
        if self._update_error:
            raise self._update_error
        if at.failed_rank != -1:
            who = "several ranks" if at.failed_rank < -1 else f"rank {at.failed_rank}"
            raise AgreedError(f"{where}: a worker of {who} failed")
        number = at.stop_signal or (0 if self.comm.ended else self._signal)
        if number:
            raise Interrupted(f"{where}: {signal.Signals(number).name}", number)

    def survive(self, announce: bool = True) -> None:
        """After RankFailed in a collective of the main thread, between segments: go on with the living ranks.

        All of them come here or to the same recovery in the next segment; then the collective is made again.
        `announce`: False where agree() has told this rank of the death.
        """
        self._updater.survive(announce)

    def checkpoint(self) -> None:
        """Save the last published version; between segments."""
        self._saver.save()

    def close(self) -> None:
        """Close the workers and the record."""
        for worker in self._workers:
            worker.close()
        if self._record:
            self._record.close()
