"""Whether a model can read a task's prompts and write completions up to the cap, as far as its config tells."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lossbench.errors import UsageError
from lossbench.tasks.base import Prompt


def check_texts(task: str, prompts: Iterable[Prompt]) -> None:
    """Raise UsageError for a prompt or answer that is no text: half of a surrogate pair cannot be encoded."""
    for prompt in prompts:
        for name, text in (("prompt", prompt.text), ("answer", prompt.answer)):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = text[error.start].encode("unicode_escape").decode()
                raise UsageError(
                    f"task '{task}': the {name} of number {prompt.id} holds {half}, half of a surrogate pair: fix it"
                ) from None


def check_fit(
    reference: str, config: Any, tokenizer: Any, prompts: Sequence[Prompt], cap: int, say: Callable[[str], None]
) -> None:
    """Check prompts, as the model reads them, and completions of `cap` tokens against its config.

    Raises UsageError for an empty prompt, a token without an embedding, or more tokens than it has positions; `say` is
    told where rotary positions go beyond the context.
    """
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise UsageError(f"model '{reference}': prompt {prompt.id} is empty, without a single token: drop it")
    text = config.get_text_config()
    embedded = getattr(text, "vocab_size", None)
    largest = max(max(map(max, ids)), tokenizer.eos_token_id, tokenizer.pad_token_id)
    if embedded is not None and largest >= embedded:
        raise UsageError(
            f"model '{reference}': its tokenizer has token {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}), "
            f"and its embedding ends at {embedded - 1}: use the tokenizer that the model was trained with"
        )
    longest = max(map(len, ids))
    limit = None if getattr(text, "alibi", False) else getattr(text, "max_position_embeddings", None)
    if limit is not None and longest + cap > limit:
        needed = f"a prompt of {longest} tokens and a cap of {cap} need {longest + cap} positions, and it has {limit}"
        if getattr(text, "rope_parameters", None) is None:  # learned positions are a table that ends there
            raise UsageError(f"model '{reference}': {needed}: lower max_completion_length, or drop long prompts")
        say(f"model {reference}: {needed}; rotary positions go on beyond them, but the model was not trained there")


def check_balancing_loss(name: str, config: Any, coef: float | None) -> None:
    """Raise UsageError for a mixture of experts whose balancing loss TRL would add, and a mode does not state.

    `coef` is TRL's `router_aux_loss_coef`; None is the model's own.
    """
    text = config.get_text_config()
    coef = getattr(text, "router_aux_loss_coef", 0.0) if coef is None else coef
    if coef and hasattr(text, "output_router_logits"):
        raise UsageError(
            f"router_aux_loss_coef={coef:g} of {name} puts the experts' balancing loss into the loss, which no mode "
            "states; use 0"
        )
