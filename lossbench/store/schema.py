"""The one place that says which columns lossbench's parquet files have, in which type and unit.

`schema_for` turns a table below into a `pyarrow.Schema`. Writers cast to it and readers rely on it: a column that was
null for a whole run is still a column of numbers. Null means not applicable or not known, never zero.
"""

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Column:
    """One column: its name, what it holds (with unit), and its arrow type."""

    name: str
    doc: str
    type: pa.DataType


_category = partial(Column, type=pa.dictionary(pa.int32(), pa.string()))
_integer, _real = partial(Column, type=pa.int64()), partial(Column, type=pa.float64())
_flag, _text = partial(Column, type=pa.bool_()), partial(Column, type=pa.string())

_RUN = [
    _category("run_id", "the run's folder name"),
    _category("mode", "preset name where the triple has one, else the full triple"),
    _category("loss_type", "surrogate: per-token loss"),
    _category("agg_mode", "aggregation: row weights (verl's names)"),
    _category("scale_rewards", "standard deviation that divides the advantage: group, batch or none (TRL's names)"),
    _category("advantage_name", "advantage: centre, scale and whitening, as in the mode's name (since schema 2)"),
    _integer("seed", "seed of the run; equal seeds are paired across modes"),
]

_COMPLETION = [
    _integer("prompt_id", "number of the prompt in its task"),
    _integer("group", "number of the group (one prompt drawn once) within its generation"),
    _integer("sample", "number of the completion within its group"),
    _integer("length_tokens", "tokens of the completion, EOS included"),
    _flag("terminated", "an EOS was produced, whatever the length"),
    _real("reward", "reward given to the trainer"),
    _flag("correct", "whether the verifier accepted the answer, even if it was cut off"),
]

_TEXT = [
    _category("prompt", "prompt text (null where text is not kept)"),
    _text("completion", "completion text (null where text is not kept)"),
    _integer("length_chars", "length in characters, only in an ingested log whose tokens are not known; else null"),
]

TABLES: dict[str, list[Column]] = {
    "steps": [
        *_RUN,
        _integer("step", "optimizer step, from 1"),
        _integer("generation", "sampling round that began with this step, from 1; null where none began"),
        _real("reward_mean", "mean reward of the rows sampled for this step"),
        _real("length_mean", "mean length of those rows, tokens"),
        _real("length_correct", "mean length of the correct ones, tokens"),
        _real("length_incorrect", "mean length of the incorrect ones, tokens"),
        _real("length_terminated", "mean length of those that ended with an EOS, tokens"),
        _real("truncated_frac", "share of rows cut at the cap"),
        _real("zero_std_frac", "share of groups whose rewards are all equal"),
        _real("loss", "the trained scalar: a different quantity in each mode, never compared"),
        _real("grad_norm", "gradient norm before clipping"),
        _real("entropy", "mean entropy of the policy per token, nats"),
        _real("clip_frac", "share of tokens on which the clip (or cap) is active"),
        _real("kl", "mean KL to the reference policy per token, nats; null at beta 0"),
        _real("lr", "learning rate of the step"),
        _real("weight_sum", "sum of the row weights of the step: the effective normaliser"),
        _integer("tokens", "completion tokens used by the step"),
        _real("wall_s", "wall-clock seconds of the step, sampling included"),
    ],
    "rollouts": [
        *_RUN,
        _integer("generation", "sampling round, from 1"),
        _integer("step", "first optimizer step that used the row, from 1"),
        *_COMPLETION,
        _real("advantage", "advantage given to every token of the row"),
        _real("token_weight", "weight of each of the row's token losses in that step"),
        *_TEXT,
    ],
    "evals": [
        *_RUN,
        _integer("step", "optimizer steps made before this evaluation (0: the initial policy)"),
        *_COMPLETION,
        *_TEXT,
    ],
    "probe": [
        _category("policy", "the frozen policy probed"),
        _integer("step", "training step of that policy, 0 for an untrained one"),
        _integer("pair", "number of the pair of rollout batches"),
        _integer("half", "which batch of the pair the row belongs to: 0 or 1"),
        *_COMPLETION,
        _category("direction", "incorrect, correct, all, or random-k"),
        _category("metric", "plain or adam"),
        _real("projection", "directional derivative of the completion's log-probability"),
    ],
}


def schema_for(table: str) -> pa.Schema:
    """The arrow schema of `table`, with the schema version in its metadata."""
    fields = [pa.field(column.name, column.type) for column in TABLES[table]]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION), "lossbench_table": table})
