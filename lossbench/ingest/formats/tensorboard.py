"""TensorBoard event files, with tags such as `train/reward` and `train/completions/mean_length`."""

from collections.abc import Iterator
from pathlib import Path

from lossbench.extras import require
from lossbench.ingest.base import Format, IngestedRun, Request, named_run
from lossbench.ingest.curves import add_logs

_MARK = b"brain.Event:"  # the version that the first record of an event file names


def found(path: Path) -> str | None:
    """Name of the file that makes `path` a folder of event files, or one of them."""
    files = _files(path)
    return files[0].name if files else None


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    return [file for file in files if _is_events(file)]


def _is_events(file: Path) -> bool:
    with file.open("rb") as stream:
        return _MARK in stream.read(64)


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run whose events are in `path`, of a resumed run in several files. Raises UsageError without the extra."""
    require("reading TensorBoard's event files", "tensorboard", "tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    run = named_run(path, request := request.part())
    rows: list[tuple[int, dict[str, float]]] = []
    for file in _files(path):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("tensor") and not value.tensor.tensor_shape.dim and value.tensor.dtype in (1, 2):
                    rows.append((event.step, {value.tag: float(make_ndarray(value.tensor))}))
    add_logs(run, rows, request)
    yield run


FORMAT = Format("TensorBoard event files (extra `tensorboard`)", found, read)
