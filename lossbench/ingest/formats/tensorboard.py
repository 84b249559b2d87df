"""TensorBoard event files, with tags such as `train/reward` and `train/completions/mean_length`."""

from pathlib import Path

from lossbench.extras import require
from lossbench.ingest.base import Format, IngestedRun, Request, files_that, one_run
from lossbench.ingest.curves import add_logs

_MARK = b"brain.Event:"  # the version that the first record of an event file names


def _is_events(file: Path) -> bool:
    with file.open("rb") as stream:
        return _MARK in stream.read(64)


_files = files_that(_is_events)


def _fill(path: Path, run: IngestedRun, request: Request) -> None:
    """Read the events of a run, of a resumed one in several files. Raises UsageError without the extra."""
    require("reading TensorBoard's event files", "tensorboard", "tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    rows = [
        (event.step, {value.tag: float(make_ndarray(value.tensor))})
        for file in _files(path)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.HasField("tensor") and not value.tensor.tensor_shape.dim and value.tensor.dtype in (1, 2)
    ]
    add_logs(run, rows, request)


FORMAT = Format("tensorboard", "TensorBoard event files (extra `tensorboard`)", _files, one_run(_fill))
