"""verl's logs, laid out as it writes them; what every format shares; and what is refused."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.logs import completion, lines, notes, read, refusal, verl_lines, verl_log, words, written
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.formats.verl import _VALIDATION
from lossbench.ingest.sweep_folder import ingest
from lossbench.store.read import load


@pytest.fixture
def verl_folder(tmp_path):
    return verl_log(tmp_path)


def test_verl_dumps_and_metrics(verl_folder, tmp_path):
    result = ingest(verl_folder, tmp_path / "out", "auto", Request(), Reading(words))
    assert result.format == "verl"
    sweep = load(tmp_path / "out")
    assert sweep.runs.iloc[0][["mode", "seed"]].tolist() == ["dapo", 1]
    rows = sweep.rollouts
    assert rows["step"].tolist() == [1] * 4 + [2] * 4 + [10] * 4  # by number, not by name
    assert rows["group"].tolist() == [0, 0, 1, 1] * 3 and rows["sample"].tolist() == [0, 1] * 6
    assert rows["length_tokens"].tolist() == [1, 2, 1, 2, 2, 3, 2, 3, 10, 11, 10, 11]
    assert rows["correct"].tolist() == [False, True] * 6
    evals = sweep.evals
    assert evals["step"].tolist() == [0, 0, 0] and evals["prompt_id"].tolist() == [0, 1, 2]
    steps = sweep.steps.set_index("step")
    assert steps.loc[2, ["length_mean", "length_correct", "length_incorrect"]].tolist() == [2.5, 3.0, 2.0]
    assert steps.loc[10, ["length_mean", "grad_norm", "wall_s", "reward_mean"]].tolist() == [7.0, 2.0, 3.0, 0.5]
    assert steps["generation"].tolist() == [1, 2, 3]
    assert pd.isna(steps.loc[2, "grad_norm"])


def test_a_prompt_drawn_twice_in_a_step_is_two_groups_where_their_size_is_known(tmp_path):
    (tmp_path / "1.jsonl").write_text(verl_lines(1, 1, samples=4))
    for generations, groups in ((2, [0, 0, 1, 1]), (None, [0, 0, 0, 0])):
        out = tmp_path / f"out{generations}"
        read(tmp_path / "1.jsonl", out, generations=generations)
        assert load(out).rollouts["group"].tolist() == groups


def test_groups_go_on_where_a_block_ends(tmp_path, monkeypatch):
    path = tmp_path / "all.jsonl"
    path.write_text("".join(verl_lines(step, 3, 4) for step in (1, 2)))
    read(path, tmp_path / "whole")
    monkeypatch.setattr("lossbench.ingest.reading.BLOCK_BYTES", 100)
    read(path, tmp_path / "blocks")
    whole, blocks = (load(tmp_path / name) for name in ("whole", "blocks"))
    assert len(whole.rollouts) == 24
    pd.testing.assert_frame_equal(whole.rollouts, blocks.rollouts)
    pd.testing.assert_frame_equal(whole.steps, blocks.steps)
    assert whole.steps["zero_std_frac"].tolist() == [0.0, 0.0]


def test_damaged_lines_are_counted_named_and_left_out(tmp_path):
    good = verl_lines(1, 2, 2).splitlines()
    lines = [
        good[0],
        '{"input": "cut',
        good[1],
        "",
        "[1, 2]",
        good[2],
        '{"input": "q", "output": "o", "score": [1]}',
        good[3],
    ]
    path = tmp_path / "1.jsonl"
    path.write_text("\n".join(lines) + "\n")
    result = read(path, tmp_path / "out")
    assert result.damage.count == 3
    assert [example.split(":")[0].rpartition(" ")[2] for example in result.damage.examples] == ["2", "5", "7"]
    assert len(load(tmp_path / "out").rollouts) == 4
    state = json.loads(next((tmp_path / "out" / "runs").glob("*/run.json")).read_text())
    assert state["damaged"] == 3 and "line 2" in state["damaged_examples"][0]


def test_a_line_that_only_python_reads_gives_the_rows_that_duckdb_gives(tmp_path):
    """A lone surrogate is no JSON to DuckDB: such a line is read by Python, and its neighbours are the same."""
    rows = [completion(output="ü", score=float("nan")), completion(score=2.5), completion(acc=True)]
    clean = written(tmp_path / "clean" / "1.jsonl", lines(*rows))
    half = written(tmp_path / "half" / "1.jsonl", lines(*rows, completion(output="\ud83d")) + '{"a": "y"')
    read(clean, tmp_path / "out-clean")
    result = read(half, tmp_path / "out-half")
    one, other = (load(tmp_path / name).table("rollouts").drop(columns="run_id") for name in ("out-clean", "out-half"))
    pd.testing.assert_frame_equal(one, other[:3])
    assert other["completion"][3] == "?" and result.damage.count == 1 and "1.jsonl, line 5" in result.damage.examples[0]


def test_runs_are_added_to_an_ingested_sweep_and_read_again_in_place(tmp_path):
    (tmp_path / "1.jsonl").write_text(verl_lines(1, 2))
    out = tmp_path / "out"
    for mode, seed in (("grpo", 0), ("grpo", 1), ("dr_grpo", 0), ("grpo", 0)):
        read(tmp_path / "1.jsonl", out, mode=mode, seed=seed)
    assert sorted(zip(load(out).runs["mode"], load(out).runs["seed"], strict=True)) == [
        ("dr_grpo", 0),
        ("grpo", 0),
        ("grpo", 1),
    ]
    assert not (out / ".ingest").exists()


def test_the_command(verl_folder, tmp_path):
    arguments = ["ingest", str(verl_folder), "--correct-above", "0.5", "--out", str(tmp_path / "out"), "-f", "json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown[0]["rollouts"] == 12 and shown[0]["evals"] == 3 and shown[0]["length_unit"] == "characters"
    assert "verl log, 1 runs" in done.stderr and "no lengths in tokens" in done.stderr
    said = CliRunner().invoke(app, ["ingest", "--help"]).output.replace("│", " ")
    assert "a verdict of true or false stands" in " ".join(said.split())
    refused = CliRunner().invoke(app, [*arguments, "--map", "length"])
    assert isinstance(refused.exception, UsageError) and "FIELD=COLUMN" in str(refused.exception)


def test_lengths_in_characters_are_named_and_not_judged(tmp_path):
    """A sweep whose completions were counted in characters has no figure of length, and report and compare say why."""
    out = tmp_path / "out"
    (tmp_path / "1.jsonl").write_text(verl_lines(1, 2) + verl_lines(2, 2))
    for mode in ("grpo", "dr_grpo"):
        read(tmp_path / "1.jsonl", out, mode=mode, correct_above=0.5)
    assert load(out).rollouts["length_tokens"].isna().all()
    assert CliRunner().invoke(app, ["report", str(out), "--quiet"]).exit_code == 0
    page = (out / "report" / "report.md").read_text()
    assert "lengths are known in characters, not in tokens: none is shown" in page and "--tokenizer" in page
    compared = CliRunner().invoke(app, ["compare", "grpo", "dr_grpo", "--in", str(out), "-f", "json"])
    assert "lengths are known in characters" in compared.stderr
    rows = {row["metric"]: row for row in json.loads(compared.stdout) if row["at"] == "late window"}
    assert rows["late_length_mean"]["difference"] is None and rows["late_reward"]["difference"] == 0.0
    again = tmp_path / "tokens"
    read(tmp_path / "1.jsonl", again, mode="grpo", count_tokens=words)
    CliRunner().invoke(app, ["report", str(again), "--quiet"])
    assert "in characters" not in (again / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("folder", "evaluations"),
    [
        *((name, True) for name in ("val", "Valid", "validation_data", "val-dump", "eval2", "my_evaluation")),
        *((name, False) for name in ("retrieval", "interval", "train_approval", "naval", "evaluate", "rollout_data")),
    ],
)
def test_a_folder_of_validation_is_named_as_a_word(folder, evaluations):
    assert bool(_VALIDATION.search(folder)) == evaluations


def test_a_run_whose_name_has_val_or_train_in_it_is_a_run(tmp_path):
    for name in ("retrieval-s0", "grpo_train-s1", "dapo-s2"):
        written(tmp_path / "runs" / name / "1.jsonl", lines(completion()))
    read(tmp_path / "runs", tmp_path / "out", seed=None)
    sweep = load(tmp_path / "out")
    assert sorted(sweep.runs["seed"]) == [0, 1, 2] and len(sweep.rollouts) == 3 and sweep.evals.empty


def test_dumps_that_cannot_be_read_are_named_wherever_they_stand(tmp_path):
    folder = tmp_path / "dumps"
    for step, text in enumerate(["", "not json\n" * 30, "[1]\n" * 25 + lines(completion(3)), lines({"a": 1})], start=1):
        written(folder / f"{step}.jsonl", text)
    written(folder / "5.jsonl", lines(completion(5), completion("inf"), completion(10**400), completion(output="x")))
    result = read(folder, tmp_path / "out")
    assert result.format == "verl" and load(tmp_path / "out").rollouts["step"].tolist() == [3, 5, 1]
    assert result.damage.count == 1 + 1 + 25 + 1 + 2
    assert [example.split(": ")[0].split("/")[-1] for example in result.damage.examples] == [
        "1.jsonl", "2.jsonl", "3.jsonl, line 1", "3.jsonl, line 2", "3.jsonl, line 3",
    ]  # fmt: skip


def test_damage_is_counted_for_the_run_that_has_it(tmp_path):
    written(tmp_path / "runs" / "grpo-s0" / "1.jsonl", lines(completion()) + '{"torn\n' * 7)
    written(tmp_path / "runs" / "grpo-s1" / "1.jsonl", lines(completion()) + '{"torn\n')
    written(tmp_path / "runs" / "grpo-s2" / "1.jsonl", lines(completion()))
    result = read(tmp_path / "runs", tmp_path / "out", mode=None, seed=None)
    assert [run["damaged"] for run in result.runs.values()] == [7, 1, 0] and result.damage.count == 8
    assert [len(run["damaged_examples"]) for run in result.runs.values()] == [5, 1, 0]
    assert "grpo-s1" in result.runs[list(result.runs)[1]]["damaged_examples"][0]


@pytest.mark.parametrize("length", [3.5, -1, "inf", 1e300])
def test_a_length_that_counts_nothing_is_refused(length, tmp_path):
    log = written(tmp_path / "1.jsonl", lines(completion(n=length)))
    said = refusal(log, tmp_path / "out", columns={"length": "n"})
    assert "is no number of tokens: name another column with --map length=COLUMN" in said


def test_text_that_no_file_can_hold_is_kept_but_for_that_character(tmp_path):
    log = written(tmp_path / "1.jsonl", lines(completion(output="half \ud83d"), completion(output="whole \U0001f600")))
    result = read(log, tmp_path / "out")
    assert result.damage.count == 0
    assert load(tmp_path / "out").table("rollouts")["completion"].tolist() == ["half ?", "whole \U0001f600"]


@pytest.mark.parametrize("line", ["null", "3", '"x"', "[1]", "{} null", '{"step": 1}{"step": 2}'])
@pytest.mark.parametrize("first", [True, False])
def test_a_line_that_is_no_object_is_damage(line, first, tmp_path):
    good = lines(completion())
    log = written(tmp_path / "1.jsonl", f"{line}\n{good}" if first else f"{good}\n  {good}{line}")
    result = read(log, tmp_path / "out")
    assert result.damage.count == 1 and f"line {1 if first else 4}: " in result.damage.examples[0]
    assert len(load(tmp_path / "out").rollouts) == (1 if first else 2)


def test_brackets_without_end_are_damage(tmp_path):
    log = written(tmp_path / "1.jsonl", lines(completion()) + "[" * 100_000 + "\n" + '{"step": ' + "9" * 5000 + "}\n")
    assert read(log, tmp_path / "out").damage.count == 2


@pytest.mark.parametrize(
    ("ended", "lengths", "noted"),
    [([True, False], [3, 2], False), ([True, None], [3, 2], True), ([None, None], [2, 2], True)],
)
def test_an_eos_that_cannot_be_counted_is_said(ended, lengths, noted, tmp_path):
    rows = [completion(end=value) if value is not None else completion() for value in ended]
    columns = {"terminated": "end"} if any(ended) else {}
    result = read(written(tmp_path / "1.jsonl", lines(*rows)), tmp_path / "out", columns=columns, count_tokens=words)
    assert load(tmp_path / "out").rollouts["length_tokens"].tolist() == lengths
    assert ("one token short, as their EOS is not counted (--map terminated=COLUMN)" in notes(result)) == noted


@pytest.mark.parametrize(
    ("verdicts", "above", "correct"),
    [
        ([0.0, 0.6], 0.9, [False, False]),
        ([0.0, 0.6], None, [False, True]),
        ([False, True], 0.9, [False, True]),
        ([None, None], 0.9, [True, True]),
    ],
)
def test_what_correct_above_applies_to(verdicts, above, correct, tmp_path):
    rows = [completion(acc=verdict) if verdict is not None else completion() for verdict in verdicts]
    read(written(tmp_path / "1.jsonl", lines(*rows)), tmp_path / "out", correct_above=above)
    assert load(tmp_path / "out").rollouts["correct"].tolist() == correct


def test_an_unscored_completion_is_not_incorrect(tmp_path):
    log = written(tmp_path / "1.jsonl", lines(completion(), completion(score=float("nan"))))
    read(log, tmp_path / "out", correct_above=0.5)
    rows = load(tmp_path / "out").rollouts
    assert rows["correct"].tolist()[0] and pd.isna(rows["correct"][1])


def test_an_error_of_writing_is_raised(tmp_path, monkeypatch):
    class Full(pq.ParquetWriter):
        def write_table(self, *args, **options):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("lossbench.ingest.writing.pq.ParquetWriter", Full)
    path = written(tmp_path / "grpo-s0.csv", "step,completion\n1,a\n1,b\n")
    with pytest.raises(OSError, match="No space left"):
        read(path, tmp_path / "out", mode=None, seed=None)
    assert not (tmp_path / "out").exists()
