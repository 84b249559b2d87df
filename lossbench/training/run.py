"""One run: a `RunSpec` in, the files of its folder out."""

import dataclasses
import os
import shutil
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import pyarrow.parquet as pq
import torch
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig

from lossbench.errors import UsageError
from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.chat import as_read_by
from lossbench.policies.hardware import placement
from lossbench.policies.load import load_policy
from lossbench.policies.loaded import LoadedPolicy
from lossbench.store.provenance import versions
from lossbench.store.write import PartWriter, write_json
from lossbench.tasks import make_task
from lossbench.tasks.judging import judging_problems
from lossbench.training.checkpoint import (
    CHECKPOINTS,
    checkpoint_steps,
    drop_checkpoints,
    drop_unsealed,
    newest_checkpoint,
    seal,
    verifier_errors_at,
)
from lossbench.training.contents import model_contents, task_contents
from lossbench.training.evaluate import evaluate
from lossbench.training.probe_callback import Probes
from lossbench.training.recorder import Recorder
from lossbench.training.rollout_data import TaskReward, training_data
from lossbench.training.run_spec import OnStep, RunSpec, Settings
from lossbench.training.trainer import ModeTrainer

TENSORBOARD = "tensorboard"
PROJECT = "lossbench"


def is_main_process() -> bool:
    """Whether this process is the one of its run that writes files; the launcher sets RANK."""
    return int(os.environ.get("RANK", "0")) == 0


def execute(spec: RunSpec, run_dir: Path, on_step: OnStep | None = None) -> None:
    """Train one run and write its folder; its status in run.json goes from running to completed, or to failed.

    A run that left a checkpoint continues from it; without one it starts over. Exceptions are recorded and passed on.
    """
    with warnings.catch_warnings():
        # The libraries' notices on names of their own are nothing that a reader of log.txt can act on.
        for kind in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=kind, module=r"(accelerate|peft|torch|transformers|trl)\b")
        _execute(spec, run_dir, on_step)


def _execute(spec: RunSpec, run_dir: Path, on_step: OnStep | None) -> None:
    if not is_main_process():
        _train(spec, run_dir, None)
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {
        "spec": spec.model_dump(mode="json"), "status": "running", "steps_planned": spec.settings.steps,
        "versions": versions(),
    }  # fmt: skip
    began = time.perf_counter()
    write_json(run_dir / "run.json", state)
    try:
        facts = _train(spec, run_dir, on_step)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
        # A disk too full for this file too: the error goes on, and the sweep that started the run records it.
        with suppress(OSError):
            write_json(run_dir / "run.json", {**state, "status": status, "reason": describe(error)})
        raise
    wall_s = round(time.perf_counter() - began, 3)
    write_json(run_dir / "run.json", {**state, "status": "completed", "wall_s": wall_s, **facts})
    # Only now: a run that is killed before it is recorded as completed continues from these.
    PartWriter(run_dir).drop_parts()
    drop_checkpoints(run_dir)


def describe(error: BaseException) -> str:
    """An exception as one line; a mistake of the user's is worded as one already."""
    if isinstance(error, UsageError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())


