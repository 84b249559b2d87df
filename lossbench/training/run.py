"""One run: a `RunSpec` in, the files of its folder out, on one process or several."""

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import pyarrow.parquet as pq
import torch
import torch.distributed
from torch.multiprocessing.spawn import ProcessRaisedException, start_processes
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig

from lossbench.errors import UsageError
from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.chat import as_read_by
from lossbench.policies.hardware import choose_device, placement
from lossbench.policies.load import load_policy
from lossbench.policies.loaded import LoadedPolicy
from lossbench.processes import die_with_parent
from lossbench.store.provenance import versions
from lossbench.store.write import PartWriter, write_json
from lossbench.tasks import make_task
from lossbench.tasks.judging import judging_problems
from lossbench.training import checkpoint as checkpoints
from lossbench.training.checkpoint import drop_checkpoints, newest_checkpoint, seal
from lossbench.training.contents import model_contents, task_contents
from lossbench.training.evaluate import evaluate, probe
from lossbench.training.recorder import Recorder
from lossbench.training.rollout_data import TaskReward, training_data
from lossbench.training.run_spec import OnStep, RunSpec, Settings
from lossbench.training.trainer import ModeTrainer

TENSORBOARD = "tensorboard"
PROJECT = "lossbench"
_PEER_TIMEOUT = timedelta(hours=2)  # the other ranks wait for the main one while it evaluates


def execute_run(spec: RunSpec, run_dir: Path, on_step: OnStep | None = None) -> None:
    """`execute`, on as many processes as the run asks for. Raises RuntimeError where one of them failed."""
    if spec.processes == 1:
        execute(spec, run_dir, on_step)
        return
    with tempfile.TemporaryDirectory() as folder:
        # A file to meet at: a free port could be taken by another run between its choice and its use.
        arguments = (spec, run_dir, on_step, f"{folder}/meeting")
        try:
            start_processes(_rank, arguments, nprocs=spec.processes, start_method="fork")
        except ProcessRaisedException as error:
            print(error, flush=True)
            last_line = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"process {error.error_index} of the run failed: {last_line}") from None


def _rank(rank: int, spec: RunSpec, run_dir: Path, on_step: OnStep | None, meeting: str) -> None:
    """One of the run's processes; accelerate finds its place in the environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spec.processes, "LOCAL_WORLD_SIZE": spec.processes}
    os.environ.update({name: str(value) for name, value in place.items()})
    on_gpu = choose_device(spec.settings.device) != "cpu"
    if on_gpu:
        if (seen := torch.cuda.device_count()) < spec.processes:
            raise UsageError(f"{spec.processes} processes need a GPU each, and the run sees {seen}")
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=spec.processes,
        timeout=_PEER_TIMEOUT,
    )  # fmt: skip
    try:
        execute(spec, run_dir, on_step)
    finally:
        torch.distributed.destroy_process_group()


def is_main_process() -> bool:
    """Whether this process is the one of its run that writes files; the launcher sets RANK."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Without the libraries' notices on names of their own, on which a reader of log.txt cannot act."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=kind, module=r"(accelerate|peft|torch|transformers|trl)\b")
        yield


@_quiet_libraries()
def execute(spec: RunSpec, run_dir: Path, on_step: OnStep | None = None) -> None:
    """Train one run and write its folder; its status in run.json goes from running to completed, or to failed.

    A run that left a checkpoint continues from it; without one it starts over. Exceptions are recorded and passed on.
    """
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
    return str(error) if isinstance(error, UsageError) else " ".join(f"{type(error).__name__}: {error}".split())


def _train(spec: RunSpec, run_dir: Path, on_step: OnStep | None) -> dict[str, Any]:
    settings = spec.settings
    set_seed(spec.seed)
    options = ("policy_params", "dtype", "device", "lora", "gradient_checkpointing", "trust_remote_code")
    policy = load_policy(spec.policy, spec.policy_seed, **{name: getattr(settings, name) for name in options})
    own_task = make_task(settings.task, settings.task_params)
    contents = task_contents(settings, own_task) | model_contents(spec.policy)
    task = as_read_by(own_task, policy.tokenizer, spec.policy)
    # Every process has a recorder, for they gather their rows together; only the main one's is told of anything.
    writer = PartWriter(run_dir)
    recorder = Recorder(writer, spec.labels(), keep_text=settings.text, on_step=on_step)
    trainer = _make_trainer(spec, run_dir, policy, task, recorder)
    eos_ids = trainer.eos_token_ids
    evaluated, probed = partial(evaluate, spec, policy, task, eos_ids), partial(probe, spec, policy, task)
    evals = Measured(trainer, settings.eval_every, evaluated, partial(recorder.append, "evals"))
    probes = Measured(trainer, settings.probe_every, probed, partial(writer.append, "probe"))
    found = newest_checkpoint(run_dir, spec)
    if is_main_process():
        _go_back_to(found, run_dir, writer, task)
    if found is None:
        evals.at(0)
        probes.at(0)
    for callback in (evals, probes, _Checkpoints(spec, run_dir, trainer, task)):
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
    evals.at(settings.steps)
    failed = _verifier_errors(task, trainer)
    if not is_main_process():
        return {}
    facts = {
        "steps_done": settings.steps, "horizon": trainer.horizon, "processes": spec.processes,
        "forced_tokens": getattr(task, "forced_tokens", 0), "resumed_from_step": found[0] if found else None,
        "resolved": policy.resolved, "tables": writer.join(), "contents": contents,
        "verifier_errors": failed, **_without_verdict_or_reward(run_dir),
    }  # fmt: skip
    for problem in judging_problems(facts):
        print(f"warning: {problem}", file=sys.stderr, flush=True)
    return facts


