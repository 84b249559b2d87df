"""Reports from made sweeps: the files, the numbers in them, what is missing, what is untrusted."""

import base64
import csv
import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.made_sweeps import Plan, constant_sweep, make_sweep, run_labels, sweep_spec

from lossbench.errors import UsageError
from lossbench.report.data import ReportData, gather
from lossbench.report.document import Document
from lossbench.report.figures import FIGURES
from lossbench.report.finding import find
from lossbench.report.html import render_html
from lossbench.report.markdown import render_markdown
from lossbench.report.sections import make_document
from lossbench.report.summary import summary_csv
from lossbench.report.tables import verdict_table
from lossbench.report.write import Report, make_report
from lossbench.store.read import load
from lossbench.store.write import write_json, write_table

FAMILY = ("C1", "C2", "C4", "C5", "C6")
ALERT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("sweep") / "three", Plan(seeds=7, steps=20, claims=["C1", "C2", "C9"]))


@pytest.fixture(scope="module")
def made(sweep: Path) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DISPLAY", raising=False)
        patch.setenv("MPLBACKEND", "TkAgg")
        return make_report(sweep)


def documented(data: ReportData, folder: Path) -> Document:
    return make_document(data, {}, folder)


def sentence(folder: Path) -> str:
    return find(gather(load(folder))).sentence


def test_all_files_are_there(made: Report) -> None:
    assert made.complete
    for name in ("index.html", "report.md", "summary.csv", "summary.json"):
        assert (made.folder / name).stat().st_size > 500, name
    drawn = {path.stem for path in (made.folder / "figures").glob("*.png")}
    assert drawn == set(FIGURES) - {"drift", "dose_response", "response", "policies", "trained_drift"}  # no probe
    for name in drawn:
        assert (made.folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (made.folder / "figures" / f"{name}.svg").read_text()[:2000]


def test_the_page_is_one_file_with_one_script_of_its_own(made: Report) -> None:
    page = (made.folder / "index.html").read_text()
    assert len(page) < 2_000_000
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == page.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert not re.search(r"""(?:src|href)=["'](?!#|report\.md|summary\.)""", page)
    figures = len(list((made.folder / "figures").glob("*.svg")))
    assert page.count('<figure class="plot"') == figures == len(re.findall(r'role="img" aria-label="[^"]{30,}"', page))
    assert "#ffffff" not in page.split("</style>")[1], "a ground that stays white in the dark"
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_the_first_figure_says_what_was_found_and_shows_two_modes(made: Report) -> None:
    page = (made.folder / "index.html").read_text()
    assert page.index("<h1>") < page.index('id="figure-lengths"') < page.index("<nav")
    hero = (made.folder / "figures" / "lengths.svg").read_text()
    labels = re.findall(r">((?:dr_)?grpo (?:in)?correct)<", hero)
    assert sorted(labels) == ["dr_grpo correct", "dr_grpo incorrect", "grpo correct", "grpo incorrect"]
    assert "dr_grpo&#x27;s incorrect completions end" in hero or "dr_grpo's incorrect completions end" in hero
    assert "cap 128" in hero or "cap 128 lies above" in hero


def test_every_section_is_linked_and_titled(made: Report) -> None:
    page = (made.folder / "index.html").read_text()
    ids = re.findall(r'<section id="([a-z]+)"', page)
    assert ids == re.findall(r'<li><a href="#([a-z]+)"', page)
    shown, folded = ["verdicts", "why", "modes", "warnings"], ["training", "matched", "pairs", "lengths", "weights"]
    assert ids == [*shown, *folded, "guards", "samples", "reproduce"]
    assert re.findall(r'<section id="([a-z]+)"[^>]*>\s*<details', page) == [*folded, "guards", "samples"]


def test_markdown_links_the_figures_that_are_there(made: Report) -> None:
    links = re.findall(r"\]\((figures/[^)]+)\)", (made.folder / "report.md").read_text())
    assert len(links) == len(list((made.folder / "figures").glob("*.png")))
    assert all((made.folder / link).is_file() for link in links)


def test_the_same_sweep_gives_the_same_bytes(made: Report, sweep: Path, tmp_path: Path) -> None:
    first, second = made.folder, make_report(sweep, out=tmp_path / "again").folder
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) > 15
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_summary_holds_finding_verdicts_and_no_nan(made: Report) -> None:
    def refuse(token: str) -> float:
        raise AssertionError(token)

    summary = json.loads((made.folder / "summary.json").read_text(), parse_constant=refuse)
    assert summary["complete"] is True
    assert summary["finding"].startswith("dr_grpo's completions end shorter than grpo's: ")
    assert {verdict["claim"]: verdict["status"] for verdict in summary["verdicts"]}["C9"] == "not tested"
    assert [arm["completed"] for arm in summary["arms"]] == [7, 7, 7]
    pushed = {(row["arm"], row["mode"]): row for row in summary["pushes"]}
    assert pushed["grpo", "grpo"]["own"] and not pushed["grpo", "dr_grpo"]["own"]
    assert pushed["grpo", "grpo"]["push_incorrect"] < -0.2 < pushed["grpo", "dr_grpo"]["push_incorrect"]
    assert {row["basis"] for row in summary["matched"]} == {"step", "tokens", "reward"}


