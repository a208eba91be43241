"""The parent's end of a contender's process."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType
from typing import Any

from .cases import Case

LIMIT_S = 600.0  # for one answer


class Child:
    """A contender in a process of its own, which sleeps between questions; a context manager."""

    def __init__(self, name: str, case: Case, limit_s: float = LIMIT_S) -> None:
        self.name, self.limit_s = name, limit_s
        module = f"{__package__}.worker"
        self._process = subprocess.Popen([sys.executable, "-m", module, name, json.dumps(asdict(case))], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer to a question of worker.Worker.

        Raises RuntimeError when the process fails, dies, or takes longer than the limit.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        with contextlib.suppress(BrokenPipeError):  # its last words say more
            stdin.write(json.dumps({"ask": question, **arguments}) + "\n")
            stdin.flush()
        if not select.select([stdout], [], [], self.limit_s)[0]:
            raise RuntimeError(f"peers: expected {self.name} to answer '{question}' within {self.limit_s:g} s, "
                               f"got nothing")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"peers: expected {self.name} to answer '{question}', got exit {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"peers: expected {self.name} to answer '{question}', got {reply['error']}")
        return reply["result"]

    def close(self) -> None:
        """End the process: politely, or else at once."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
