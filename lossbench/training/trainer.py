"""`ModeTrainer`: TRL's GRPOTrainer with a mode's surrogate, row weights and advantage scale, and a record of each row.

TRL keeps what it does well: data order, rewards, advantages, reference model, optimizer, checkpoints. This subclass
replaces the loss and, for plain causal language models, the sampling.
"""

import copy
import inspect
import math
import os
import time
from statistics import fmean
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # the rollout hook is used on purpose

import torch
from accelerate.utils import gather_object
from pydantic import BaseModel
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from lossbench.errors import UsageError
from lossbench.loss.advantages import TRL_SCALES, advantages
from lossbench.loss.modes import Mode, parse_mode
from lossbench.loss.token_loss import kl_BT, weighted_loss
from lossbench.loss.window import Layout, Window
from lossbench.policies.fit import check_balancing_loss
from lossbench.sampling.decode import unwrapped
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.prompts import prompt_positions
from lossbench.sampling.rollouts import sample
from lossbench.store.step_row import Rollout, StepStats
from lossbench.training.grpo_config import check_args, rollout_func, surrogate_params_of
from lossbench.training.microbatch import layout_of, loss_mask, pieces, row_facts
from lossbench.training.recorder import Recorder
from lossbench.training.run_spec import Sampler

_NOISE = ("drop", "jitter")  # attention_dropout, resid_pdrop, layerdrop, router_jitter_noise, ...


