"""The `math` verifier's worker: math-verify in a process of its own, so that no expression can hang or crash a run.

Run as a module it is the worker: a line of JSON `[completion, answer]` in, a line of JSON `{"correct": bool}` or
`{"error": str}` out.
"""

import importlib.util
import json
import queue
import subprocess
import sys
import threading
import weakref
from typing import IO

from lossbench.errors import UsageError

LIMIT_S = 5.0
START_LIMIT_S = 120.0  # importing sympy on a busy machine
_READY = "ready"


class MathTimeLimit(RuntimeError):
    """The worker did not answer within its time limit."""


class MathProcess:
    """Asks a worker process; ends it and starts another when it exceeds `limit_s` seconds on one completion."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UsageError("verifier 'math' needs math-verify: pip install 'lossbench[math]'")
        self.limit_s = limit_s
        self._worker: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def check(self, completion: str, answer: str) -> bool:
        """Whether math-verify finds the completion's expression equal to `answer`.

        Raises MathTimeLimit past the time limit and RuntimeError with math-verify's own message when it fails.
        """
        worker = self._running_worker()
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([completion, answer]) + "\n")
        worker.stdin.flush()
        reply = json.loads(self._reply(self.limit_s))
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["correct"]

    def _running_worker(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self._replies = queue.SimpleQueue()
        self._worker = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        assert self._worker.stdout is not None
        threading.Thread(target=_forward, args=(self._worker.stdout, self._replies), daemon=True).start()
        weakref.finalize(self, self._worker.kill)
        self._reply(START_LIMIT_S)
        return self._worker

    def _reply(self, limit_s: float) -> str:
        try:
            line = self._replies.get(timeout=limit_s)
        except queue.Empty:
            self._end()
            raise MathTimeLimit(f"no verdict within {limit_s:g} s") from None
        if not line:
            self._end()
            raise RuntimeError("the math worker ended unexpectedly")
        return line

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None


def _forward(stream: IO[str], replies: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        replies.put(line)
    replies.put("")


def _serve() -> None:
    # math-verify's own limits use signals that do nothing here: the parent process keeps the time.
    from math_verify import parse, verify

    verify(parse("$1$", parsing_timeout=0), parse("$1$", parsing_timeout=0), timeout_seconds=0)  # imports sympy's parsers
    print(_READY, flush=True)
    for line in sys.stdin:
        completion, answer = json.loads(line)
        try:
            gold = parse(answer if "$" in answer or "\\" in answer else f"${answer}$", parsing_timeout=0)
            said = parse(completion, parsing_timeout=0)
            reply = {"correct": bool(gold and said and verify(gold, said, timeout_seconds=0))}
        except Exception as error:  # whatever sympy raises belongs to this one completion
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve()