def test_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    # grpo 40, 44, dr_grpo 20, 22: means 42 and 21, differences -20 and -22, mean -21;
    # t interval -21 ± 12.706 x sqrt(2)/sqrt(2) = -21 ± 12.706; ratio exactly 1/2 in both pairs.
    folder = constant_sweep(tmp_path, {"grpo": [40, 44], "dr_grpo": [20, 22]})
    data = gather(load(folder))
    rows = {(row["arm"], row["metric"]): row for row in csv.DictReader(io.StringIO(summary_csv(data)))}
    row = rows["dr_grpo", "late_length_incorrect"]
    assert (float(row["mean"]), float(row["difference"]), row["n"], row["reference"]) == (21, -21, "2", "grpo")
    assert float(row["ci_low"]) == pytest.approx(-33.706, abs=1e-3)
    assert float(row["ci_high"]) == pytest.approx(-8.294, abs=1e-3)
    assert float(row["ratio"]) == pytest.approx(0.5)
    assert rows["grpo", "late_length_incorrect"]["difference"] == ""
    assert find(data).sentence == (
        "Can't tell whether dr_grpo's incorrect completions end shorter than grpo's: 20.0 vs 40.0 tokens and 22.0 vs "
        "44.0 tokens in 2 pairs of runs on this one policy; 6 are the fewest that can."
    )


def test_a_finding_has_size_interval_p_and_n(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path, {"grpo": [40, 41, 42, 43, 44, 46], "dr_grpo": [20, 21, 22, 23, 24, 25]})
    assert sentence(folder) == (
        "dr_grpo's incorrect completions end shorter than grpo's: 22.5 vs 42.7 tokens (−20.2 [−20.6, −19.7], "
        "p = 0.031, 6 pairs of runs on 2 policies)."
    )


def test_the_first_claim_is_answered_in_the_direction_of_the_tables(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path, {"grpo": [40, 41, 42, 43, 44, 46], "dr_grpo": [20, 21, 22, 23, 24, 25]})
    spec = json.loads((folder / "sweep.json").read_text()) | {"claims": ["C2", "C3"]}
    write_json(folder / "sweep.json", spec)
    data = gather(load(folder))
    finding = find(data)
    # One p: that of the verdict, after Holm over the one primary claim.
    assert "(−20.2 [−20.6, −19.7], p = 0.016, 6 pairs" in finding.sentence
    assert finding.sentence.endswith("Claim C2: supported.")
    cells = verdict_table(data)
    assert cells is not None and cells.rows[0][1].text.startswith("−20.2 [−20.6, −19.7]")
    assert (cells.rows[0][1].note, cells.rows[0][4].text) == ("dr_grpo − grpo", "0.016")


def test_what_cannot_be_told_apart_is_said(tmp_path: Path) -> None:
    mixed = constant_sweep(tmp_path / "a", {"grpo": [20, 21, 22, 23, 24, 25], "dr_grpo": [21, 20, 23, 22, 25, 24]})
    assert sentence(mixed).startswith("Can't tell whether dr_grpo's incorrect completions end shorter than grpo's")
    same = constant_sweep(tmp_path / "b", {"grpo": [20, 21], "dr_grpo": [20, 21]})
    assert "identical in 2 pairs" in sentence(same)
    few = constant_sweep(tmp_path / "c", {"grpo": [40, 41, 42, 43], "dr_grpo": [20, 21, 22, 24]})
    assert sentence(few).startswith("Can't tell") and "6 are the fewest that can" in sentence(few)


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    single = constant_sweep(tmp_path / "a", {"grpo": [40], "dr_grpo": [20]})
    assert "20.0 vs 40.0 tokens in 1 pair of runs" in sentence(single)
    running = constant_sweep(tmp_path / "c", {"grpo": [40], "dr_grpo": [20]}, status="running")
    assert "no run of dr_grpo and grpo is completed" in sentence(running)


