"""A report compares like with like, and says so where something is not as it was stated."""

import json
from pathlib import Path

from support.made_sweeps import constant_sweep

from lossbench.report.data import gather, reference_of
from lossbench.report.finding import find
from lossbench.report.markdown import render_markdown
from lossbench.report.numbers import MISSING
from lossbench.report.sections import make_document
from lossbench.report.summary import summary_json
from lossbench.report.tables import pairwise_table
from lossbench.store.read import load
from lossbench.store.write import write_json


def test_a_claim_whose_margin_changed_after_the_runs_is_exploratory(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path / "s", {"grpo": [40, 41], "dr_grpo": [20, 21]})
    spec = json.loads((folder / "sweep.json").read_text()) | {"claims": ["C2"], "claims_fingerprint": "0"}
    write_json(folder / "sweep.json", spec)
    said = render_markdown(make_document(gather(load(folder)), {}, folder))
    assert "margin of a claim was changed after the sweep was planned" in said


def test_an_arm_is_held_against_the_baseline_under_the_same_label() -> None:
    names = ["grpo", "dr_grpo", "grpo[cap]", "dr_grpo[cap]", "dr_grpo[other]"]
    policies = dict.fromkeys(names, "selfcheck")
    references = [reference_of(name, names, "grpo", policies) for name in names]
    assert references == [None, "grpo", "grpo", "grpo[cap]", "grpo"]


def test_pairs_of_unlike_policies_are_not_compared(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path / "s", {"grpo": [40, 41], "dr_grpo": [20, 21], "grpo[null]": [30, 31]})
    plan = json.loads((folder / "sweep.json").read_text())
    for run in plan["runs"].values():
        run["policy"] = "selfcheck-null" if run["arm"] == "grpo[null]" else "selfcheck"
    write_json(folder / "sweep.json", plan)
    data = gather(load(folder))
    pairs = [(row["a"], row["b"]) for row in summary_json(data)["pairwise"]]
    assert pairs == [("grpo", "dr_grpo")]
    table = pairwise_table(data, "late_length_incorrect")
    assert table is not None and [cell.text for cell in table.rows[-1][1:]] == [MISSING, MISSING]


def test_a_factor_that_would_contradict_the_means_is_left_out(tmp_path: Path) -> None:
    # grpo is longer in the mean, 55 against 40 tokens, and 0.91 times as long in the mean of the pairs.
    folder = constant_sweep(tmp_path / "s", {"grpo": [100, 10] * 4, "dr_grpo": [60, 20] * 4})
    assert "0.91" not in find(gather(load(folder))).sentence
