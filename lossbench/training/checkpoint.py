"""Checkpoints of a run: which one is whole, whose it is, and when one may be taken.

A killed run can leave half of one: it counts once it is sealed, by a small file written last that names the run.
"""

import re
import shutil
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.store.read import RUN_FILE, read_json
from lossbench.store.write import write_json
from lossbench.training.run_spec import RunSpec, Settings

CHECKPOINTS = "checkpoints"
_SEAL = "lossbench.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def checkpoint_steps(settings: Settings) -> int | None:
    """`checkpoint_every`, rounded up to steps at which a window ends and a generation is used up; None for never.

    >>> checkpoint_steps(Settings(checkpoint_every=5, steps_per_generation=4, gradient_accumulation_steps=2))
    6
    """
    if settings.checkpoint_every is None:
        return None
    reuse = settings.micro_batches_per_generation * settings.num_iterations
    step = settings.checkpoint_every
    while step * settings.gradient_accumulation_steps % reuse:
        step += 1
    return step


def seal(run_dir: Path, step: int, run_id: str, verifier_errors: int = 0) -> None:
    """Declare the checkpoint of this step whole, as one of the run `run_id`, whose verifier has failed so often."""
    found = {"run_id": run_id, "verifier_errors": verifier_errors}
    write_json(run_dir / CHECKPOINTS / f"checkpoint-{step}" / _SEAL, found)


def verifier_errors_at(checkpoint: Path) -> int:
    """Number of failures of the run's verifier when the checkpoint was sealed."""
    return read_json(checkpoint / _SEAL).get("verifier_errors", 0)


def newest_checkpoint(run_dir: Path, spec: RunSpec) -> tuple[int, Path] | None:
    """Step and folder of the run's newest sealed checkpoint.

    Raises UsageError where it belongs to another run: continuing from it would mix two experiments.
    """
    sealed = _checkpoints(run_dir / CHECKPOINTS, sealed=True)
    if not sealed:
        return None
    step, newest = sealed[-1]
    owner = read_json(newest / _SEAL).get("run_id")
    if owner != spec.run_id:
        raise UsageError(
            f"'{newest}' is a checkpoint of another plan (run {owner}): remove it, or start over with --fresh"
        )
    return step, newest


def run_of_checkpoints(folder: Path) -> Path:
    """The folder that names the run whose checkpoints are in `folder`: itself, or the one around `checkpoints`."""
    folder = folder.resolve()
    return folder.parent if folder.name == CHECKPOINTS else folder


def saved_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Step and folder of each checkpoint in `folder`, in order of steps.

    `folder` is any Trainer's output_dir, or a run of lossbench (or its `checkpoints`), of which only sealed ones count.
    Raises UsageError if none exists.
    """
    run_dir = run_of_checkpoints(folder)
    ours = (run_dir / RUN_FILE).is_file()
    found = _checkpoints(run_dir / CHECKPOINTS if ours else folder, sealed=ours)
    if not found:
        raise UsageError(
            f"'{folder}' has no folder checkpoint-<step>; valid: a Trainer's output_dir, or a run that is not "
            "completed (completed runs keep none: record their probes with sweep --probe-every)"
        )
    return found


def drop_unsealed(run_dir: Path) -> None:
    """Remove checkpoints that were being written when their run was killed."""
    for _, path in _checkpoints(run_dir / CHECKPOINTS):
        if not (path / _SEAL).is_file():
            shutil.rmtree(path)


def drop_checkpoints(run_dir: Path) -> None:
    """Remove all checkpoints of a run that needs none any more."""
    if (run_dir / CHECKPOINTS).is_dir():
        shutil.rmtree(run_dir / CHECKPOINTS)


def _checkpoints(folder: Path, sealed: bool = False) -> list[tuple[int, Path]]:
    """Step and folder of each checkpoint, in order of steps."""
    names = ((_NAME.fullmatch(path.name), path) for path in folder.glob("checkpoint-*"))
    found = [(int(name[1]), path) for name, path in names if name and (not sealed or (path / _SEAL).is_file())]
    return sorted(found)