def test_a_single_mode_gets_its_diagnosis_and_no_empty_section(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, Plan(("grpo",), 1, 20))
    (folder / "runs" / "grpo-s0" / "steps.parquet").unlink()  # its step rows lack what a real run's have
    report = make_report(folder)
    assert sentence(folder).startswith("Wrong answers ") and sentence(folder).endswith("(grpo, 1 run)")
    text = (report.folder / "report.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "The run" and "Verdicts" not in titles and "Every pair of modes" not in titles
    assert "minus reference" not in text and "baseline: " not in text


def test_without_incorrect_completions_the_mean_length_speaks(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, Plan(("grpo", "dr_grpo"), 2, 5, accuracy=1.1))
    data = gather(load(folder))
    assert find(data).metric == "late_length_mean"
    assert "no late completion is incorrect" in render_markdown(documented(data, tmp_path))


def test_completions_are_shown_as_text(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, Plan(("grpo", "dr_grpo"), 1, 5))
    run_id, labels = run_labels("grpo", 0)
    names = ("mode", "loss_type", "agg_mode", "scale_rewards", "seed")
    rows = [
        {"run_id": run_id, **{name: labels[name] for name in names}, "step": step, "generation": step, "group": 0,
         "sample": 0, "length_tokens": 9, "terminated": True, "reward": 0.0, "correct": False,
         "prompt": "![x](http://evil) `q", "completion": f"```\n{ALERT}\n</pre></details>\x1b[2J"}
        for step in range(1, 6)
    ]  # fmt: skip
    write_table(folder / "runs" / run_id / "rollouts.parquet", "rollouts", rows)
    document = documented(gather(load(folder)), tmp_path)
    page, text = render_html(document), render_markdown(document)
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert r"&lt;/pre&gt;&lt;/details&gt;\u001b[2J" in page
    fences = re.findall(r"^(`{3,})text$", text, re.MULTILINE)
    assert "````" in fences
    inside = re.search(r"^````text\n(.*?)\n````$", text, re.MULTILINE | re.DOTALL)
    assert inside is not None
    assert ALERT in inside[1]
    assert ALERT not in text.replace(inside[0], "").split("<summary>grpo")[0]


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path, {"grpo": [40, 41], "dr_grpo": [20, 21]})
    spec = json.loads((folder / "sweep.json").read_text())
    spec["name"], spec["command"] = ALERT, f"lossbench sweep '{ALERT}' ```"
    for run in spec["runs"].values():
        run["arm"] = run["arm"].replace("dr_grpo", f"dr_grpo[<b>|{ALERT}]")
    write_json(folder / "sweep.json", spec)
    document = documented(gather(load(folder)), tmp_path)
    assert ALERT not in render_html(document)
    assert r"\<script\>alert(1)\</script\>" in render_markdown(document)
    assert r"\<b\>\|" in render_markdown(document)


