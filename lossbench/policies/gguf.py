"""A `.gguf` file as an ordinary model folder in the cache, converted once.

transformers reads the quantised weights as float32, but wraps the model as quantised: it then refuses to be saved or
trained. So the weights go into a new model of the same configuration without its `quantization_config`.
"""

import hashlib
import io
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path

from lossbench.errors import UsageError, one_line
from lossbench.extras import require
from lossbench.policies.pretrained import from_folder
from lossbench.policies.warmstart import built_once, cache_dir

_VERSION = 1
"""Part of the cache key: raised whenever the code below makes another folder from the same file."""


def is_converted(file: Path) -> bool:
    """Whether the cache has the model of `file`. Raises UsageError if it has not and the package `gguf` is missing."""
    return _is_ready(_folder(file), file)


def _is_ready(folder: Path, file: Path) -> bool:
    if folder.is_dir():
        return True
    require(f"model '{file}'", "gguf", "gguf")
    return False


def gguf_folder(file: Path) -> Path:
    """The cache folder with the float32 model and tokenizer of `file`; converts it where it is missing.

    The folder is named after the file's contents. Raises UsageError where the package `gguf` is missing or the file
    is no model that transformers can read.
    """
    folder = _folder(file)
    if _is_ready(folder, file):
        return folder
    return built_once(folder, lambda unfinished: _convert(file, unfinished))


def _folder(file: Path) -> Path:
    return cache_dir() / "models" / f"{file.stem}-{_digest(file)[:12]}"


def _digest(file: Path) -> str:
    stat = file.stat()
    return _digest_of(file, stat.st_size, stat.st_mtime_ns)


@cache  # a run asks for its model's folder several times, and the file is large
def _digest_of(file: Path, size_bytes: int, changed_ns: int) -> str:
    digest = hashlib.sha256(f"{_VERSION}".encode())
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with redirect_stderr(io.StringIO()):  # the bar of the conversion does not ask whether bars are wanted
            tokenizer = from_folder(AutoTokenizer, file.parent, gguf_file=file.name)
            wrapped = from_folder(AutoModelForCausalLM, file.parent, gguf_file=file.name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(f"model '{file}': transformers cannot read it ({one_line(error)})") from error
    config = wrapped.config
    vars(config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(wrapped.state_dict())
    model.generation_config = wrapped.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