class ModeTrainer(GRPOTrainer):
    """GRPO under one mode.

    Args beyond TRL's: `mode`, such as "dapo" or "grpo@prompt-mean/none"; `surrogate_params` (default: what `args` says
    under TRL's names); `horizon`, the constant H in tokens (default: the cap); `match_scale`, which makes every mode's
    row weights add up to 1/H in each step; `recorder`, told of every step and completion on the main process;
    `sampler`: "lossbench" (each row draws from its own stream of `seed`), "generate" (transformers) or "vllm", by
    default the one that the other arguments need, else "lossbench"; `cut_by_length`, whether a micro-batch is passed
    through the model in pieces of similar length, which changes only speed; `disable_dropout`, on by default unlike
    TRL's: with dropout the first pass after sampling is off-policy already; `correct_above`, the reward above which a
    completion counts as correct in the metrics `length_correct` and `length_incorrect`, where no verdict is known.

    A `rollout_func` is used as TRL uses it; its completions are cut at their first EOS. Raises UsageError for TRL
    settings whose meaning under a mode is not defined, or that contradict it.
    """

    # Set by TRL's constructor or before the first use.
    args: GRPOConfig
    model: Any
    accelerator: Any
    max_completion_length: int
    _tokenizer: Any
    _buffered_inputs: Any
    _layout: Layout

    def __init__(
        self,
        *,
        mode: Mode | str,
        args: GRPOConfig,
        surrogate_params: BaseModel | None = None,
        horizon: float | None = None,
        match_scale: bool = False,
        recorder: Recorder | None = None,
        sampler: Sampler | None = None,
        cut_by_length: bool = True,
        disable_dropout: bool = True,
        correct_above: float = 0.5,
        **trl: Any,
    ) -> None:
        self.mode = parse_mode(mode) if isinstance(mode, str) else mode
        check_args(args, self.mode)
        self.surrogate_params = self.mode.surrogate.constants_of(surrogate_params_of(args, self.mode, surrogate_params))
        args = copy.copy(args)
        args.scale_rewards = self.mode.scale_rewards
        # Ranks pass their rows through the model in pieces, not all of them in as many: a broadcast at every pass would
        # wait for passes that do not come.
        args.ddp_broadcast_buffers = False
        trl["rollout_func"] = rollout_func(args, sampler, trl)
        super().__init__(args=args, **trl)
        check_balancing_loss(type(self.model).__name__, self.model.config, args.router_aux_loss_coef)
        if disable_dropout:
            for model in filter(None, (self.model, self.ref_model)):
                _switch_dropout_off(model)
        if self.accelerator.distributed_type not in ("NO", "MULTI_CPU", "MULTI_GPU"):
            raise UsageError(f"{self.accelerator.distributed_type} is not supported: use one process or plain DDP")
        if self._is_vlm:
            raise UsageError("models with image inputs are not supported: use a text-only causal language model")
        self.horizon = float(horizon or self.max_completion_length)
        self.match_scale = match_scale
        self.recorder = recorder
        self.cut_by_length = cut_by_length
        self.correct_above = correct_above
        self._takes_positions = "position_ids" in inspect.signature(unwrapped(self.model).forward).parameters
        self._generation = 0
        self._window: Any = None  # a `Window` while one is open
        self._terms_cB = torch.empty(0)
        self._segment_start = 0
        self._sums: dict[str, Tensor] = {}
        self._pending_step: dict[str, Any] = {}
        self._outcomes: list[dict[str, Any]] = []
        self._rewards_N = torch.empty(0)
        self._step_began = time.perf_counter()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        count = len(inputs)
        first = self.accelerator.process_index * count
        self._generation += 1
        self._inputs = []
        for i, row in enumerate(inputs):
            place = {"generation": self._generation, "group": (first + i) // self.num_generations, **row}
            self._inputs.append({**place, "sample": (first + i) % self.num_generations})
        self._outcomes = []
        out = super()._generate_and_score_completions(inputs)
        device = self.accelerator.device
        # Groups of two generations that share a window must not be taken for one.
        base = self._generation * count * self.accelerator.num_processes
        out["group_ids"] = base + (first + torch.arange(count, device=device)) // self.num_generations
        out["row_ids"] = base + first + torch.arange(count, device=device)
        if self.mode.advantage not in TRL_SCALES:
            out["advantages"] = self._advantages(out)[first : first + count].to(out["advantages"])
        if self._outcomes and self.recorder and self.model.training:
            keys = ("generation", "prompt_id", "group", "sample")
            rows = [
                Rollout(**{key: row[key] for key in keys}, **outcome, advantage=advantage)
                for row, outcome, advantage in zip(
                    self._inputs, self._outcomes, out["advantages"].tolist(), strict=True
                )
            ]
            rows = gather_object(rows)
            if self.accelerator.is_main_process:
                self.recorder.begin_generation(base, rows)
        return out

    def _advantages(self, out: dict[str, Any]) -> Tensor:
        """The mode's advantages of the generation's rows, of every rank; all ranks call it together."""
        lengths_N = self.accelerator.gather(loss_mask(out).sum(-1)).cpu()
        groups_N = self.accelerator.gather(out["group_ids"]).cpu()
        try:
            return torch.from_numpy(advantages(self._rewards_N, groups_N, self.mode.advantage, lengths_N))
        except ValueError as error:
            raise UsageError(f"mode '{self.mode.name}': {error}") from None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> Tensor:
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        lengths = gather_object([len(ids) for ids in completion_ids_list])
        totals_N = (rewards_NF * self.reward_weights.to(rewards_NF.device)).nansum(dim=1)
        self._rewards_N = totals_N.masked_fill(rewards_NF.isnan().all(dim=1), torch.nan).cpu()
        verdicts = [None if math.isnan(total) else total > self.correct_above for total in self._rewards_N.tolist()]
        if self._outcomes:
            verdicts = gather_object([outcome["correct"] for outcome in self._outcomes])
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, verdict in (("length_correct", True), ("length_incorrect", False)):
            if chosen := [length for length, found in zip(lengths, verdicts, strict=True) if found is verdict]:
                metrics[name].append(fmean(chosen))
        return rewards_NF

    def _sample(self, prompts: list[Any]) -> dict[str, Any]:
        """TRL's rollout hook: completions for `prompts`, one each, from each row's own stream of random numbers."""
        prompt_ids, _, _ = self._tokenize_prompts(prompts)
        width, device, pad = max(map(len, prompt_ids)), self.accelerator.device, self._tokenizer.pad_token_id
        ids_BP = torch.tensor([[pad] * (width - len(ids)) + list(ids) for ids in prompt_ids], device=device)
        mask_BP = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids], device=device)
        # The group's number stands in for the prompt's: a prompt drawn twice must not give the same completions.
        uniforms_BT = row_uniforms(
            self.args.seed, self._inputs[0]["generation"], [row["group"] for row in self._inputs],
            [row["sample"] for row in self._inputs], self.max_completion_length,
        ).to(device)  # fmt: skip
        with unwrap_model_for_generation(self.model_wrapped, self.accelerator) as policy, torch.no_grad():
            completion_ids = sample(
                policy, ids_BP, mask_BP, uniforms_BT, eos_token_ids=self.eos_token_ids, pad_token_id=pad,
                temperature=self.temperature, top_p=self.top_p, top_k=self.top_k or 0,
            )  # fmt: skip
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def note_outcomes(self, outcomes: list[dict[str, Any]]) -> None:
        """Called by the reward function: what the verifier said of each local row, for the record."""
        self._outcomes = outcomes

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not before:  # a new generation
            self._layout = layout_of(self.accelerator.gather(row_facts(self._buffered_inputs)[None]))
        return inputs

    def _row_terms(self, batch_rows: int) -> Tensor:
        """Row terms (B,) of the current micro-batch; plans a new segment where one begins."""
        chunk = self._step % (self.args.steps_per_generation or 1)
        if self._window is None:
            self._window = Window(self.mode.aggregation, self.horizon, self.match_scale)
            self._micro_in_window = 0
        if self._micro_in_window == 0 or chunk == 0:
            left = self.current_gradient_accumulation_steps - self._micro_in_window
            last = min(chunk + left, self._layout.micro_batches)
            terms_RcB = self._window.add_segment(self._layout, chunk, last)
            self._terms_cB = torch.from_numpy(terms_RcB[self.accelerator.process_index])
            self._segment_start = chunk
        self._micro_in_window += 1
        return self._terms_cB[chunk - self._segment_start, :batch_rows]

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """One micro-batch; at the window's last one the gradients get the window's scalar, before clipping.

        The window's loss is returned with its last micro-batch, and 0 before: the Trainer adds up what it is given.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not self.accelerator.sync_gradients:
            return torch.zeros_like(loss)
        self._end_window()
        return torch.full_like(loss, self._pending_step["loss"])

    def _end_window(self) -> None:
        window, self._window = self._window, None
        scalar = window.scalar
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, scalar)
        names, own = zip(*sorted(self._sums.items()), strict=True)
        sums = dict(zip(names, self.accelerator.reduce(torch.stack(own), reduction="sum").tolist(), strict=True))
        self._sums = {}
        step = self.state.global_step + 1
        self._pending_step = {
            "step": step, "loss": sums["loss"] * scalar, "tokens": int(window.totals.tokens),
            "entropy_sum": sums["entropy"], "clipped_tokens": sums.get("clipped"), "kl_sum": sums.get("kl"),
            "weight_sum": window.weight_sum,
        }  # fmt: skip
        if window.totals.tokens == 0:
            self.on_empty_window(step)
        if self.recorder and self.accelerator.is_main_process:
            self.recorder.use_rows(step, window.terms_of_row, scalar)

    def on_empty_window(self, step: int) -> None:
        """A step without a single live token: its loss is 0 and it teaches nothing."""
        print(f"warning: step {step} has no live token (every row is masked); its gradient is zero", flush=True)

    def leave_out(self, wall_s: float) -> None:
        """Take `wall_s` seconds, spent on something else than training, out of the current step's wall time."""
        self._step_began += wall_s

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log; ends the step's record."""
        if self._pending_step and "grad_norm" in logs:
            now = time.perf_counter()
            found = {"grad_norm": logs["grad_norm"], "lr": logs.get("learning_rate")}
            rates: Any = {name: None if value is None else float(value) for name, value in found.items()}
            stats = StepStats(**self._pending_step, **rates, wall_s=now - self._step_began)
            self._pending_step, self._step_began = {}, now
            if self.recorder and self.accelerator.is_main_process:
                self.recorder.end_step(stats)
        super().log(logs, start_time)

    def _compute_loss(self, model, inputs: dict[str, Any]) -> Tensor:
        """The loss of one micro-batch with row terms for weights, times the number of ranks that DDP averages."""
        if self.model.training:
            terms_B = self._row_terms(len(inputs["completion_ids"]))
        else:
            window = Window(self.mode.aggregation, self.horizon, self.match_scale)
            terms_RcB = window.add_segment(layout_of(row_facts([inputs])[None]), 0, 1)
            terms_B = torch.from_numpy(terms_RcB[0, 0] * window.scalar)
        terms_B = terms_B.to(self.accelerator.device)
        parts = pieces(inputs, self.cut_by_length)
        losses = [self._piece_loss(model, piece, terms_B[rows]) for rows, piece in parts]
        return torch.stack(losses).sum() * (self.accelerator.num_processes if self.model.training else 1)

    def _get_per_token_logps_and_entropies(self, model, *args: Any, **kwargs: Any):
        """TRL's, with position ids: left to the model, learned ones would count the padding on the left."""

        def positioned(**inputs: Any) -> Any:
            if self._takes_positions:
                inputs["position_ids"] = prompt_positions(inputs["attention_mask"])
            return model(**inputs)

        return super()._get_per_token_logps_and_entropies(positioned, *args, **kwargs)

    def _piece_loss(self, model, piece: dict[str, Tensor], terms_B: Tensor) -> Tensor:
        ids_BT = torch.cat([piece["prompt_ids"], piece["completion_ids"]], dim=1)
        attention_BT = torch.cat([piece["prompt_mask"], piece["completion_mask"]], dim=1)
        mask_BT = loss_mask(piece).bool()
        logp_BT, entropy_BT, _ = self._get_per_token_logps_and_entropies(
            model, ids_BT, attention_BT, piece["completion_ids"].shape[1], compute_entropy=True
        )
        old_BT = piece["old_per_token_logps"] if "old_per_token_logps" in piece else logp_BT.detach()
        surrogate = self.mode.surrogate
        arguments = (logp_BT, old_BT, piece["advantages"], mask_BT, self.surrogate_params)
        loss_BT = surrogate.fn(*arguments)
        if "importance_sampling_ratio" in piece and surrogate.corrects_sampler:
            loss_BT = loss_BT * torch.where(mask_BT, piece["importance_sampling_ratio"], 0.0)
        if self.beta:
            level = self.surrogate_params.importance_sampling_level
            corrected_by = old_BT if self.args.use_bias_correction_kl else None
            kl = kl_BT(logp_BT, piece["ref_per_token_logps"], mask_BT, corrected_by, level)
            loss_BT = loss_BT + self.beta * kl
            self._add("kl", kl.detach().masked_fill(~mask_BT, 0).sum())
        loss = weighted_loss(loss_BT, mask_BT, terms_B.to(loss_BT.dtype))
        assert entropy_BT is not None
        clipped_BT = surrogate.clipped_BT(*arguments)
        self._add("loss", loss.detach())
        self._add("entropy", entropy_BT.detach().masked_fill(~mask_BT, 0).sum())
        if clipped_BT is not None:
            self._add("clipped", clipped_BT.sum())
        return loss

    def _add(self, name: str, value: Tensor) -> None:
        if self.model.training:
            self._sums[name] = self._sums.get(name, value.new_zeros((), dtype=torch.float64)) + value.double()


def _switch_dropout_off(model: Any) -> None:
    """Set every dropout probability of `model` to 0, adapters included, for good.

    TRL's `disable_dropout_in_model` does it for dropout modules; here also for the probabilities that a module keeps as
    a number, or reads from its config at each forward. Unlike evaluation mode it leaves gradient checkpointing on.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, float) and any(noise in name for noise in _NOISE):
                    setattr(holder, name, 0.0)
