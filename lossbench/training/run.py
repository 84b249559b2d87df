"""One run: a `RunSpec` in, the files of its folder out."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # the rollout hook is used on purpose
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig

from lossbench.loss.modes import Mode
from lossbench.policies.load import LoadedPolicy, load_policy
from lossbench.store.provenance import versions
from lossbench.store.write import PartWriter, write_json
from lossbench.tasks import make_task
from lossbench.training.evaluate import evaluate
from lossbench.training.params import surrogate_params
from lossbench.training.recorder import Recorder
from lossbench.training.rollout_data import TaskReward, training_data
from lossbench.training.spec import RunSpec
from lossbench.training.trainer import ModeTrainer

CHECKPOINTS = "checkpoints"
OnStep = Callable[[int, float | None, float | None], None]


def execute(spec: RunSpec, run_dir: Path, on_step: OnStep | None = None) -> None:
    """Train one run and write its folder; its status in run.json goes from running to completed, or to failed.

    A run that left a checkpoint continues from it; without one it starts over. Exceptions are recorded and passed on.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {
        "spec": spec.model_dump(mode="json"),
        "status": "running",
        "steps_planned": spec.settings.steps,
    }
    state["versions"] = versions()
    began = time.perf_counter()
    write_json(run_dir / "run.json", state)
    try:
        facts = _train(spec, run_dir, on_step)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        write_json(run_dir / "run.json", {**state, "status": status, "reason": reason})
        raise
    wall_s = round(time.perf_counter() - began, 3)
    write_json(run_dir / "run.json", {**state, "status": "completed", "wall_s": wall_s, **facts})
    shutil.rmtree(run_dir / CHECKPOINTS, ignore_errors=True)


def _train(spec: RunSpec, run_dir: Path, on_step: OnStep | None) -> dict[str, Any]:
    settings = spec.settings
    set_seed(spec.seed)
    task = make_task(settings.task, settings.task_params)
    policy = load_policy(spec.policy, spec.policy_seed, **_load_options(spec))
    writer = PartWriter(run_dir)
    recorder = Recorder(writer, spec.labels(), keep_text=settings.text, on_step=on_step)
    trainer = make_trainer(spec, run_dir, policy, task, recorder)
    checkpoint = _resume_point(run_dir, writer)
    evals = _Evaluations(spec, policy, task, trainer, writer)
    if checkpoint is None:
        evals.at(0)
    trainer.add_callback(evals)
    trainer.train(resume_from_checkpoint=checkpoint)
    evals.at(settings.steps)
    writer.finish()
    return {"steps_done": settings.steps, "horizon": trainer.horizon, "resolved": policy.resolved}


def _load_options(spec: RunSpec) -> dict[str, Any]:
    settings = spec.settings
    names = ("dtype", "device", "lora", "gradient_checkpointing", "trust_remote_code")
    return {name: getattr(settings, name) for name in names}


def _resume_point(run_dir: Path, writer: PartWriter) -> str | None:
    """The newest whole checkpoint, the parts cut back to it; without one the folder is emptied of parts."""
    folder = run_dir / CHECKPOINTS
    checkpoint = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if checkpoint is None:
        writer.clear()
    else:
        writer.keep_up_to(int(checkpoint.rsplit("-", 1)[1]))
    return checkpoint


def make_trainer(
    spec: RunSpec, run_dir: Path, policy: LoadedPolicy, task: Any, recorder: Recorder | None
) -> ModeTrainer:
    """The trainer of a run, ready to train."""
    settings = spec.settings
    reward = TaskReward(task)
    trainer = ModeTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward,
        train_dataset=training_data(
            task,
            generations=settings.generations(),
            prompts_per_generation=settings.prompts_per_generation(spec.processes),
            seed=spec.seed,
        ),
        args=trainer_config(spec, run_dir / CHECKPOINTS),
        mode=Mode(**spec.mode.model_dump()),
        surrogate_params=surrogate_params(settings),
        horizon=settings.loss_scale_factor,
        match_scale=settings.match_scale,
        recorder=recorder,
        sampler=settings.sampler,
    )
    reward.trainer = trainer
    return trainer


_PASSED_ON = (
    "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations",
    "max_completion_length", "temperature", "top_p", "top_k", "mask_truncated_completions", "learning_rate",
    "lr_scheduler_type", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
    "beta", "epsilon_high", "delta", "gradient_checkpointing", "trust_remote_code",
)  # fmt: skip


def trainer_config(spec: RunSpec, output_dir: Path) -> GRPOConfig:
    """TRL's configuration of a run. Prompts come in the order of the data set, which holds the whole run."""
    settings = spec.settings
    every = checkpoint_steps(spec)
    cuda = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=settings.steps,
        steps_per_generation=settings.micro_batches_per_generation,
        epsilon=settings.epsilon_low,
        seed=spec.seed,
        shuffle_dataset=False,
        use_vllm=settings.sampler == "vllm",
        use_cpu=not cuda,
        bf16=cuda and settings.dtype != "float32" and torch.cuda.is_bf16_supported(),
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="steps" if every else "no",
        save_steps=every or 500,
        save_total_limit=1,
        report_to=settings.report_to or "none",
        **{name: getattr(settings, name) for name in _PASSED_ON},
    )


def checkpoint_steps(spec: RunSpec) -> int | None:
    """`checkpoint_every`, rounded up to steps at which a window ends and a generation is used up."""
    settings = spec.settings
    if settings.checkpoint_every is None:
        return None
    step = settings.checkpoint_every
    while (
        step * settings.gradient_accumulation_steps % (settings.micro_batches_per_generation * settings.num_iterations)
    ):
        step += 1
    return step


class _Evaluations(TrainerCallback):
    """Evaluates the first and the last policy, and every `eval_every` steps between."""

    def __init__(
        self, spec: RunSpec, policy: LoadedPolicy, task: Any, trainer: ModeTrainer, writer: PartWriter
    ) -> None:
        self.spec, self.policy, self.task, self.trainer, self.writer = spec, policy, task, trainer, writer

    def at(self, step: int) -> None:
        """Evaluate now, as the policy after `step` steps."""
        if self.spec.settings.eval_samples and self.trainer.accelerator.is_main_process:
            rows = evaluate(self.spec, self.policy, self.task, self.trainer.eos_token_ids, step)
            labels = self.spec.labels()
            text = {} if self.spec.settings.text else {"prompt": None, "completion": None}
            self.writer.append("evals", step, [{**labels, **row, **text} for row in rows])

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Called by the trainer after each optimizer step."""
        every = self.spec.settings.eval_every
        if every and state.global_step % every == 0 and state.global_step < self.spec.settings.steps:
            self.at(state.global_step)
