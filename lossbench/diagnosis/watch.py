"""`watch`: reward functions of one's own TRL script, wrapped so that they also record what happens to length.

TRL hands a reward function the completions' token ids, the trainer's state and a way to log; nothing else of the
trainer is touched. A version of TRL that hands over no `log_metric` is recorded, but nothing reaches its loggers.
"""

import atexit
import hashlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.diagnosis.diagnose import compared_modes, from_series
from lossbench.diagnosis.watch_folder import WatchFolder, rank
from lossbench.errors import UsageError
from lossbench.ingest.run_config import mode_of_config
from lossbench.loss.modes import Mode, parse_mode
from lossbench.metrics.push import BRANCHES, hazards, pushes
from lossbench.store.step_row import Rollout, sampling_row
from lossbench.tasks.judging import plain_text

_log = logging.getLogger(__name__)
_OF_TRL = {"prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra", "environments"}


def watch(
    reward_funcs: Any,
    config: Any = None,
    *,
    save: str | Path | None = None,
    correct_above: float = 0.5,
    correct: Callable[..., bool] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    mode: str | None = None,
) -> Any:
    """Wrap a reward function, or a list of them, for `GRPOTrainer(reward_funcs=...)`; their rewards stay as they are.

    Args:
        reward_funcs: whatever TRL takes: a callable, plain or async, or a list whose members may also be reward models.
        config: the `GRPOConfig`; gives the cap, the group size, the reward weights and the loss mode.
        save: folder that keeps every completion in lossbench's schema, for `lossbench report` and `diagnose`.
        correct_above: a completion counts as right where its reward (weighted sum) is above this.
        correct: in place of the reward: called with prompt, completion and the data set's columns by name.
        eos_token_id: ids that end a completion, where the tokenizer's own is not all.
        mode: the loss mode, where `config` does not tell.

    Raises UsageError for an unknown mode, a folder of something else, and functions that are not callable.
    """
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    weights = getattr(config, "reward_weights", None) or [1.0] * len(functions)
    if len(weights) != (count := len(functions)):
        raise UsageError(f"reward_weights has {len(weights)} numbers for {count} watched functions: wrap them all")
    known = _mode_of(config, mode)
    if save is not None and known is None:
        raise UsageError("watch(save=...) needs the loss mode: give the GRPOConfig, or mode='grpo'")
    eos_ids = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    path = Path(save) if save is not None else None
    watcher = Watcher(config, known, path, weights, eos_ids, correct_above, correct)
    wrapped = [watcher.wrap(function, number) for number, function in enumerate(functions)]
    return wrapped if isinstance(reward_funcs, list | tuple) else wrapped[0]


