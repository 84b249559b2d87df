"""The `math` verifier's worker: math-verify in a process of its own, so that no expression can hang or crash a run.

Run as a module it is the worker: a line of JSON `[completion, answer, limit_s]` in, a line of JSON `{"correct": bool}`
or `{"error": str}` out; without a completion (null) the verdict is whether the answer parses. The limit is processor
time, so that verdicts do not depend on how busy the machine is.
"""

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import weakref
from typing import IO

from lossbench.errors import one_line
from lossbench.extras import require

LIMIT_S = 5.0
WALL_LIMIT_S = 300.0  # a backstop: for the start, and for a worker that waits instead of computing
_READY = "ready"
_DELIMITED = re.compile(r"\$[^$]+\$|\\boxed|(?<!\\)\\[(\[]")
_CURRENCY = re.compile(r"(?<!\\)\\\$")
_SURE = re.compile(r"-?(?:\d+(?:\.\d+)?|\\[dt]?frac\{\d+\}\{\d+\})")  # parses: most answers need not be asked about


def as_math(answer: str) -> str:
    r"""`answer` as text in which math-verify finds all of it; bare, only the numbers of `2\pi` or `11\sqrt2` are found.

    >>> as_math(r"2\pi"), as_math(r"so \(2\pi\)"), as_math("$70,000")
    ('$2\\pi$', 'so \\(2\\pi\\)', '$70,000$')
    """
    text = _CURRENCY.sub("", answer)
    return text if _DELIMITED.search(text) else f"${text.replace('$', '')}$"


class MathTimeLimit(RuntimeError):
    """The worker gave no verdict within its time limit."""


class MathProcess:
    """Client of a worker process; ends it and starts another when one completion takes more than `limit_s`."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """`limit_s`: seconds of processor time per completion. Raises UsageError where math-verify is missing."""
        require("verifier 'math'", "math", "math_verify")
        self.limit_s = limit_s
        self._worker: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def check(self, completion: str, answer: str) -> bool:
        """Whether math-verify finds the completion's expression equal to `answer`.

        Raises MathTimeLimit past the time limit and RuntimeError with math-verify's own message when it fails, or where
        the answer does not parse.
        """
        return self._ask(completion, answer)

    def gold_problem(self, answer: str) -> str | None:
        """Reason why `answer` cannot be compared with, None if it parses."""
        if _SURE.fullmatch(answer):
            return None
        try:
            return None if self._ask(None, answer) else "does not parse as mathematics"
        except RuntimeError as error:
            return f"cannot be parsed ({one_line(error)})"

    def _ask(self, completion: str | None, answer: str) -> bool:
        worker = self._running_worker()
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([completion, answer, self.limit_s]) + "\n")
        worker.stdin.flush()
        reply = json.loads(self._reply())
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
        self._reply()
        return self._worker

    def _reply(self) -> str:
        try:
            line = self._replies.get(timeout=WALL_LIMIT_S)
        except queue.Empty:
            self._end()
            raise MathTimeLimit(f"no verdict within {WALL_LIMIT_S:g} s of wall-clock time") from None
        if line:
            return line
        if self._end() == -signal.SIGPROF:
            raise MathTimeLimit(f"no verdict within {self.limit_s:g} s")
        raise RuntimeError("the math worker ended unexpectedly")

    def _end(self) -> int | None:
        """End the worker; its exit status, negative where a signal ended it."""
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        try:
            return worker.wait(timeout=1)
        except subprocess.TimeoutExpired:
            worker.kill()
            return worker.wait()


def _forward(stream: IO[str], replies: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        replies.put(line)
    replies.put("")


def _serve() -> None:
    # math-verify's own limits use signals that do nothing here: the parent process keeps the time.
    from math_verify import parse, verify

    sample = parse(r"$\frac{x^2}{2}$", parsing_timeout=0)  # builds the parsers, which takes longer than any one answer
    verify(sample, parse("$(x+1)^2$", parsing_timeout=0), timeout_seconds=0)
    print(_READY, flush=True)
    for line in sys.stdin:
        completion, answer, limit_s = json.loads(line)
        # Left to its default action, the signal ends even a computation deep in C that no exception could interrupt.
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            gold = parse(as_math(answer), parsing_timeout=0)
            # Text alone is what math-verify falls back on: it could only be compared letter by letter.
            parses = not all(isinstance(part, str) for part in gold)
            if completion is None:
                reply = {"correct": parses}
            elif parses:
                said = parse(completion, parsing_timeout=0)
                reply = {"correct": bool(said and verify(gold, said, timeout_seconds=0))}
            else:
                reply = {"error": f"the answer {answer[:40]!r} does not parse as mathematics"}
        except Exception as error:  # whatever sympy raises belongs to this one completion
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve()