def test_samples_are_shortest_median_longest_of_each_kind(sweep: Path) -> None:
    data = gather(load(sweep))
    document = documented(data, sweep)
    samples = [
        block
        for section in document.sections
        if section.id == "samples"
        for block in section.blocks
        if block.kind == "details"
    ]
    assert [block.title.split(":")[0] for block in samples] == ["grpo, seed 0", "dr_grpo, seed 0", "dapo, seed 0"]
    rows = load(sweep).rollouts.query("run_id == 'grpo-s0' and step > 16 and correct == False")
    lengths = np.sort(rows["length_tokens"])
    wanted = (lengths[0], lengths[len(lengths) // 2], lengths[-1])
    late = [item for item in samples[0].blocks if item.label.startswith("late, incorrect")]
    assert [item.label.rsplit(" ", 1)[1] for item in late] == ["shortest", "median", "longest"]
    assert [int(item.facts.split()[0]) for item in late] == list(wanted)
    assert all(item.prompt == "3+4=" and item.completion.startswith("70") for item in late)


def test_missing_and_damaged_runs_are_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, Plan(("grpo", "dr_grpo"), 3, 5, text=False))
    (folder / "runs" / "grpo-s0" / "rollouts.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    (folder / "runs" / "dr_grpo-s1" / "steps.parquet").write_bytes(b"")
    reason = {"status": "failed", "reason": "ValueError: boom"}
    write_json(folder / "runs" / "dr_grpo-s2" / "run.json", reason)
    (folder / "runs" / "grpo-s2" / "run.json").unlink()
    data = gather(load(folder))
    document = documented(data, folder)
    assert not data.complete
    assert document.incomplete == (
        "This report is incomplete: 2 of 6 planned runs not completed; 2 files could not be read."
    )
    text = render_markdown(document)
    assert "runs/grpo-s0/rollouts.parquet: damaged" in text
    assert "steps.parquet: damaged" in text
    assert "ValueError: boom" in text
    assert str(tmp_path) not in text.split("## What is missing")[1]
    assert "dr\\_grpo-s2" in text
    assert {arm.name: (arm.completed, arm.planned) for arm in data.arms} == {"grpo": (2, 3), "dr_grpo": (2, 3)}


def test_a_sweep_that_has_only_begun_is_reported(tmp_path: Path) -> None:
    runs = dict(run_labels(arm, 0) for arm in ("grpo", "dr_grpo"))
    write_json(tmp_path / "sweep.json", sweep_spec(Plan(claims=FAMILY), runs))
    made = make_report(tmp_path)
    assert not made.complete
    assert {verdict.status for verdict in made.data.verdicts} == {"not tested"}
    assert [path.stem for path in (made.folder / "figures").glob("*.png")] == ["weights"]


def test_folders_that_are_no_sweep_and_unknown_baselines_are_refused(tmp_path: Path, sweep: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a sweep: it has no sweep\.json"):
        make_report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"runs": []}')
    with pytest.raises(UsageError, match="its plan has no runs"):
        make_report(tmp_path)
    with pytest.raises(
        UsageError, match=r"unknown baseline 'dr_grp': did you mean 'dr_grpo'\? valid: grpo, dr_grpo, dapo"
    ):
        make_report(sweep, baseline="dr_grp")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write the report"):
        make_report(sweep, out=tmp_path / "file" / "report")


def test_another_baseline_turns_the_comparison_round(sweep: Path) -> None:
    ours, theirs = gather(load(sweep)), gather(load(sweep), "dr_grpo")
    assert [(arm.name, arm.reference) for arm in theirs.arms] == [
        ("grpo", "dr_grpo"),
        ("dr_grpo", None),
        ("dapo", "dr_grpo"),
    ]
    direct = ours.pair("dr_grpo", "grpo", "late_reward").difference
    assert theirs.pair("grpo", "dr_grpo", "late_reward").difference == pytest.approx(-direct)


def test_claims_changed_afterwards_are_called_exploratory(tmp_path: Path) -> None:
    folder = constant_sweep(tmp_path, {"grpo": [40, 41], "dr_grpo": [20, 21]})
    spec = {**json.loads((folder / "sweep.json").read_text()), "claims": ["C2"], "claims_changed": True}
    write_json(folder / "sweep.json", spec)
    assert "changed after the sweep was planned" in render_markdown(documented(gather(load(folder)), folder))


INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f]")
HOSTILE = "=cmd|'/c calc'!A0\x1b]0;owned\x07\u202egpj\n\n![x](http://evil) $\\frac"


def test_names_with_codes_breaks_and_formulas_are_shown_as_text(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "s", Plan(("grpo", "grpo@token-mean/none"), 2, 5))
    spec = json.loads((folder / "sweep.json").read_text())
    for run in spec["runs"].values():
        if run["arm"] != "grpo":
            run["arm"] = f"{HOSTILE}[{run['arm']}]"
    spec["name"] = spec["command"] = HOSTILE
    write_json(folder / "sweep.json", spec)
    made = make_report(folder)  # draws every figure, for which $ is no mathematics
    page, text = ((made.folder / name).read_text() for name in ("index.html", "report.md"))
    assert not INVISIBLE.search(page) and not INVISIBLE.search(text)
    # Fences and one line of HTML hold no Markdown.
    assert "![x](http" not in re.sub(r"^(`{3,}).*?^\1|^<summary>[^\n]*</summary>$", "", text, flags=re.S | re.M)
    table = (made.folder / "summary.csv").read_text()
    assert not INVISIBLE.search(table)
    assert all(not row["arm"].startswith("=") for row in csv.DictReader(io.StringIO(table)))
    assert "base-uri 'none'; form-action 'none'" in page


def test_mode_names_are_whole_where_they_are_copied_from(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "s", Plan(("grpo", "grpo@length-power:0.5/none"), 2, 5))
    made = make_report(folder)
    page, text = ((made.folder / name).read_text() for name in ("index.html", "report.md"))
    assert not INVISIBLE.search(page) and not INVISIBLE.search(text)
    assert "grpo@<wbr>length-power:0.5/<wbr>none" in page and "grpo@length-power:0.5/none" in text


def test_logs_of_others_promise_less(sweep: Path, tmp_path: Path) -> None:
    text = render_markdown(documented(gather(load(sweep)), tmp_path))
    assert "sampling streams" in text
    other = constant_sweep(tmp_path / "s", {"grpo": [40, 41], "dr_grpo": [20, 21]})
    write_json(other / "sweep.json", json.loads((other / "sweep.json").read_text()) | {"kind": "ingested"})
    text = render_markdown(documented(gather(load(other)), tmp_path))
    assert "sampling streams" not in text and "sampling is for their authors to say" in text
