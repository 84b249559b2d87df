"""End of a completion: its first EOS, regardless of the sampler."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lossbench.errors import UsageError


def completion_tokens(ids: Sequence[int], eos_ids: Collection[int]) -> int:
    """Length in tokens: up to the first EOS and with it; all of them if it has none.

    >>> completion_tokens([5, 6, 1, 0, 0], [1]), completion_tokens([5, 6, 1, 1], [1]), completion_tokens([5, 6], [1])
    (3, 3, 2)
    """
    return next((i for i, token in enumerate(ids, start=1) if token in eos_ids), len(ids))


def ended_rows(rollouts: Mapping[str, Any], eos_ids: Collection[int]) -> dict[str, Any]:
    """A rollout function's result with each completion cut at its first EOS, and its log-probabilities alike.

    Rollouts with an `env_mask` are left as they are: they have several turns, each with an EOS of its own. Raises
    UsageError for a completion without tokens.
    """
    rows = rollouts.get("completion_ids")
    if rows is None:
        return dict(rollouts)  # TRL names the keys that are missing
    if empty := [i for i, row in enumerate(rows) if len(row) == 0]:
        raise UsageError(f"rollout_func: completion {empty[0]} has no tokens; valid: at least one, such as an EOS")
    found = {**rollouts, "completion_ids": [_listed(row) for row in rows]}
    if found.get("env_mask") is None:
        lengths = [completion_tokens(row, eos_ids) for row in found["completion_ids"]]
        for name in ("completion_ids", "logprobs"):
            if found.get(name) is not None:
                found[name] = [_listed(row)[:length] for row, length in zip(found[name], lengths, strict=True)]
    return found


def _listed(row: Any) -> list[Any]:
    return row.tolist() if hasattr(row, "tolist") else list(row)
