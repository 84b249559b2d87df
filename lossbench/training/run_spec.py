"""`RunSpec`: everything that decides one run, as plain data. Its hash names the run's folder."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from lossbench.errors import unknown
from lossbench.loss.modes import Mode, folder_name
from lossbench.loss.surrogates import SurrogateParams
from lossbench.training.hashed_fields import hash_of, hashed_fields

Sampler = Literal["lossbench", "generate", "vllm"]
Scheduler = Literal["constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"]
OnStep = Callable[[int, float | None, float | None], None]
"""Called after each step with its number, mean reward and mean length."""

LOGGERS = ("tensorboard", "wandb", "trackio")


class Settings(SurrogateParams):
    """The training settings that all runs of a sweep share, the constants of all surrogates among them.

    Names and meanings are TRL's unless a comment says more.
    """

    task: str = "selfcheck"
    task_params: dict[str, Any] = Field(default_factory=dict)
    policy_params: dict[str, Any] = Field(default_factory=dict)  # of a built-in policy, such as {check_truth = 0.8}

    steps: int = Field(200, ge=1)
    num_generations: int = Field(8, ge=2)
    per_device_train_batch_size: int = Field(64, ge=1)  # of all processes of a run together: it is the experiment's
    gradient_accumulation_steps: int = Field(1, ge=1)
    steps_per_generation: int | None = Field(None, ge=1)  # micro-batches per generation; default: one optimizer step's
    num_iterations: int = Field(1, ge=1)
    max_completion_length: int = Field(128, ge=1)

    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    sampler: Sampler = "lossbench"
    mask_truncated_completions: bool = False

    learning_rate: float = Field(1e-4, gt=0)
    lr_scheduler_type: Scheduler = "constant"
    warmup_steps: int = Field(0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)  # 0: no clipping
    beta: float = Field(0.0, ge=0)  # weight of the KL term
    disable_dropout: bool = True  # the model's and LoRA's; with dropout even the first pass is off-policy
    router_aux_loss_coef: Literal[0] | None = None  # 0: a mixture of experts trains without its balancing loss

    loss_scale_factor: float | None = Field(None, gt=0)  # the constant H in tokens; default: max_completion_length
    match_scale: bool = False  # every mode's row weights add up to 1/H in each step

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: dict[str, Any] | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False

    eval_every: int | None = Field(None, ge=1)  # steps; the first and last policy are always evaluated
    eval_samples: int = Field(4, ge=0)  # completions per evaluation prompt; 0: no evaluation
    eval_greedy: bool = False
    text: bool = True  # keep prompts and completions in the tables
    checkpoint_every: int | None = Field(None, ge=1)  # steps
    probe_every: int | None = Field(None, ge=1)  # steps
    report_to: list[str] = Field(default_factory=list)  # some of LOGGERS

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        """Libraries keep counts in 32 bits."""
        if isinstance(value, int) and value >= 2**31:
            raise ValueError("less than 2147483648 is valid")
        return value

    @field_validator("report_to")
    @classmethod
    def _check_loggers(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in LOGGERS:
                raise ValueError(unknown("logger", name, LOGGERS))
        return names

    @field_validator("probe_every")
    @classmethod
    def _check_sampling(cls, every: int | None, others: ValidationInfo) -> int | None:
        """A probe's gradients are those of the policy's own distribution."""
        if every is not None and (others.data.get("top_p", 1) < 1 or others.data.get("top_k", 0) > 0):
            raise ValueError(
                "a probe needs completions of the policy's own distribution: valid with top_p 1 and top_k 0"
            )
        return every

    @property
    def micro_batches_per_generation(self) -> int:
        """TRL's steps_per_generation, resolved."""
        return self.steps_per_generation or self.gradient_accumulation_steps

    def rows_per_generation(self) -> int:
        """Completions of one sampling round, of all processes."""
        return self.per_device_train_batch_size * self.micro_batches_per_generation

    def prompts_per_generation(self) -> int:
        """Prompt groups of one sampling round."""
        return self.rows_per_generation() // self.num_generations

    def generations(self) -> int:
        """Sampling rounds that `steps` optimizer steps need."""
        reuse = self.micro_batches_per_generation * self.num_iterations
        return -(-self.steps * self.gradient_accumulation_steps // reuse)


class RunSpec(BaseModel):
    """One run: a mode, a seed, the policy it starts from, and the shared settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str
    mode: Mode
    seed: int
    policy: str  # a built-in policy's name or a model reference
    policy_seed: int | None  # of the warm start; null where the policy is a model reference
    settings: Settings
    processes: int = 1  # that share the run; each takes its part of every micro-batch

    @property
    def run_id(self) -> str:
        """The run's folder: mode, seed and a hash over all that decides the run."""
        return f"{folder_name(self.mode.name)}-s{self.seed}-{hash_of(hashed_fields(self))[:8]}"

    def labels(self) -> dict[str, Any]:
        """The columns that every row of the run's tables carries."""
        return {"run_id": self.run_id, **self.mode.labels, "seed": self.seed}

    def cautions(self) -> list[str]:
        """Warnings about settings that are allowed but rarely meant."""
        found = [self.mode.surrogate.caution(self.settings)]
        windows = self.settings.micro_batches_per_generation / self.settings.gradient_accumulation_steps
        if self.mode.aggregation.entry.looks_at_groups and windows > 1:
            found.append(
                f"{self.mode.agg_mode} counts a prompt's completions inside each optimizer step, and here a generation "
                f"feeds {windows:g} steps: a group that falls into several is counted in each"
            )
        return [text for text in found if text]