def _go_back_to(found: tuple[int, Path] | None, run_dir: Path, writer: PartWriter, task: Any) -> None:
    """Make the folder that of a run at the checkpoint; None empties it."""
    checkpoints.drop_unsealed(run_dir)
    if found is None:
        writer.clear()
        shutil.rmtree(run_dir / TENSORBOARD, ignore_errors=True)
        return
    writer.keep_up_to(found[0])
    if verifier := getattr(task, "verifier", None):
        verifier.errors = checkpoints.verifier_errors_at(found[1])  # of all processes


def _without_verdict_or_reward(run_dir: Path) -> dict[str, int]:
    """Completions of the run's tables that the task gave no verdict, and no reward."""
    paths = [path for name in ("rollouts", "evals") if (path := run_dir / f"{name}.parquet").exists()]
    tables = [pq.read_table(path, columns=["correct", "reward"]) for path in paths]
    columns = {"unjudged": "correct", "unrewarded": "reward"}
    return {name: sum(table[column].null_count for table in tables) for name, column in columns.items()}


def _verifier_errors(task: Any, trainer: ModeTrainer) -> int:
    """Completions on which the task's verifier failed so far, of all processes of the run, which call it together."""
    accelerator = trainer.accelerator
    mine = torch.tensor([getattr(getattr(task, "verifier", None), "errors", 0)], device=accelerator.device)
    return int(accelerator.reduce(mine, reduction="sum").item())  # type: ignore[union-attr]


def _make_trainer(spec: RunSpec, run_dir: Path, policy: LoadedPolicy, task: Any, recorder: Recorder) -> ModeTrainer:
    settings = spec.settings
    # Left to themselves some loggers keep their files with the checkpoints.
    if "tensorboard" in settings.report_to:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(run_dir / TENSORBOARD)
    if "wandb" in settings.report_to:
        os.environ["WANDB_DIR"] = str(run_dir)
        os.environ.setdefault("WANDB_PROJECT", PROJECT)
    reward = TaskReward(task)
    reward.trainer = ModeTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward,
        train_dataset=training_data(
            task,
            generations=settings.generations(),
            prompts_per_generation=settings.prompts_per_generation(),
            seed=spec.seed,
        ),
        args=trainer_config(spec, run_dir / checkpoints.CHECKPOINTS),
        mode=spec.mode,
        surrogate_params=settings,
        horizon=settings.loss_scale_factor,
        match_scale=settings.match_scale,
        recorder=recorder,
        sampler=settings.sampler,
        disable_dropout=settings.disable_dropout,
    )
    return reward.trainer


_PASSED_ON = {field.name for field in dataclasses.fields(GRPOConfig)} & set(Settings.model_fields) - set(
    SurrogateParams.model_fields
)
"""Settings of these names mean in TRL what they mean here; the surrogate's constants never reach TRL's loss."""


def trainer_config(spec: RunSpec, output_dir: Path) -> GRPOConfig:
    """TRL's configuration of a run. Prompts come in the order of the data set, which holds the whole run.

    The recipe's micro-batch is shared out among the run's processes, so that their number does not change the window.
    """
    settings = spec.settings
    every = checkpoints.checkpoint_steps(settings)
    place = placement(settings.device, settings.dtype)
    # The scheduler called constant does not look at warm-up steps.
    warms_up = settings.lr_scheduler_type == "constant" and settings.warmup_steps > 0
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
    return GRPOConfig(**{**{name: getattr(settings, name) for name in _PASSED_ON}, **own})


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
        failed = _verifier_errors(self.task, self.trainer)
        if is_main_process():
            seal(self.run_dir, state.global_step, self.spec.run_id, failed)


class Measured(TrainerCallback):
    """Appends the rows on a policy every `every` steps (None: never by itself), outside the steps' wall time."""

    def __init__(
        self, trainer: ModeTrainer, every: int | None, rows_at: Callable[[int], Any], append: Callable[[int, Any], None]
    ) -> None:
        self.trainer, self.every, self.rows_at, self.append = trainer, every, rows_at, append

    def at(self, step: int) -> None:
        """Measure now, as the policy after `step` steps; the main process does it."""
        if is_main_process():
            began = time.perf_counter()
            if rows := self.rows_at(step):
                self.append(step, rows)
            self.trainer.leave_out(time.perf_counter() - began)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Called by the trainer after each optimizer step; the last one has its own time."""
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self.at(state.global_step)
