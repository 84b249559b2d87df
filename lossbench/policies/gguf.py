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
from lossbench.policies.loaded import from_folder
from lossbench.policies.warmstart import built_once, cache_dir

_VERSION = 1
"""Part of the cache key: raised whenever the code below makes another folder from the same file."""


def cached_folder(file: Path) -> Path:
    """The cache folder of the model of `file`, converted or not; its name tells the file's contents.

    Raises UsageError where it is not converted and the package `gguf` is missing.
    """
    stat = file.stat()
    folder = cache_dir() / "models" / f"{file.stem}-{_digest(file, stat.st_size, stat.st_mtime_ns)[:12]}"
    if not folder.is_dir():
        require(f"model '{file}'", "gguf", "gguf")
    return folder


def converted(file: Path) -> Path:
    """The folder with the float32 model and tokenizer of `file`; converts it where it is missing.

    Raises UsageError where the package `gguf` is missing or transformers cannot read the file.
    """
    return built_once(cached_folder(file), lambda unfinished: _convert(file, unfinished))


@cache  # a run asks for its model's folder several times, and the file is large
def _digest(file: Path, size_bytes: int, changed_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.sha256(f"{_VERSION}".encode())).hexdigest()


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
