"""Shared by the conformance tests: our numbers for each row of the vector files, under the framework's own settings."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lossbench.loss.advantages import advantages
from lossbench.loss.aggregations import parse_aggregation
from lossbench.loss.surrogates import SURROGATES, SurrogateParams
from lossbench.loss.token_loss import kl_BT, weighted_loss
from lossbench.loss.window import Window, window_weights

DATA = Path(__file__).parents[1] / "data"
Row = dict[str, Any]
RESULT_KEYS = {
    "loss",
    "grad",
    "backward_loss",
    "metrics",
    "rtol",
    "advantages",
    "std_used",
    "flagged_zero_std",
    "row_losses",
}
# what each framework's loss_type means: surrogate and aggregation
LOSS_TYPES = {
    "grpo": ("grpo", "seq-mean-token-mean"),
    "bnpo": ("grpo", "micro-token-mean"),
    "dr_grpo": ("grpo", "seq-mean-token-sum-norm"),
    "dapo": ("grpo", "token-mean"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "luspo": ("grpo", "seq-mean-token-sum"),
    "vespo": ("vespo", "token-mean"),
}


def document(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


def numbers(values: Any) -> Any:
    """Nested lists with "nan" and "inf" as strings and null for a missing value, as nested lists of floats."""
    if isinstance(values, list):
        return [numbers(value) for value in values]
    return float("nan") if values is None else float(values)


def tensor(values: Any) -> Tensor:
    return torch.tensor(numbers(values), dtype=torch.float64)


def equal(ours: Any, theirs: Any, rtol: float, atol: float) -> bool:
    return torch.allclose(torch.as_tensor(ours, dtype=torch.float64), tensor(theirs), rtol, atol, equal_nan=True)


@dataclass(frozen=True)
class Comparison:
    """One vector row: the settings that name it, both numbers, and whether they agree at the file's tolerance."""

    file: str
    row: Row
    theirs: Row
    ours: Row
    agrees: bool


def _compare(file: str, row: Row, ours: Row, rtol: float, atol: float) -> Comparison:
    agrees = all(equal(value, row[key], rtol, atol) for key, value in ours.items())
    name = {key: value for key, value in row.items() if key not in RESULT_KEYS}
    return Comparison(file, name, {key: row[key] for key in ours}, ours, agrees)


def micro_batch_loss(case: Row, row: Row, logp_BT: Tensor, *, window_tokens: float | None) -> Tensor:
    """Our loss of one micro-batch of a window, as one rank returns it: processes x the rank's share of the window.

    `window_tokens` is a rank's mean share of the window's tokens; None where this micro-batch is the whole window.
    """
    surrogate, agg_mode = LOSS_TYPES[row["loss_type"]]
    mask_BT = tensor(case["completion_mask"]).bool()
    if "tool_mask" in case:
        mask_BT &= tensor(case["tool_mask"]).bool()
    if case.get("overlong_filter"):
        mask_BT &= ~tensor(case["truncated"]).bool()[:, None]
    cap_or_high = {"cispo_cap" if surrogate == "cispo" else "epsilon_high": row["epsilon_high"]}
    level = row["importance_sampling_level"]
    params = SurrogateParams(
        epsilon_low=row["epsilon_low"], delta=row.get("delta"), importance_sampling_level=level, **cap_or_high
    )
    old = case["old_per_token_logps"]
    old_BT = logp_BT.detach() if old is None else tensor(old)
    loss_BT = SURROGATES[surrogate].fn(logp_BT, old_BT, tensor(case["advantages"]), mask_BT, params)
    if row.get("beta"):
        corrected = old_BT if row.get("use_bias_correction_kl") else None
        ref_BT = tensor(case["ref_per_token_logps"])
        loss_BT = loss_BT + row["beta"] * kl_BT(logp_BT, ref_BT, mask_BT, corrected, level)
    micro_batches = case["current_gradient_accumulation_steps"] if case["mode"] == "train" else 1
    lengths_B, one_group_B = mask_BT.sum(-1), torch.zeros(len(mask_BT), dtype=torch.int64)
    window = Window(parse_aggregation(agg_mode), float(case["max_completion_length"]))
    terms_B = window.add(lengths_B, one_group_B, one_group_B)
    tokens = window.totals.tokens if window_tokens is None else window_tokens
    rows = len(lengths_B) * micro_batches
    window.totals = replace(window.totals, rows=rows, micro_batches=micro_batches, tokens=tokens)
    return weighted_loss(loss_BT, mask_BT, terms_B * window.scalar)


def trl_rows() -> Iterator[Comparison]:
    """TRL's rows. Where the window is larger than the vector's micro-batch, its token count is the one TRL states."""
    doc = document("trl_1_16_loss.json")
    cases = {case["id"]: case for case in doc["cases"]}
    for row in doc["results"]:
        case, logp_BT = cases[row["case"]], tensor(cases[row["case"]]["per_token_logps"]).requires_grad_()
        whole = case["mode"] == "eval" or (case["current_gradient_accumulation_steps"] == case["num_processes"] == 1)
        windows = case["steps_per_generation"] / case["current_gradient_accumulation_steps"]
        stated = case["num_items_in_batch"] / case["num_processes"] / windows
        loss = micro_batch_loss(case, row, logp_BT, window_tokens=None if whole else stated)
        loss.backward()
        ours = {"loss": loss.item(), "grad": logp_BT.grad}
        yield _compare("trl_1_16_loss.json", row, ours, row["rtol"], 1e-7 if row["rtol"] > 1e-9 else 1e-14)


