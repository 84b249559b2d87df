"""Frameworks in which a surrogate, an aggregation and an advantage are set one by one, as tables of their settings.

Read off the frameworks' code: OpenRLHF 0.11.2, SkyRL 0.3, prime-rl and slime of autumn 2026. H stands for the horizon.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lossbench.loss.modes import Mode


@dataclass(frozen=True)
class Framework:
    """Settings by part; a part that is missing is not available. `short` names the aggregation in one word or two.

    `nearest` says what to take instead, and `conditions` what holds for every mode.
    """

    name: str
    surrogates: Mapping[str, str]
    aggregations: Mapping[str, str]
    advantages: Mapping[str, str]
    short: Mapping[str, str]
    nearest: str
    conditions: tuple[str, ...]

    def missing(self, mode: Mode, agg_mode: str) -> str:
        """The parts of the mode that are not available, with the nearest setting; empty for none."""
        parts = (
            ("surrogate", mode.loss_type, self.surrogates),
            ("aggregation", agg_mode, self.aggregations),
            ("advantage", mode.advantage, self.advantages),
        )
        lacking = [f"{kind} {name}" for kind, name, known in parts if name not in known]
        return f"no {' and no '.join(lacking)}; nearest: {self.nearest}" if lacking else ""

    def settings(self, mode: Mode, agg_mode: str) -> tuple[str, ...]:
        """The settings to paste; parts that are the only choice need none."""
        found = self.surrogates[mode.loss_type], self.aggregations[agg_mode], self.advantages[mode.advantage]
        return tuple(line for text in found if text for line in text.split("\n"))


_SKYRL = "trainer.algorithm"
BY_PARTS = (
    Framework(
        name="OpenRLHF 0.11.2",
        surrogates={"grpo": "--actor.policy_loss_type ppo --actor.eps_clip 0.2"},
        aggregations={
            "token-mean": "--actor.loss_agg_mode token-mean",
            "seq-mean-token-mean": "--actor.loss_agg_mode seq-mean-token-mean",
        },
        advantages={
            "group": "--algo.advantage.estimator group_norm",
            "none": "--algo.advantage.estimator dr_grpo",
        },
        short={"token-mean": "token-mean", "seq-mean-token-mean": "seq-mean-token-mean"},
        nearest="token-mean with estimator dr_grpo, which takes the std away and adds no constant divisor",
        conditions=("estimator dr_grpo is the advantage alone", "empty rows are left out of the sequence count"),
    ),
    Framework(
        name="SkyRL 0.3",
        surrogates={
            "grpo": f"{_SKYRL}.policy_loss_type=regular",
            "gspo": f"{_SKYRL}.policy_loss_type=gspo",
        },
        aggregations={
            "token-mean": f"{_SKYRL}.loss_reduction=token_mean",
            "micro-token-mean": f"{_SKYRL}.loss_reduction=token_mean_legacy",
            "seq-mean-token-mean": f"{_SKYRL}.loss_reduction=sequence_mean",
            "seq-mean-token-sum-norm": f"{_SKYRL}.loss_reduction=seq_mean_token_sum_norm\n{_SKYRL}.max_seq_len=H",
            "prompt-mean": f"{_SKYRL}.loss_reduction=prompt_mean",
        },
        advantages={
            "group": f"{_SKYRL}.advantage_estimator=grpo\n{_SKYRL}.grpo_norm_by_std=true",
            "none": f"{_SKYRL}.advantage_estimator=grpo\n{_SKYRL}.grpo_norm_by_std=false",
        },
        short={
            "token-mean": "token_mean",
            "micro-token-mean": "token_mean_legacy",
            "seq-mean-token-mean": "sequence_mean",
            "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
            "prompt-mean": "prompt_mean",
        },
        nearest="loss_reduction token_mean, sequence_mean, seq_mean_token_sum_norm or prompt_mean with estimator grpo",
        conditions=("KL and entropy terms are not reduced by loss_reduction: they keep a mean per sequence",),
    ),
    Framework(
        name="prime-rl",
        surrogates={"dppo": ""},
        aggregations={"token-mean": ""},
        advantages={"none": ""},
        short={"token-mean": "default"},
        nearest="dppo@token-mean/none, which is its one loss",
        conditions=(
            "its default loss adds 1e-3·(log r)² to the masked policy term",
            "another loss is given as an import path",
        ),
    ),
    Framework(
        name="slime",
        surrogates={"grpo": "--eps-clip 0.2 --eps-clip-high 0.2", "gspo": "--advantage-estimator gspo"},
        aggregations={"seq-mean-token-mean": "", "token-mean": "--calculate-per-token-loss"},
        advantages={"group": "", "none": "--disable-grpo-std-normalization"},
        short={"seq-mean-token-mean": "default", "token-mean": "per-token loss"},
        nearest="the default (seq-mean-token-mean), or a reducer by --custom-pg-loss-reducer-function-path",
        conditions=(
            "the mean of a row that was sampled in several parts is over all its parts",
            "with --calculate-per-token-loss an empty row counts as one token",
            "its eps beside the deviation is 1e-6, here 1e-4",
        ),
    ),
)
