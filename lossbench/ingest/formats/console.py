"""Console output of verl, of TRL and ms-swift, and of slime, as saved by nohup, W&B (output.log) or a scheduler.

verl: `step:12 - actor/pg_loss:np.float64(0.035) - response_length/mean:950.1 - …`, one line a step, maybe behind
`(TaskRunner pid=1)`, repeated after a resume; step 0 is validation alone. TRL and ms-swift: a Python dict per logging
step, `{'loss': 0.01, 'reward': '0.75', 'epoch': 0.1}`, which holds no step: it is told from the progress bar's counters
before it, else from the number of the dict. slime: `perf 12: {'rollout/raw_reward': .68, …}`. Nothing is evaluated.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from lossbench.ingest.base import Format, IngestedRun, Request, files_that, one_run
from lossbench.ingest.curves import add_logs

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
_VERL = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
_VERL_PAIR = re.compile(rf"([^\s:]+):(?:np\.\w+\()?({_NUMBER})\)?(?= - |\s*$)")
_PAIR = re.compile(rf"'([^']+)': (?:np\.\w+\()?['\"]?({_NUMBER})['\"]?\)?")
_DICT = re.compile(r"\{'[^{}]*\}")
_SLIME = re.compile(r"\w+ (\d+): (\{'.*\})")
_BAR = re.compile(r"(\d+)/(\d+) \[")
_SUFFIXES = ("", ".log", ".txt", ".out", ".err")
_FIRST_LINES = 20_000

Rows = Iterable[tuple[int, dict[str, str]]]


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield from line.split("\r")


def _matching(line_of: re.Pattern[str], pair: re.Pattern[str], lines: Iterator[str], run: IngestedRun) -> Rows:
    """Rows of a console whose lines say the step, and behind it the metrics."""
    return ((int(match[1]), dict(pair.findall(match[2]))) for line in lines if (match := line_of.search(line)))


def _trl(lines: Iterator[str], run: IngestedRun) -> Rows:
    rows: list[tuple[int, dict[str, str]]] = []
    counter = total = 0
    for line in lines:
        found = _DICT.search(line)
        for match in _BAR.finditer(line, 0, found.start() if found else len(line)):
            if int(match[2]) >= total:  # not an evaluation's bar
                counter, total = int(match[1]), int(match[2])
        row = dict(_PAIR.findall(found[0])) if found else {}
        if ("loss" in row or "reward" in row) and "epoch" in row:
            rows.append((counter, row))
    run.steps_planned = total or None
    # A bar is printed some steps late, but never early; so the largest ratio is nearest to the period of logging.
    every = max((round(at / k) for k, (at, _) in enumerate(rows, start=1)), default=0) or 1
    if rows and not total:
        run.notes.append("the console says no steps: its rows are counted, one step each")
    elif every > 1:
        run.notes.append(f"step metrics are means over {every} steps, as the progress bar says")
    yield from ((k * every, row) for k, (_, row) in enumerate(rows, start=1))


def _format(name: str, summary: str, parse: Callable[[Iterator[str], IngestedRun], Rows]) -> Format:
    def begins_so(file: Path) -> bool:
        some = islice(_lines(file), _FIRST_LINES)
        return file.suffix in _SUFFIXES and any(row for _, row in parse(some, IngestedRun(file, file.name)))

    def fill(file: Path, run: IngestedRun, request: Request) -> None:
        add_logs(run, list(parse(_lines(file), run)), request)

    return Format(name, summary, files_that(begins_so, in_folders=False), one_run(fill))


VERL = _format(
    "verl-console", "verl's console output: a line of metrics per step", partial(_matching, _VERL, _VERL_PAIR)
)
TRL = _format("trl-console", "console output of TRL or ms-swift: a dict of metrics per logging step", _trl)
SLIME = _format(
    "slime-console", "slime's console output: a dict of metrics per step", partial(_matching, _SLIME, _PAIR)
)