def _train(spec: RunSpec, run_dir: Path, on_step: OnStep | None) -> dict[str, Any]:
    settings = spec.settings
    set_seed(spec.seed)
    policy = load_policy(spec.policy, spec.policy_seed, **_load_options(spec))
    own_task = make_task(settings.task, settings.task_params)
    contents = task_contents(settings, own_task) | model_contents(spec.policy)
    task = as_read_by(own_task, policy.tokenizer, spec.policy)
    # Every process has a recorder, for they gather their rows together; only the main one's is told of anything.
    recorder = Recorder(PartWriter(run_dir), spec.labels(), keep_text=settings.text, on_step=on_step)
    writer = recorder.writer if is_main_process() else None
    trainer = make_trainer(spec, run_dir, policy, task, recorder)
    found = newest_checkpoint(run_dir, spec)
    evals = _Evaluations(spec, policy, task, trainer, writer)
    probes = Probes(spec, policy, task, writer, trainer.leave_out)
    if writer:
        _cut_back(run_dir, writer, found[0] if found else None)
    if found is None:
        evals.at(0)
        probes.at(0)
    elif writer and (verifier := getattr(task, "verifier", None)):
        verifier.errors = verifier_errors_at(found[1])  # of all processes
    trainer.add_callback(evals)
    trainer.add_callback(probes)
    trainer.add_callback(_Checkpoints(spec, run_dir, trainer, task))
    trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
    failed, of_this_one = _verifier_errors_of_all(task, trainer), _verifier_errors(task)
    evals.at(settings.steps)
    if writer is None:
        return {}
    facts = {
        "steps_done": settings.steps, "horizon": trainer.horizon, "processes": spec.processes,
        "forced_tokens": getattr(task, "forced_tokens", 0), "resumed_from_step": found[0] if found else None,
        "resolved": policy.resolved, "tables": writer.join(), "contents": contents,
        "verifier_errors": failed + _verifier_errors(task) - of_this_one, **_without_verdict_or_reward(run_dir),
    }  # fmt: skip
    for problem in judging_problems(facts):
        print(f"warning: {problem}", file=sys.stderr, flush=True)
    return facts


def _without_verdict_or_reward(run_dir: Path) -> dict[str, int]:
    """Completions of the run's tables that the task gave no verdict, and no reward."""
    tables = [
        pq.read_table(path, columns=["correct", "reward"])
        for name in ("rollouts", "evals")
        if (path := run_dir / f"{name}.parquet").exists()
    ]
    columns = {"unjudged": "correct", "unrewarded": "reward"}
    return {name: sum(table[column].null_count for table in tables) for name, column in columns.items()}


def _verifier_errors(task: Any) -> int:
    """Number of completions on which the task's verifier failed so far; 0 if it does not count."""
    return getattr(getattr(task, "verifier", None), "errors", 0)


def _verifier_errors_of_all(task: Any, trainer: ModeTrainer) -> int:
    """The same over all processes of the run, which call it together."""
    accelerator = trainer.accelerator
    mine = torch.tensor([_verifier_errors(task)], device=accelerator.device)
    return int(accelerator.reduce(mine, reduction="sum").item())  # type: ignore[union-attr]


def _load_options(spec: RunSpec) -> dict[str, Any]:
    settings = spec.settings
    names = ("policy_params", "dtype", "device", "lora", "gradient_checkpointing", "trust_remote_code")
    return {name: getattr(settings, name) for name in names}


def _cut_back(run_dir: Path, writer: PartWriter, step: int | None) -> None:
    """Make the parts those of a run that has just made `step` steps; None empties the folder of them."""
    drop_unsealed(run_dir)
    if step is None:
        writer.clear()
        shutil.rmtree(run_dir / TENSORBOARD, ignore_errors=True)
    else:
        writer.keep_up_to(step)


def make_trainer(
    spec: RunSpec, run_dir: Path, policy: LoadedPolicy, task: Any, recorder: Recorder | None
) -> ModeTrainer:
    """The trainer of a run, ready to train."""
    settings = spec.settings
    _send_logs_to(run_dir, settings.report_to)
    reward = TaskReward(task)
    trainer = ModeTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward,
        train_dataset=training_data(
            task,
            generations=settings.generations(),
            prompts_per_generation=settings.prompts_per_generation(),
            seed=spec.seed,
        ),
        args=trainer_config(spec, run_dir / CHECKPOINTS),
        mode=spec.mode,
        surrogate_params=settings,
        horizon=settings.loss_scale_factor,
        match_scale=settings.match_scale,
        recorder=recorder,
        sampler=settings.sampler,
        disable_dropout=settings.disable_dropout,
    )
    reward.trainer = trainer
    return trainer


