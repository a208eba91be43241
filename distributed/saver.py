"""Checkpoints of a run that does not wait for them, and the last one of a run that is being killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from .ranks import Comm
from .update import Updater

SAVER_S, STDERR = 60, 2

Version = tuple[np.ndarray, np.ndarray, int, dict[str, Any]]  # weights, momentum, version, state
Save = Callable[[np.ndarray, np.ndarray, int, dict[str, Any]], None]


class Saver:
    """Hands published versions to `save(weights, momentum, version, state)`, if there is one, in the main thread."""

    def __init__(self, comm: Comm, updater: Updater, save: Save | None, go_on: str = "") -> None:
        """go_on: for people, how a run goes on that the launcher kills."""
        self._comm, self._updater, self._save, self._go_on = comm, updater, save, go_on
        self._kept: Version | None = None
        self._child = 0  # process that saves for this one
        self._lifeline = 0  # to the child: a byte if this process ends by itself, the end of file if it is killed
        self._rescued = -1  # version that the last rescue saved

    def keep(self) -> None:
        """Copy what is published now, for save_kept(); for the update thread, between two updates."""
        if self._save:
            self._kept = self._take()

    def save_kept(self) -> None:
        """Save what keep() has copied, if it has."""
        kept, self._kept = self._kept, None
        if kept:
            self._write(kept)

    def save(self) -> None:
        """Save the last published version."""
        if self._save:
            self._write(self._take())

    def _write(self, version: Version) -> None:
        assert self._save
        with self._comm.pulse.within("save"):
            self._await_child()
            self._save(*version)

    def rescue(self) -> None:
        """Save the last published version, if that is not done."""
        version = self._updater.progress.version
        if self._rescued != version:
            self._rescued = version
            self.save()

    def rescue_detached(self) -> None:
        """Save in a child process, of which the launcher does not know: it may give this one little time.

        Open MPI 5's mpirun, when it ends a job, sends SIGKILL 0.25 s after SIGTERM; 80 MB are written in
        that time, 150 MB are not. The child has the memory as it was at the fork, and ends within SAVER_S.
        """
        if not self._save or self._comm.size == 1:
            self.rescue()
            return
        end, self._lifeline = os.pipe()
        with self._updater.books, self._updater.weights.held():
            self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._lifeline)
                os.setsid()
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(SAVER_S)
                teller = threading.Thread(target=self._tell, args=(end,))  # mpirun soon takes no more lines
                teller.start()
                self._save(*self._take())
                teller.join()
            finally:
                os._exit(0)
        os.close(end)

    def _tell(self, end: int) -> None:
        """Say how to go on if the parent is killed; where one of the first two ranks has died, the other one does."""
        if not os.read(end, 1) and self._go_on and self._comm.rank < 2:
            version = self._updater.progress.version
            os.write(STDERR, f"sprint: the job was killed; version {version} is saved; {self._go_on}\n".encode())

    def _await_child(self) -> None:
        """Let the child finish before this process writes the same files."""
        if self._child:
            os.write(self._lifeline, b"1")
            os.close(self._lifeline)
            os.waitpid(self._child, 0)
            self._child = 0

    def _take(self) -> Version:
        weights, momentum, progress, states = self._updater.snapshot()
        state = {"rank": self._comm.ids[self._comm.rank], "progress": asdict(progress), "workers": states}
        return weights, momentum, progress.version, state
