"""Real models: a hub id (`id@revision`), a local folder, or a `.gguf` file (`pkg:name`: that of a package), to train.

The network is used only for a hub id that the local cache lacks, and never where `HF_HUB_OFFLINE` is set.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lossbench.errors import UsageError, one_line
from lossbench.network import no_hub
from lossbench.policies.adapters import ADAPTER_FILE, adapter_base, refuse_bad_lora, with_lora, with_trained_adapter
from lossbench.policies.gguf import cached_folder, converted
from lossbench.policies.hardware import placement, torch_dtype
from lossbench.policies.loaded import LoadedPolicy, from_folder

Kind = Literal["hub", "folder", "gguf"]
PACKAGE = "pkg:"
CONVERTED, FETCHED = "converted into the cache", "fetched from the hub"
_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_INDEX = "model.safetensors.index.json"  # which of several weight files holds what
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")


@dataclass(frozen=True)
class Source:
    """A model's files on this machine: `commit` is the hub's commit, None for a local folder or a `.gguf` file."""

    kind: Kind
    folder: Path
    commit: str | None = None


def resolve(reference: str, *, weights: bool = True) -> Source:
    """The files that a model reference names; without `weights` its configuration and tokenizer are enough.

    A hub id is fetched where the local cache lacks it, a `.gguf` file converted into lossbench's cache where it is
    new. `pkg:name` is the `.gguf` file that the installed Python package `name` ships. Raises UsageError where a path
    does not exist, or is neither a model's folder nor a `.gguf` file, or the hub id is not available.
    """
    path = _local(reference)
    if path is None:
        folder = _hub_folder(reference, weights)
        return Source("hub", folder, folder.name)
    return Source("gguf", converted(path)) if path.suffix == ".gguf" else Source("folder", path)


def first_use(reference: str) -> str | None:
    """Work left for the first use of the model; None if its files are here, ready to be loaded.

    Fetches and converts nothing. Raises UsageError as `resolve` does, except for what only the hub can tell.
    """
    path = _local(reference)
    if path is None:
        return None if _cached(reference, weights=True) else FETCHED
    if path.suffix == ".gguf" and not cached_folder(path).is_dir():
        return CONVERTED
    base = adapter_base(path, reference) if path.is_dir() else None
    return first_use(base) if base else None


def _local(reference: str) -> Path | None:
    """The folder or `.gguf` file that the reference names, None where it is a hub id."""
    path = _packaged(reference) if reference.startswith(PACKAGE) else Path(reference).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UsageError(f"model '{reference}': no such file")
        return path
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "tokenizer_config.json", ADAPTER_FILE)):
            raise UsageError(f"model '{reference}': the folder has no config.json; valid: a folder of save_pretrained")
        return path
    if path.exists() or path.is_absolute() or reference.startswith(("./", "../", "~")):
        raise UsageError(
            f"model '{reference}': no such folder; valid: a folder, a .gguf file, or a hub id (id@revision)"
        )
    return None


def _packaged(reference: str) -> Path:
    """The `.gguf` file of an installed package, found without importing it: a model reference must not run code."""
    package = reference.removeprefix(PACKAGE)
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"model '{reference}': no package '{package}' is installed here")
    files = [file for place in found.submodule_search_locations for file in Path(place).glob("*.gguf")]
    if len(files) != 1:
        raise UsageError(f"model '{reference}': the package has {len(files)} .gguf files; give the path of one")
    return files[0]


def _hub_folder(reference: str, weights: bool) -> Path:
    """The snapshot of `id@revision` in the hub's cache, named after its commit; fetched where it is not there."""
    from huggingface_hub import snapshot_download

    if folder := _cached(reference, weights):
        return folder
    if why_not := no_hub():
        raise UsageError(f"model '{reference}': not in the local cache, and {why_not}")
    name, _, revision = reference.partition("@")
    wanted = [*_TEXT_FILES, *(["*.safetensors"] if weights else [])]
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        why = f"no such model or revision on the hub, or no access ({one_line(error)})"
        raise UsageError(f"model '{reference}': {why}") from error