def _send_logs_to(run_dir: Path, loggers: list[str]) -> None:
    """Have loggers keep their files in the run's folder; left to themselves some keep them with the checkpoints."""
    if "tensorboard" in loggers:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(run_dir / TENSORBOARD)
    if "wandb" in loggers:
        os.environ["WANDB_DIR"] = str(run_dir)
        os.environ.setdefault("WANDB_PROJECT", PROJECT)


_SURROGATE = set(SurrogateParams.model_fields)
_PASSED_ON = {field.name for field in dataclasses.fields(GRPOConfig)} - _SURROGATE
"""Settings of these names mean in TRL what they mean here; the surrogate's constants never reach TRL's loss."""


def trainer_config(spec: RunSpec, output_dir: Path) -> GRPOConfig:
    """TRL's configuration of a run. Prompts come in the order of the data set, which holds the whole run.

    The recipe's micro-batch is shared out among the run's processes, so that their number does not change the window.
    """
    settings = spec.settings
    every = checkpoint_steps(settings)
    place = placement(settings.device, settings.dtype)
    # The scheduler called constant does not look at warm-up steps.
    warms_up = settings.lr_scheduler_type == "constant" and settings.warmup_steps > 0
    shared = {name: getattr(settings, name) for name in Settings.model_fields if name in _PASSED_ON}
    own: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.per_device_train_batch_size // spec.processes,
        "steps_per_generation": settings.micro_batches_per_generation,
        "lr_scheduler_type": "constant_with_warmup" if warms_up else settings.lr_scheduler_type,
        "seed": spec.seed,
        "shuffle_dataset": False,
        "use_vllm": settings.sampler == "vllm",
        "use_cpu": place.device == "cpu",
        "bf16": place.device != "cpu" and place.compute == "bfloat16",
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "steps" if every else "no",
        "save_steps": every or 500,
        "save_total_limit": 2,  # the last sealed one stays while the next is written
        "report_to": settings.report_to or "none",
        "run_name": spec.run_id,
        "project": PROJECT,
    }
    return GRPOConfig(**{**shared, **own})


class _Checkpoints(TrainerCallback):
    """Seals each checkpoint once every process has written its part of it."""

    def __init__(self, spec: RunSpec, run_dir: Path, trainer: ModeTrainer, task: Any) -> None:
        self.spec, self.run_dir, self.trainer, self.task = spec, run_dir, trainer, task

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """No checkpoint of the last step: the run's tables follow at once."""
        if state.global_step >= self.spec.settings.steps:
            control.should_save = False

    def on_save(self, args, state, control, **kwargs) -> None:
        """Called by the trainer after it wrote a checkpoint."""
        self.trainer.accelerator.wait_for_everyone()
        failed = _verifier_errors_of_all(self.task, self.trainer)
        if is_main_process():
            seal(self.run_dir, state.global_step, self.spec.run_id, failed)


class _Evaluations(TrainerCallback):
    """Evaluates the first and the last policy, and every `eval_every` steps between."""

    def __init__(
        self, spec: RunSpec, policy: LoadedPolicy, task: Any, trainer: ModeTrainer, writer: PartWriter | None
    ) -> None:
        self.spec, self.policy, self.task, self.trainer, self.writer = spec, policy, task, trainer, writer

    def at(self, step: int) -> None:
        """Evaluate now, as the policy after `step` steps."""
        if self.spec.settings.eval_samples and self.writer:
            began = time.perf_counter()
            rows = evaluate(self.spec, self.policy, self.task, self.trainer.eos_token_ids, step)
            labels = self.spec.labels()
            text = {} if self.spec.settings.text else {"prompt": None, "completion": None}
            self.writer.append("evals", step, [{**labels, **row, **text} for row in rows])
            self.trainer.leave_out(time.perf_counter() - began)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Called by the trainer after each optimizer step."""
        every = self.spec.settings.eval_every
        if every and state.global_step % every == 0 and state.global_step < self.spec.settings.steps:
            self.at(state.global_step)
