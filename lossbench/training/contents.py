"""Fingerprints of what a run reads, its prompts, task file and model; its id covers settings as they were typed."""

import hashlib
import json
from pathlib import Path

from lossbench.policies.adapters import adapter_base
from lossbench.policies.hub import resolve
from lossbench.policies.load import is_built_in
from lossbench.tasks import Task
from lossbench.tasks.user_file import is_file_reference
from lossbench.training.run_spec import Settings

Contents = dict[str, dict[str, str]]
"""What was read -> its `sha256`, and its `path` where it is a file or folder of this machine."""

_WEIGHTS = (".safetensors", ".gguf", ".bin")
_TEXTS = (".json", ".txt", ".model", ".jinja")
_BLOCKS, _BLOCK_BYTES = 64, 2**16  # of each file of weights; training moves nearly all of them


def task_contents(settings: Settings, task: Task | None) -> Contents:
    """Fingerprints of the task's prompts with their answers (none where `task` is None) and of its Python file."""
    found: Contents = {}
    params = json.dumps(settings.task_params, sort_keys=True) if settings.task_params else ""
    if task is not None:
        prompts = [[(p.id, p.text, p.answer) for p in part] for part in (task.train_prompts, task.eval_prompts)]
        digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
        found[f"task {settings.task} {params}".strip()] = {"sha256": digest}
    if is_file_reference(settings.task):
        path = Path(settings.task.partition(":")[0])
        found[f"task file {path}"] = {"sha256": _digest(path), "path": str(path.resolve())}
    return found


def model_contents(policy: str) -> Contents:
    """Fingerprint of a model (its commit, or its configuration, tokenizer and a sample of its weights) and its base.

    Empty for built-in policies, whose weights each machine makes itself.
    """
    if is_built_in(policy):
        return {}
    source = resolve(policy)
    files = sorted(path for path in source.folder.iterdir() if path.suffix in _WEIGHTS + _TEXTS and path.is_file())
    listing = "".join(f"{path.name} {_digest(path)}\n" for path in files)
    digest = source.commit or hashlib.sha256(listing.encode()).hexdigest()
    found: Contents = {f"model {policy}": {"sha256": digest, "path": str(source.folder.resolve())}}
    base = adapter_base(source.folder, policy)
    return found | (model_contents(base) if base else {})


def _digest(path: Path) -> str:
    """SHA-256 of the file; of its size and evenly spaced blocks where it holds weights."""
    if path.suffix not in _WEIGHTS:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for block in range(_BLOCKS):
            file.seek(block * max(size - _BLOCK_BYTES, 0) // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
