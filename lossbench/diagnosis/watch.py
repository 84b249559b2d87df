"""`watch`: reward functions of one's own TRL script, wrapped so that they also record what happens to length.

TRL hands a reward function the completions' token ids, the trainer's state and a way to log; nothing else of the
trainer is touched. A version of TRL that hands over no `log_metric` is recorded, but nothing reaches its loggers.
"""

import atexit
import hashlib
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.diagnosis.diagnose import from_series
from lossbench.diagnosis.watch_folder import WatchFolder
from lossbench.diagnosis.watch_metrics import group_numbers, length_metrics
from lossbench.errors import UsageError
from lossbench.ingest.run_config import mode_of_config
from lossbench.loss.modes import Mode, parse_mode
from lossbench.store.step_row import Rollout, sampling_row
from lossbench.tasks.judging import plain_text

_log = logging.getLogger(__name__)
_OF_TRL = {"prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra", "environments"}


@dataclass
class Options:
    """Settings for reading completions: those of the run, and the verdict on a completion."""

    num_generations: int | None = None
    cap: int | None = None
    weights: tuple[float, ...] | None = None
    eos_ids: frozenset[int] = frozenset()
    correct_above: float = 0.5
    correct: Callable[..., bool] | None = None


@dataclass
class Generation:
    """One call's completions on this process, lists of length B; `rewards` has one list per function, None: none."""

    step: int
    evaluation: bool
    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    rewards: dict[int, list[float | None]] = field(default_factory=dict)


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
    eos = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or ()
    options = Options(
        num_generations=getattr(config, "num_generations", None),
        cap=getattr(config, "max_completion_length", None),
        weights=_weights(config, len(functions)),
        eos_ids=frozenset(eos),
        correct_above=correct_above,
        correct=correct,
    )
    watcher = Watcher(options, config, mode, Path(save) if save is not None else None)
    wrapped = [watcher.wrap(function, number) for number, function in enumerate(functions)]
    return wrapped if isinstance(reward_funcs, list | tuple) else wrapped[0]


def _weights(config: Any, functions: int) -> tuple[float, ...] | None:
    weights = getattr(config, "reward_weights", None)
    if weights is not None and len(weights) != functions:
        raise UsageError(f"reward_weights has {len(weights)} numbers for {functions} watched functions: wrap them all")
    return tuple(weights) if weights is not None else None


