"""Runs on machines that share no file system: folders travel as bytes."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from lossbench.policies.warmstart import cache_dir, exclusive
from lossbench.store.read import RUN_FILE
from lossbench.store.write import part_path
from lossbench.sweep.executors.remote import run_here
from lossbench.training.run_spec import RunSpec

News = tuple[str, int, dict[str, bytes]]  # a run, its step, and files of its folder


def pack(folder: Path) -> bytes:
    """A folder's files as the bytes of a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def replace_folder(folder: Path, packed: bytes) -> None:
    """Make `folder` what `pack` gave: unpacked beside it, then renamed, so that it is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(incoming, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _install_policy(name: str, packed: bytes) -> None:
    """Put a built-in policy into this node's cache, unless it is there."""
    folder = cache_dir() / "policies" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_suffix(".lock")):
        if not folder.is_dir():
            replace_folder(folder, packed)


def run_packed(
    spec_json: str, before: bytes | None, policy: tuple[str, bytes] | None, on_gpu: bool, send: Callable[[News], None]
) -> tuple[str | None, bytes]:
    """Make the run in a folder of this node, which begins as `before` where there is a checkpoint to continue from.

    `policy` is the name and the folder of a built-in one. Returns the reason where the run failed, and its folder.
    `send` is called when the run begins, as step 0, and with each step's files, for those who follow the run.
    """
    spec = RunSpec.model_validate_json(spec_json)
    gpus = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if on_gpu else ()
    if policy:
        _install_policy(*policy)
    with tempfile.TemporaryDirectory(prefix="lossbench-") as root:
        run_dir = Path(root) / spec.run_id
        if before:
            replace_folder(run_dir, before)

        def tell(step: int) -> None:
            files = [run_dir / RUN_FILE, part_path(run_dir, "steps", step)]  # the latter goes when the run has ended
            send((spec.run_id, step, {str(f.relative_to(run_dir)): f.read_bytes() for f in files if f.exists()}))

        return run_here(spec, run_dir, gpus, tell), pack(run_dir)
