"""Real models: a hub id (`id@revision`), a local folder, or a `.gguf` file, ready to train.

The network is used only for a hub id that the local cache lacks, and never where `HF_HUB_OFFLINE` is set.
"""

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lossbench.errors import UsageError, unknown
from lossbench.policies.gguf import gguf_folder
from lossbench.policies.load import LoadedPolicy

Kind = Literal["hub", "folder", "gguf"]
_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_WEIGHT_FILES = ("*.safetensors",)
LORA_OPTIONS = ("r", "alpha", "dropout", "target_modules")


@dataclass(frozen=True)
class Source:
    """A model's files on this machine: `commit` is the hub's commit, None for a local folder or a `.gguf` file."""

    kind: Kind
    folder: Path
    commit: str | None = None


def resolve(reference: str, *, weights: bool = True) -> Source:
    """The files that a model reference names; without `weights` its configuration and tokenizer are enough.

    A hub id is fetched where the local cache lacks it, a `.gguf` file converted into lossbench's cache where it is
    new. Raises UsageError where a path does not exist, or is neither a model's folder nor a `.gguf` file, or the hub
    id cannot be had.
    """
    path = Path(reference).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UsageError(f"model '{reference}': no such file")
        return Source("gguf", gguf_folder(path))
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "tokenizer_config.json")):
            raise UsageError(f"model '{reference}': the folder has no config.json; valid: a folder of save_pretrained")
        return Source("folder", path)
    if path.exists() or path.is_absolute() or reference.startswith(("./", "../", "~")):
        raise UsageError(
            f"model '{reference}': no such folder; valid: a folder, a .gguf file, or a hub id (id@revision)"
        )
    folder = _hub_folder(reference, weights)
    return Source("hub", folder, folder.name)


def _hub_folder(reference: str, weights: bool) -> Path:
    """The snapshot of `id@revision` in the hub's cache, named after its commit."""
    from huggingface_hub import snapshot_download

    name, _, revision = reference.partition("@")
    wanted = [*_TEXT_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        folder = Path(snapshot_download(name, revision=revision or None, local_files_only=True))
        if not weights or any(folder.glob("*.safetensors")):
            return folder
    except (OSError, ValueError) as error:  # not cached; a malformed id is told apart below, where the hub is asked
        if "Repo id must" in str(error):
            raise UsageError(
                f"model '{reference}': neither a folder, nor a .gguf file, nor a hub id (id@revision)"
            ) from None
    if why_not := _no_hub():
        raise UsageError(f"model '{reference}': not in the local cache, and {why_not}")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model '{reference}': no such model or revision on the hub, or no access ({_one_line(error)})"
        ) from error


def _no_hub() -> str | None:
    """Why nothing can be fetched, or None. Asked first: without a network the hub's client retries for a minute."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE forbids to fetch it"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None
    host = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((host.hostname or "", host.port or 443), timeout=5).close()
    except OSError:
        return f"{constants.ENDPOINT} cannot be reached"
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


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

    `device` "auto" is the GPU where there is one. `dtype` is that of the weights: "auto" keeps them float32
    everywhere, so that small updates are not rounded away (the trainer computes in bfloat16 where the GPU can);
    "bfloat16" is refused where the GPU cannot. `lora` ({"r": 16, "alpha": 32, ...}) trains adapters only. Raises
    UsageError, one line, where the model cannot be had, has no EOS token, or an option does not fit.
    """
    import torch
    import transformers

    place = _device(device)
    weights = _dtype(dtype, place)
    _refuse_bad_lora(lora)
    source = resolve(reference)
    options = {"dtype": weights, "trust_remote_code": trust_remote_code}
    model = _from_folder(transformers.AutoModelForCausalLM, reference, source, **options)
    tokenizer = load_tokenizer(reference, trust_remote_code=trust_remote_code)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora:
        model = _with_lora(model, lora, gradient_checkpointing)
    resolved = {
        "model": reference,
        "kind": source.kind,
        "commit": source.commit,
        "dtype": str(weights).removeprefix("torch."),
        "device": place,
        "lora": dict(lora) if lora else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameters_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return LoadedPolicy(model.to(place), tokenizer, resolved)


def load_tokenizer(reference: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer that `reference` names, padding on the left; the EOS pads where there is no padding token.

    Raises UsageError where it cannot be had or has no EOS token: without one no completion could ever end.
    """
    from transformers import AutoTokenizer

    source = resolve(reference, weights=False)
    tokenizer = _from_folder(AutoTokenizer, reference, source, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise UsageError(f"model '{reference}': its tokenizer has no EOS token, so no completion could end by itself")
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _from_folder(kind: Any, reference: str, source: Source, **options: Any) -> Any:
    try:
        return kind.from_pretrained(source.folder, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UsageError(f"model '{reference}' runs code of its own: allow it with --trust-remote-code") from error
        raise UsageError(f"model '{reference}': cannot be loaded ({_one_line(error)})") from error


def _device(asked: str) -> str:
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(unknown("device", asked, ("auto", "cpu", "cuda")))
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device '{asked}': torch sees no GPU here; valid: auto, cpu")
    return asked


def _dtype(asked: str, device: str) -> Any:
    import torch

    if asked == "bfloat16" and device != "cpu" and not torch.cuda.is_bf16_supported():
        raise UsageError("dtype 'bfloat16': this GPU cannot compute in it; valid: auto, float32")
    dtypes = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if asked not in dtypes:
        raise UsageError(unknown("dtype", asked, dtypes))
    return dtypes[asked]


def _refuse_bad_lora(lora: Mapping[str, Any] | None) -> None:
    if not lora:
        return
    for name in lora:
        if name not in LORA_OPTIONS:
            raise UsageError(unknown("LoRA option", name, LORA_OPTIONS))
    if not isinstance(lora.get("r"), int) or lora["r"] < 1:
        raise UsageError(f"LoRA option r={lora.get('r')}; valid: a whole number >= 1, as in --lora r=16")
    if importlib.util.find_spec("peft") is None:
        raise UsageError("LoRA needs peft: pip install 'lossbench[peft]'")


def _with_lora(model: Any, lora: Mapping[str, Any], gradient_checkpointing: bool) -> Any:
    """`model` with adapters on all its linear layers; alpha defaults to twice r."""
    from peft import LoraConfig, get_peft_model

    if gradient_checkpointing:  # frozen embeddings would cut the graph in front of the first checkpoint
        model.enable_input_require_grads()
    config = LoraConfig(
        r=lora["r"],
        lora_alpha=lora.get("alpha", 2 * lora["r"]),
        lora_dropout=lora.get("dropout", 0.0),
        target_modules=lora.get("target_modules", "all-linear"),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


PromptRenderer = Callable[[str], str]


def chat_renderer(tokenizer: Any, reference: str) -> PromptRenderer:
    """Text -> the model's input text for it as a user's message, by the tokenizer's chat template.

    A leading BOS of the template is dropped where the tokenizer adds one itself. Raises UsageError where there is no
    template, or it fails.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"model '{reference}' has no chat template: ask in plain text with the task's chat=false")
    bos = tokenizer.bos_token
    adds_bos = bos is not None and tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]

    def render(text: str) -> str:
        try:
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is code of the model's author and may raise anything
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"model '{reference}': its chat template fails ({type(error).__name__}: {reason})"
            ) from error
        return rendered.removeprefix(bos) if adds_bos else rendered

    return render