class Watcher:
    """Collects what all watched functions give for one generation, then records and logs it."""

    def __init__(self, options: Options, config: Any, mode: str | None, save: Path | None) -> None:
        self.options, self.config = options, config
        self.mode = _mode_of(config, mode)
        self.save, self.folder = save, None
        if save is not None and self.mode is None:
            raise UsageError("watch(save=...) needs the loss mode: give the GRPOConfig, or mode='grpo'")
        self.series: list[dict[str, Any]] = []
        self._wrapped = 0
        self._open: Generation | None = None
        self._told: set[str] = set()
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

    def _take(self, number: int, kwargs: Mapping[str, Any], rewards: Sequence[Any]) -> None:
        """Add one function's rewards; the generation is recorded once every watched function has been called on it."""
        ids = kwargs.get("completion_ids")
        if ids is None:
            raise UsageError("this TRL hands reward functions no completion_ids, which lossbench.watch needs")
        if self._open is None or self._open.completion_ids is not ids:
            self._open = self._begin(kwargs)
        if len(rewards) == len(ids):  # else TRL raises, and names the function
            self._open.rewards[number] = [_number(value) for value in rewards]
        if len(self._open.rewards) == self._wrapped:
            generation, self._open = self._open, None
            self._record(generation, kwargs.get("log_metric"))

    def _begin(self, kwargs: Mapping[str, Any]) -> Generation:
        trainer = getattr(kwargs.get("log_metric"), "__self__", None)
        self._learn_from(trainer)
        model = getattr(trainer, "model", None)
        if model is None:
            self._tell_once("evaluation cannot be told from training in this TRL: evaluations count as training")
        state = kwargs.get("trainer_state")
        return Generation(
            step=int(getattr(state, "global_step", len(self.series))) + 1,
            evaluation=model is not None and not model.training,
            prompts=kwargs["prompts"], completions=kwargs["completions"], completion_ids=kwargs["completion_ids"],
            columns={name: values for name, values in kwargs.items() if name not in _OF_TRL},
        )  # fmt: skip

    def _learn_from(self, trainer: Any) -> None:
        """Take what the call did not say from the trainer behind `log_metric`, where it is bound to one."""
        args = getattr(trainer, "args", None)
        if self.config is None and args is not None:
            self.config = args
            self.mode = self.mode or _mode_of(args, None)
        options = self.options
        options.num_generations = options.num_generations or getattr(self.config, "num_generations", None)
        options.cap = options.cap or getattr(self.config, "max_completion_length", None)
        eos = getattr(getattr(trainer, "processing_class", None), "eos_token_id", None)
        if eos is not None:
            options.eos_ids = options.eos_ids | {eos}

    def _record(self, generation: Generation, log_metric: Callable[[str, float], None] | None) -> None:
        rows = self._rows(generation)
        if not rows:
            return
        figures = sampling_row(rows)
        metrics = length_metrics(rows, figures, self.mode, self.options.num_generations)
        if not generation.evaluation:
            self.series.append({"step": generation.step, **figures, **metrics})
        if self.save is not None:
            self._write(generation, rows, figures)
        if log_metric is None:
            self._tell_once("this TRL hands reward functions no log_metric: nothing reaches its loggers")
            return
        for name, value in metrics.items():
            log_metric(f"lossbench/{name}", value)

    def _write(self, generation: Generation, rows: list[Rollout], figures: Mapping[str, Any]) -> None:
        """Append to the folder; the step that first uses the rows is the next one."""
        if self.folder is None and self.save is not None and self.mode is not None:
            seed = int(getattr(self.config, "seed", 0) or 0)
            self.folder = WatchFolder(self.save, self.mode, seed, self.config)
        assert self.folder is not None
        columns = [{"step": generation.step, **vars(row)} for row in rows]
        if generation.evaluation:
            dropped = ("generation", "advantage")
            rows_of_evals = [{k: v for k, v in row.items() if k not in dropped} for row in columns]
            self.folder.append(generation.step - 1, "evals", [{**r, "step": r["step"] - 1} for r in rows_of_evals])
            return
        self.folder.append(generation.step, "rollouts", columns)
        if _rank() == 0:
            self.folder.append(generation.step, "steps", [{"step": generation.step, **figures}])

    def _rows(self, generation: Generation) -> list[Rollout]:
        """The generation's completions with their verdicts, in order; groups are runs of one prompt."""
        options, count = self.options, len(generation.completion_ids)
        weights = options.weights or (1.0,) * (1 + max(generation.rewards, default=0))
        rewards = [_weighted([(weights[n], given[i]) for n, given in generation.rewards.items()]) for i in range(count)]
        groups = group_numbers(generation.prompts, options.num_generations)
        first = _rank() * count  # processes number their groups apart
        rows = []
        for i, ids in enumerate(generation.completion_ids):
            (group, sample), prompt = groups[i], plain_text(generation.prompts[i])
            rows.append(
                Rollout(
                    generation=len(self.series) + 1,
                    prompt_id=_prompt_id(prompt), group=first + group, sample=sample,
                    length_tokens=len(ids), terminated=self._terminated(ids), reward=rewards[i],
                    correct=self._correct(generation, i, rewards[i]), advantage=None,
                    prompt=prompt, completion=plain_text(generation.completions[i]),
                )
            )  # fmt: skip
        return rows

    def _terminated(self, ids: Sequence[int]) -> bool | None:
        """Shorter than the cap, or the last id ends a completion; None where neither is known."""
        options = self.options
        if ids and int(ids[-1]) in options.eos_ids:
            return True
        return len(ids) < options.cap if options.cap else None if not options.eos_ids else False

    def _correct(self, generation: Generation, row: int, reward: float | None) -> bool | None:
        if self.options.correct is None:
            return None if reward is None else reward > self.options.correct_above
        columns = {name: values[row] for name, values in generation.columns.items() if isinstance(values, list)}
        return bool(self.options.correct(generation.prompts[row], generation.completions[row], **columns))

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning("lossbench.watch: %s", sentence)

    def _at_exit(self) -> None:
        if self.folder is not None:
            self.folder.close()
        if self.series and _rank() == 0:
            found = from_series(self.series, self.mode.name if self.mode else "this loss")
            print(" ".join(["lossbench:", found.headline, found.advice, *([found.paste] if found.paste else [])]))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _prompt_id(prompt: str) -> int:
    """A number of the prompt's text, the same in every process and after a restart."""
    return int(hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:12], 16)


def _number(value: Any) -> float | None:
    """A reward as a number; None and NaN are no reward, as TRL has it."""
    return None if value is None or math.isnan(float(value)) else float(value)


def _weighted(pairs: Sequence[tuple[float, float | None]]) -> float | None:
    """The weighted sum of the rewards that exist, as TRL adds them; None if absent."""
    there = [weight * reward for weight, reward in pairs if reward is not None]
    return sum(there) if there else None


def _mode_of(config: Any, name: str | None) -> Mode | None:
    """The loss mode by name, else by the settings of a `GRPOConfig`; None where neither tells. Raises UsageError."""
    if name is None and config is None:
        return None
    try:
        name = mode_of_config(vars(config)) if name is None else name
        return parse_mode(name) if name is not None else None
    except ValueError as error:
        raise UsageError(str(error)) from None