def swift_rows() -> Iterator[Comparison]:
    """ms-swift's rows: its `loss` is before the accumulation division, `backward_loss` after it; both are compared."""
    doc = document("swift_loss.json")
    tolerance, cases = doc["header"]["tolerance"], {case["id"]: case for case in doc["cases"]}
    for row in doc["results"]:
        case, logp_BT = cases[row["case"]], tensor(cases[row["case"]]["per_token_logps"]).requires_grad_()
        steps = case["current_gradient_accumulation_steps"]
        whole = case["mode"] == "eval" or steps == case["num_processes"] == 1
        windows = case["steps_per_generation"] / steps
        stated = case["num_items_in_batch"] / case["num_processes"] / windows
        loss = micro_batch_loss(case, row, logp_BT, window_tokens=None if whole else stated)
        undivided = loss * (steps if case["mode"] == "train" else 1)
        undivided.backward()
        ours: Row = {"loss": undivided.item(), "grad": logp_BT.grad}
        if "backward_loss" in row:
            ours["backward_loss"] = loss.item()
        yield _compare("swift_loss.json", row, ours, tolerance["rtol"], tolerance["atol"])


def oat_rows() -> Iterator[Comparison]:
    """oat's rows, advantages included; a dropped row is an empty row, which still counts."""
    doc = document("oat_dr_grpo.json")
    tolerance, cases = doc["header"]["tolerance"], {case["id"]: case for case in doc["cases"]}
    for row in doc["results"]:
        case = cases[row["case"]]
        logp_BT, old_BT = tensor(case["new_logps"]).requires_grad_(), tensor(case["old_logps"])
        group_ids = torch.arange(len(case["rewards"])) // case["group_size"]
        constant = row["critic_type"] == "drgrpo" or row["remove_len_bias"]
        centred = row["critic_type"] == "drgrpo" or row["remove_std_bias"]
        adv_B = torch.from_numpy(
            advantages(tensor(case["rewards"]), group_ids, "none" if centred else "group", eps=1e-8)
        )
        mask_BT = tensor(case["response_mask"]).bool() & tensor(case["row_mask"]).bool()[:, None]
        params = SurrogateParams(epsilon_low=case["cliprange"], epsilon_high=case["cliprange"])
        loss_BT = SURROGATES["grpo"].fn(logp_BT, old_BT, adv_B, mask_BT, params)
        if case["ref_logps"] is not None:
            loss_BT = loss_BT + case["beta"] * kl_BT(logp_BT, tensor(case["ref_logps"]), mask_BT)
        lengths_B, horizon = mask_BT.sum(-1), float(case["generate_max_length"])
        agg_mode = "seq-mean-token-sum-norm" if constant else "seq-mean-token-mean"
        weights_B = window_weights(agg_mode, lengths_B, group_ids, horizon=horizon)
        loss = weighted_loss(loss_BT, mask_BT, weights_B)
        loss.backward()
        ours = {"advantages": adv_B, "loss": loss.item(), "grad": logp_BT.grad}
        yield _compare("oat_dr_grpo.json", row, ours, tolerance["rtol"], tolerance["atol"])


_ADVANTAGE_EPS = {"trl": 1e-4, "ms-swift": 1e-4, "verl": 1e-6, "oat": 1e-8}
_CENTRED_ONLY = {"none", "drgrpo", "grpo, std off", "grpo_vectorized, std off"}


def advantage_rows() -> Iterator[Comparison]:
    """Advantages of four frameworks; several reward functions are first added up with their weights, as TRL does."""
    doc = document("advantages.json")
    tolerance, cases = doc["header"]["tolerance"], {case["id"]: case for case in doc["cases"]}
    for row in doc["results"]:
        case, framework, setting = cases[row["case"]], row["framework"], row["setting"]
        rewards = tensor(case["rewards"])
        weighted = torch.nansum(rewards * tensor(case["weights"]), dim=1)
        weighted[rewards.isnan().all(dim=1)] = float("nan")
        scale = "none" if setting in _CENTRED_ONLY else "batch" if setting == "batch" else "group"
        group_ids = torch.arange(len(weighted)) // case["group_size"]
        ours = {"advantages": advantages(weighted, group_ids, scale, eps=_ADVANTAGE_EPS[framework])}
        vectorized = framework == "verl" and setting.startswith("grpo_vectorized")
        name = "verl grpo_vectorized" if vectorized else "verl grpo" if framework == "verl" else framework
        rtol, atol = tolerance[name]["rtol"], tolerance[name]["atol"]
        if case["id"] == "float_noise":
            atol = max(atol, tolerance["case float_noise"]["atol"])
        if case["group_size"] == 1 and name == "verl grpo":
            rtol = tolerance[name]["group_of_one_rtol"]
        yield _compare("advantages.json", row, ours, rtol, atol)


SOURCES: dict[str, Callable[[], Iterator[Comparison]]] = {
    "trl_1_16_loss.json": trl_rows,
    "swift_loss.json": swift_rows,
    "oat_dr_grpo.json": oat_rows,
    "advantages.json": advantage_rows,
}