def _cached(reference: str, weights: bool) -> Path | None:
    """The snapshot in the hub's cache, None where it lacks it. Raises UsageError for what cannot be a hub id."""
    from huggingface_hub import snapshot_download

    name, _, revision = reference.partition("@")
    try:
        folder = Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (OSError, ValueError) as error:
        if "Repo id must" in str(error):
            valid = "neither a folder, nor a .gguf file, nor a hub id (id@revision)"
            raise UsageError(f"model '{reference}': {valid}") from None
        return None
    return folder if not weights or _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    """Whether all weight files are there: a download that was interrupted leaves some of them, or no index."""
    there = {path.name for path in folder.glob("*.safetensors") if path.is_file()}
    index = folder / _INDEX
    if not index.is_file():
        return any(not _SHARD.search(name) for name in there)
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) <= there
    except (ValueError, KeyError):
        return False


def load_pretrained(
    reference: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    lora: Mapping[str, Any] | None = None,
    gradient_checkpointing: bool = False,
    trust_remote_code: bool = False,
) -> LoadedPolicy:
    """The model that `reference` names, on its device, with its tokenizer.

    `device` and `dtype`, that of the weights, are those of `hardware.placement`; `lora` ({"r": 16, "alpha": 32, ...})
    trains adapters only. Of a trained adapter (a LoRA checkpoint) the base model that it names is loaded under it, and
    the adapter alone is trained. Raises UsageError, one line, where the model is not available, has no EOS token, or an
    option does not fit.
    """
    import torch
    import transformers

    place = placement(device, dtype)
    refuse_bad_lora(lora)
    source = resolve(reference)
    base = adapter_base(source.folder, reference)
    if base and lora:
        raise UsageError(f"model '{reference}' is an adapter already: leave --lora out")
    options = {"dtype": torch_dtype(place.weights), "trust_remote_code": trust_remote_code}
    model = _from_folder(transformers.AutoModelForCausalLM, reference, _whole(reference, source), **options)
    tokenizer = load_tokenizer(reference, trust_remote_code=trust_remote_code)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora or base:  # frozen embeddings would cut the graph in front of the first checkpoint
            model.enable_input_require_grads()
    if lora:
        model = with_lora(model, lora)
    elif base:
        model = with_trained_adapter(model, source.folder, reference)
    resolved = {
        "model": reference, "kind": source.kind, "commit": source.commit, "adapter_of": base, "dtype": place.weights,
        "device": place.device, "lora": dict(lora) if lora else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameters_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    return LoadedPolicy(model.to(place.device), tokenizer, resolved)


def load_config(reference: str, *, trust_remote_code: bool = False) -> Any:
    """The configuration that `reference` names, an adapter's that of its base. Raises UsageError as `resolve`."""
    from transformers import AutoConfig

    source = _whole(reference, resolve(reference, weights=False))
    return _from_folder(AutoConfig, reference, source, trust_remote_code=trust_remote_code)


def load_tokenizer(reference: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer that `reference` names, padding on the left; the EOS pads if no padding token is defined.

    Raises UsageError where it is not available or has no EOS token: without one no completion could ever end.
    """
    from transformers import AutoTokenizer

    source = resolve(reference, weights=False)
    if not (source.folder / "tokenizer_config.json").is_file():
        source = _whole(reference, source)
    tokenizer = _from_folder(AutoTokenizer, reference, source, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"model '{reference}': its tokenizer has no EOS token, so no completion could end by itself: choose "
            "another model, or set eos_token in its tokenizer_config.json"
        )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _whole(reference: str, source: Source) -> Source:
    """The files of a whole model: those of its base where `source` is an adapter."""
    base = adapter_base(source.folder, reference)
    try:
        return resolve(base) if base else source
    except UsageError as error:
        raise UsageError(f"model '{reference}' is an adapter whose base is not available: {error}") from error


def _from_folder(kind: Any, reference: str, source: Source, **options: Any) -> Any:
    try:
        return from_folder(kind, source.folder, **options)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"model '{reference}' runs code of its own: allow it with --set trust_remote_code=true"
            ) from error
        raise UsageError(f"model '{reference}': cannot be loaded ({one_line(error)})") from error
