"""Warm start of the built-in policy: built once by supervised learning and kept in the cache.

The folder is named after the hash of its configuration, and appears by rename: readers always see it whole.
"""

import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.locks import exclusive
from lossbench.policies.loaded import hide_progress_bars
from lossbench.policies.tiny import Phase, TinyPolicy, make_model, make_tokenizer, phases, write_completion
from lossbench.tasks.selfcheck import SelfCheck

RECIPE_VERSION = 2
"""Part of the cache key: raised whenever the code below builds other weights from the same configuration."""

POLICY_FILE = "policy.json"
ATTEMPTS = 3
_SEEDS_APART = 1_000_003  # of one attempt from the next
IGNORED = -100
_PASS_ROWS = 16  # rows that share a pass through the model: neighbours in length, which halves the padding
_SHORT_TOKENS = 20  # rows up to this length are passed through the model together: there is little padding to save

OnStep = Callable[[int, int], None]


def cache_dir() -> Path:
    """Folder of built policies: `LOSSBENCH_CACHE`, else the platform's cache folder."""
    from platformdirs import user_cache_path

    override = os.environ.get("LOSSBENCH_CACHE")
    return Path(override).expanduser() if override else user_cache_path("lossbench")


def policy_key(policy: TinyPolicy) -> str:
    """Twelve hex digits that name the weights this configuration gives."""
    text = json.dumps({"version": RECIPE_VERSION, **policy.as_dict()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def policy_path(policy: TinyPolicy) -> Path:
    """The cache folder of this policy, built or not."""
    return cache_dir() / "policies" / f"tiny-{policy_key(policy)}"


def ensure_policy(policy: TinyPolicy, on_step: OnStep | None = None) -> Path:
    """The folder that holds the warm-started policy; builds it first where it is missing.

    Processes that ask at once build it once. `on_step(done, total)` is called as the warm start goes. One thread, so
    that the weights do not depend on how many cores there are.
    """
    return built_once(policy_path(policy), lambda folder: _build(policy, folder, on_step))


def built_once(path: Path, build: Callable[[Path], None]) -> Path:
    """The folder `path` of the cache; where it is missing, `build` fills it under another name first.

    Processes that ask at once build it once. Raises UsageError where the cache cannot be written.
    """
    if path.is_dir():
        return path
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(path.with_suffix(".lock")))
            if path.is_dir():
                return path
            for left_over in path.parent.glob(f".{path.name}-*"):  # by a builder that was killed
                shutil.rmtree(left_over)
            unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        except OSError as error:
            hint = "set LOSSBENCH_CACHE to a folder that can be written"
            raise UsageError(f"cannot write to the cache '{path.parent}' ({error.strerror}): {hint}") from None
        held.callback(shutil.rmtree, unfinished, ignore_errors=True)
        build(unfinished)
        unfinished.rename(path)
    return path


def _build(policy: TinyPolicy, folder: Path, on_step: OnStep | None) -> None:
    """Warm-start and save the policy into `folder`.

    A warm start amplifies the rounding of the processor it runs on, and now and then one never learns the sums: nothing
    could be told from such a policy, so it is begun again from other random numbers.
    """
    import torch

    hide_progress_bars()
    tokenizer = make_tokenizer()
    least = policy.least_knowledge * (1 - policy.corrupted_answers)
    tried = []
    for attempt in range(ATTEMPTS):
        seed = policy.policy_seed + _SEEDS_APART * attempt
        with ExitStack() as held:
            held.enter_context(torch.random.fork_rng(devices=[]))
            held.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            torch.manual_seed(seed)
            model = make_model(policy, len(tokenizer))
            _train(policy, model, tokenizer, random.Random(seed), on_step)
        tried.append(accuracy(model, tokenizer))
        if tried[-1] >= least:
            break
    else:
        said = ", ".join(f"{share:.3f}" for share in tried)
        raise UsageError(f"warm start of {policy}: accuracy {said} in {ATTEMPTS} attempts, {least:.3f} is needed")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    built = {**policy.as_dict(), "attempt": len(tried), "accuracy": round(tried[-1], 4)}
    (folder / POLICY_FILE).write_text(json.dumps(built, indent=2), encoding="utf-8")


def accuracy(model, tokenizer) -> float:
    """Probability that a sampled completion gives the right answer, mean over all hundred sums, without sampling."""
    import torch

    prompts = SelfCheck().train_prompts
    ids_BT = torch.tensor([tokenizer.encode(prompt.text + prompt.answer) for prompt in prompts])
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    with torch.no_grad():
        # What follows the prompt, its first digit and its second: two digits of the answer, and then no third.
        probabilities_B3V = model(input_ids=ids_BT).logits[:, -3:].double().softmax(-1)
    answer_B2 = probabilities_B3V[:, :2].gather(-1, ids_BT[:, -2:, None]).squeeze(-1)
    ends_B = 1 - probabilities_B3V[:, 2, digits].sum(-1)
    return (answer_B2.prod(-1) * ends_B).mean().item()


def _train(policy: TinyPolicy, model, tokenizer, rng: random.Random, on_step: OnStep | None) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    steps = [(phase, step) for phase in phases(policy) for step in range(phase.steps)]
    model.train()
    for done, (phase, step) in enumerate(steps, start=1):
        for group in optimizer.param_groups:
            group["lr"] = phase.lr * 0.5 * (1 + math.cos(math.pi * step / phase.steps))
        _accumulate_gradients(model, _rows(policy, phase, tokenizer, rng), tokenizer.pad_token_id)
        optimizer.step()
        optimizer.zero_grad()
        if on_step:
            on_step(done, len(steps))
    model.eval()


def _rows(policy: TinyPolicy, phase: Phase, tokenizer, rng: random.Random) -> list[tuple[list[int], int]]:
    """A batch of (token ids, prompt length), shortest first."""
    id_of = tokenizer.get_vocab()  # one token per character: a look-up is ten times faster than encoding
    rows = []
    for _ in range(policy.warmstart_batch):
        a, b = rng.randrange(10), rng.randrange(10)
        prompt = f"{a}+{b}="
        text = prompt + write_completion(policy, phase, a, b, rng)
        rows.append(([*(id_of[character] for character in text), tokenizer.eos_token_id], len(prompt)))
    return sorted(rows, key=lambda row: len(row[0]))


def _accumulate_gradients(model, rows: list[tuple[list[int], int]], pad_id: int) -> None:
    """Add the gradient of the mean cross-entropy per completion token over all rows, which are sorted by length."""
    import torch

    pass_rows = len(rows) if len(rows[-1][0]) <= _SHORT_TOKENS else _PASS_ROWS
    tokens = sum(len(ids) - prompt for ids, prompt in rows)
    for start in range(0, len(rows), pass_rows):
        part = rows[start : start + pass_rows]
        width = len(part[-1][0])
        ids_BT = torch.tensor([ids + [pad_id] * (width - len(ids)) for ids, _ in part])
        labels_BT = torch.tensor(
            [[IGNORED] * prompt + ids[prompt:] + [IGNORED] * (width - len(ids)) for ids, prompt in part]
        )
        logits_BTV = model(input_ids=ids_BT).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        (loss / tokens).backward()