def _mode_of(config: Any, name: str | None) -> Mode | None:
    """The loss mode by name, else by the settings of a `GRPOConfig`; None where neither tells. Raises UsageError."""
    try:
        name = mode_of_config(vars(config)) if name is None and config is not None else name
        return None if name is None else parse_mode(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


@dataclass
class Generation:
    """One call's completions on this process: TRL's arguments, and by number the rewards of each function, length B."""

    step: int
    evaluation: bool
    call: Mapping[str, Any]
    rewards: dict[int, list[float | None]] = field(default_factory=dict)


@dataclass
class Watcher:
    """Collects what all watched functions give for one generation, then records and logs it."""

    config: Any
    mode: Mode | None
    save: Path | None
    weights: Sequence[float]
    eos_ids: set[int]
    correct_above: float
    correct: Callable[..., bool] | None
    folder: WatchFolder | None = None
    series: list[dict[str, Any]] = field(default_factory=list)
    _wrapped: int = 0
    _open: Generation | None = None
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        atexit.register(self._at_exit)

    def wrap(self, function: Any, number: int) -> Any:
        """The function as TRL is to call it; a reward model is left as it is, and counts in no verdict."""
        if isinstance(function, str) or hasattr(function, "forward"):
            self._tell_once("a reward model's rewards are not seen: verdicts come from the watched functions alone")
            return function
        if not callable(function):
            raise UsageError(f"reward function {function!r} is not callable")
        self._wrapped += 1
        given: Callable[..., Any] = function

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            rewards = await given(*args, **kwargs)
            self._take(number, kwargs, rewards)
            return rewards

        def called(*args: Any, **kwargs: Any) -> Any:
            rewards = given(*args, **kwargs)
            self._take(number, kwargs, rewards)
            return rewards

        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        watched = awaited if is_async else called
        watched.__name__ = getattr(function, "__name__", type(function).__name__)
        watched.__doc__ = getattr(function, "__doc__", None)
        return watched

    def _take(self, number: int, call: Mapping[str, Any], rewards: Sequence[Any]) -> None:
        """Add one function's rewards; the generation is recorded once every watched function has been called on it."""
        ids = call.get("completion_ids")
        if ids is None:
            raise UsageError("this TRL hands reward functions no completion_ids, which lossbench.watch needs")
        if self._open is None or self._open.call["completion_ids"] is not ids:
            self._open = self._begin(call)
        if len(rewards) == len(ids):  # else TRL raises, and names the function; None and NaN are no reward, as in TRL
            known = [None if reward is None else float(reward) for reward in rewards]
            self._open.rewards[number] = [None if r is None or math.isnan(r) else r for r in known]
        if len(self._open.rewards) == self._wrapped:
            generation, self._open = self._open, None
            self._record(generation, call.get("log_metric"))

    def _begin(self, call: Mapping[str, Any]) -> Generation:
        """The call's generation; what `watch` was not told comes from the trainer that `log_metric` is bound to."""
        trainer = getattr(call.get("log_metric"), "__self__", None)
        if self.config is None:
            self.config = getattr(trainer, "args", None)
            self.mode = self.mode or _mode_of(self.config, None)
        eos = getattr(getattr(trainer, "processing_class", None), "eos_token_id", None)
        self.eos_ids |= set() if eos is None else {eos}
        model = getattr(trainer, "model", None)
        if model is None:
            self._tell_once("evaluation cannot be told from training in this TRL: evaluations count as training")
        step = int(getattr(call.get("trainer_state"), "global_step", len(self.series))) + 1
        return Generation(step, model is not None and not model.training, call)

    def _record(self, generation: Generation, log_metric: Callable[[str, float], None] | None) -> None:
        rows = self._rows(generation)
        if not rows:
            return
        figures = sampling_row(rows)
        metrics = length_metrics(rows, figures, self.mode, getattr(self.config, "num_generations", None))
        if not generation.evaluation:
            self.series.append({"step": generation.step, **figures, **metrics})
        if self.save is not None and self.mode is not None:
            self.folder = self.folder or WatchFolder(self.save, self.mode, self.config)
            self.folder.record(generation.step, rows, None if generation.evaluation else figures)
        if log_metric is None:
            self._tell_once("this TRL hands reward functions no log_metric: nothing reaches its loggers")
            return
        for name, value in metrics.items():
            log_metric(f"lossbench/{name}", value)

    def _rows(self, generation: Generation) -> list[Rollout]:
        """The generation's completions with their verdicts, in order; groups are runs of one prompt."""
        call = generation.call
        groups = group_numbers(call["prompts"], getattr(self.config, "num_generations", None))
        first = rank() * len(groups)  # processes number their groups apart
        rows = []
        for i, ((group, sample), ids) in enumerate(zip(groups, call["completion_ids"], strict=True)):
            prompt = plain_text(call["prompts"][i])
            # as TRL adds them up: over the rewards that exist
            given = [(self.weights[n], values[i]) for n, values in generation.rewards.items()]
            there = [weight * reward for weight, reward in given if reward is not None]
            reward = sum(there) if there else None
            row = Rollout(
                generation=len(self.series) + 1, prompt_id=_prompt_id(prompt), group=first + group, sample=sample,
                length_tokens=len(ids), terminated=self._terminated(ids), reward=reward,
                correct=self._correct(call, i, reward), advantage=None,
                prompt=prompt, completion=plain_text(call["completions"][i]),
            )  # fmt: skip
            rows.append(row)
        return rows

    def _terminated(self, ids: Sequence[int]) -> bool | None:
        """Shorter than the cap, or the last id ends a completion; None where neither is known."""
        cap = getattr(self.config, "max_completion_length", None)
        if ids and int(ids[-1]) in self.eos_ids:
            return True
        return len(ids) < cap if cap else False if self.eos_ids else None

    def _correct(self, call: Mapping[str, Any], row: int, reward: float | None) -> bool | None:
        if self.correct is None:
            return None if reward is None else reward > self.correct_above
        columns = {name: v[row] for name, v in call.items() if name not in _OF_TRL and isinstance(v, list)}
        return bool(self.correct(call["prompts"][row], call["completions"][row], **columns))

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning("lossbench.watch: %s", sentence)

    def _at_exit(self) -> None:
        if self.folder is not None:
            self.folder.close()
        if self.series and rank() == 0:
            found = from_series(self.series, self.mode.name if self.mode else "this loss")
            print(" ".join(["lossbench:", found.headline, found.advice, *([found.paste] if found.paste else [])]))


def _prompt_id(prompt: str) -> int:
    """A number of the prompt's text, the same in every process and after a restart."""
    return int(hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:12], 16)


def group_numbers(prompts: Sequence[Any], num_generations: int | None) -> list[tuple[int, int]]:
    """Number of the group and of the sample in it, per row: rows of one prompt in a row, at most a group's size.

    >>> group_numbers(["a", "a", "b", "b", "b", "b"], 2)
    [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    """
    found: list[tuple[int, int]] = []
    for i, prompt in enumerate(prompts):
        group, sample = found[-1] if found else (-1, -1)
        same = i > 0 and prompt == prompts[i - 1] and sample + 1 != num_generations
        found.append((group, sample + 1) if same else (group + 1, 0))
    return found


def length_metrics(
    rows: Sequence[Rollout], figures: Mapping[str, Any], mode: Mode | None, group_size: int | None
) -> dict[str, float]:
    """Metrics of one generation for the trainer's loggers; figures that it lacks are left out.

    Pushes are over the groups that are whole on this process, of the run's own mode and of `COMPARED`.
    """
    wrong, right = figures["length_incorrect"], figures["length_correct"]
    found = {"length_incorrect": wrong, "length_correct": right}
    found["length_ratio"] = wrong / right if wrong and right else None
    names = ("group", "length_tokens", "terminated", "correct", "reward")
    table = {name: np.array([getattr(row, name) for row in rows], dtype=float) for name in names}  # None is NaN
    table["step"] = np.zeros(len(rows))
    for branch, value in BRANCHES.items():
        ended = table["terminated"][(table["correct"] == value) & ~np.isnan(table["terminated"])]
        found[f"truncated_{branch}"] = 1 - ended.mean() if len(ended) else None
    found |= {f"stop_{name}": values[0] for name, values in hazards(table).items() if name != "step"}
    if group_size is not None:
        sizes = np.bincount(table["group"].astype(int))[table["group"].astype(int)]
        whole = {name: values[sizes == group_size] for name, values in table.items()}
        for name, pushed in pushes(whole, compared_modes(mode)).items() if len(whole["step"]) else ():
            found |= {f"{key}/{name}": pushed[key][0] for key in ("push_incorrect", "push_correct")}
    return {name: float(value) for name, value in found.items() if value is not None and not np.isnan(value)}
