"""Curves and completions in CSV and JSON."""

import json

import pandas as pd
import pytest
from support.logs import lines, notes, read, refusal, written

from lossbench.ingest import reading
from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.reading import _line_blocks
from lossbench.ingest.sweep_folder import ingest
from lossbench.store.read import load


def test_curves_of_every_shape_give_the_same_steps(tmp_path):
    points = [
        (mode, seed, step, 0.1 * step + seed, 10.0 + step)
        for mode in ("grpo", "dr_grpo")
        for seed in (0, 1)
        for step in (1, 2)
    ]
    wide = pd.DataFrame(points, columns=["mode", "seed", "step", "reward_mean", "length_mean"])
    wide.to_csv(tmp_path / "wide.csv", index=False)
    wide.to_json(tmp_path / "records.json", orient="records")
    wide.to_json(tmp_path / "lines.jsonl", orient="records", lines=True)
    (tmp_path / "columns.json").write_text(json.dumps(wide.to_dict("list")))
    wide.melt(["mode", "seed", "step"], var_name="metric").to_csv(tmp_path / "long.csv", index=False)
    charts = pd.DataFrame({"Step": [1, 2]})
    board = tmp_path / "board"
    board.mkdir()
    for (mode, seed), rows in wide.groupby(["mode", "seed"]):
        name = f"{mode}-s{seed}"
        for ours, theirs in (("reward_mean", "train/reward"), ("length_mean", "train/completions/mean_length")):
            charts[f"{name} - {theirs}"] = rows[ours].to_numpy()
            charts[f"{name} - {theirs}__MIN"] = -1.0
            values = [[1e9, step, value] for step, value in zip(rows["step"], rows[ours], strict=True)]
            tag = f"run-{name}-tag-{theirs.replace('/', '_')}"
            if ours == "reward_mean":
                (board / f"{tag}.json").write_text(json.dumps(values))
            else:
                pd.DataFrame(values, columns=["Wall time", "Step", "Value"]).to_csv(board / f"{tag}.csv", index=False)
    charts.to_csv(tmp_path / "wandb.csv", index=False)
    expected = wide.sort_values(["mode", "seed", "step"]).reset_index(drop=True)
    for name in ("wide.csv", "records.json", "lines.jsonl", "columns.json", "long.csv", "wandb.csv", "board"):
        out = tmp_path / f"out-{name}"
        result = ingest(tmp_path / name, out, "auto", Request(), Reading())
        assert (result.format, len(result.runs), result.damage.count) == ("csv", 4, 0), name
        steps = load(out).steps[list(expected.columns)].astype({"mode": str})
        steps = steps.sort_values(["mode", "seed", "step"]).reset_index(drop=True)
        pd.testing.assert_frame_equal(steps, expected, check_dtype=False)
        assert load(out).spec["length_unit"] == "tokens"


def test_a_table_with_several_rows_a_step_holds_completions(tmp_path):
    path = tmp_path / "grpo-s0.csv"
    path.write_text("step,question,response_len,score,ok\n1,q,3,1,yes\n1,q,5,0,no\n1,q\n2,q,4,1,true\n2,q,,0,no\n")
    columns = {"length": "response_len", "reward": "score", "correct": "ok"}
    result = read(path, tmp_path / "out", columns=columns, mode=None, seed=None)
    assert result.damage.count == 1 and "line 4" in result.damage.examples[0]
    rows = load(tmp_path / "out").rollouts
    assert rows["length_tokens"].tolist()[:3] == [3, 5, 4] and pd.isna(rows["length_tokens"][3])
    assert rows["correct"].tolist() == [True, False, True, False]
    assert load(tmp_path / "out").steps["length_incorrect"].tolist()[0] == 5.0


SCALARS = "Wall time,Step,Value\n1,1,{}\n1,2,{}\n"


@pytest.mark.parametrize(
    ("files", "first", "second"),
    [
        ({"c.csv": "Step,run-a - train/reward,run-b - train/reward\n1,0.1,0.9\n2,0.2,0.8\n"}, "run-a", "run-b"),
        (
            {f"run-{run}-tag-train_reward.csv": SCALARS.format(0.1, 0.2) for run in ("alpha", "beta")},
            "alpha",
            "beta",
        ),
        ({"c.csv": "run,step,reward_mean\nalpha,1,0.1\nbeta,1,0.9\n"}, "alpha", "beta"),
        ({"c.csv": "run,step,reward_mean\ngrpo-s0-lr1,1,0.1\ngrpo-s0-lr2,1,0.9\n"}, "grpo-s0-lr1", "grpo-s0-lr2"),
        ({"c.csv": "run,step,completion\nalpha,1,a\nbeta,1,b\n"}, "alpha", "beta"),
    ],
)
def test_runs_that_only_their_names_tell_apart_are_not_merged(files, first, second, tmp_path):
    for name, text in files.items():
        written(tmp_path / "log" / name, text)
    said = refusal(tmp_path / "log", tmp_path / "out")
    assert f"run grpo seed 0 is there twice, '{first}' and '{second}'" in said


def test_the_user_may_say_which_seed_a_run_has(tmp_path):
    path = written(tmp_path / "c.csv", "run,step,reward_mean,number\nalpha,1,0.1,5\nbeta,1,0.9,6\n")
    read(path, tmp_path / "out", seed=None, columns={"seed": "number"})
    assert load(tmp_path / "out").steps[["seed", "reward_mean"]].to_numpy().tolist() == [[5, 0.1], [6, 0.9]]


def test_completions_of_one_run_in_several_tables_follow_each_other(tmp_path):
    written(tmp_path / "log" / "part1.csv", "step,completion,reward\n1,a,1\n1,b,0\n")
    written(tmp_path / "log" / "part2.csv", "step,completion,reward\n2,c,1\n2,d,0\n")
    written(tmp_path / "log" / "curve.csv", "step,kl\n2,0.5\n")
    read(tmp_path / "log", tmp_path / "out")
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["completion"].tolist() == [*"abcd"] and rows["step"].tolist() == [1, 1, 2, 2]
    assert load(tmp_path / "out").steps["kl"].tolist()[1] == 0.5


@pytest.mark.parametrize(
    ("header", "steps"),
    [
        ("_step,train/global_step,train/reward", [10, 20]),
        ("Step,global_step,train/reward", [10, 20]),
        ("_step,trainer/global_step,train/reward", [10, 20]),
        ("_step,other,train/reward", [0, 3]),
        ("Step,other,train/reward", [0, 3]),
    ],
)
def test_wandbs_own_counter_is_the_last_resort(header, steps, tmp_path):
    # The row between is what W&B logs of something else: no step of the trainer, no metric.
    result = read(written(tmp_path / "h.csv", f"{header}\n0,10,0.1\n1,,\n3,20,0.3\n"), tmp_path / "out")
    assert load(tmp_path / "out").steps["step"].tolist() == steps and result.damage.count == 0


@pytest.mark.parametrize("tag", ["critic_rewards_mean", "train_critic_rewards_mean", "train_reward", "reward_mean"])
def test_tags_as_tensorboard_exports_them(tag, tmp_path):
    written(tmp_path / "log" / f"run-grpo-s0-tag-{tag}.csv", SCALARS.format(0.1, 0.2))
    read(tmp_path / "log", tmp_path / "out", mode=None, seed=None)
    assert load(tmp_path / "out").steps["reward_mean"].tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "step,completion\n1,ok\n1,\xe9\n".encode("latin-1"), "a.csv, line 3: not UTF-8: convert the file"),
        ("a.csv", "stép,x\n".encode("utf-16"), "a.csv, line 1: not UTF-8"),
        ("a.csv", 'step,completion\n1,"' + "x" * (1 << 24) + "y\n", "is a quote left open there?"),
        ("r.json", '{"step":[1,2],"reward_mean":[0.1]}', "columns differ in length (step 2, reward_mean 1)"),
        ("r.json", "[" * 100_000, "r.json: not valid JSON"),
        ("r.json", "3", "valid: a list of objects"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_by_name(name, text, message, tmp_path):
    assert message in refusal(written(tmp_path / name, text), tmp_path / "out")


def test_damaged_rows_are_named_and_the_rest_read(tmp_path):
    long = "w" * 200_000
    text = f"step,completion,reward\ninf,a,1\n1,{long},0\nx,a,1\n1e300,a,1\n2,a\n3,b,1\n"
    result = read(written(tmp_path / "c.csv", text), tmp_path / "out")
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["step"].tolist() == [1, 3] and len(rows["completion"][0]) == 200_000
    assert [example.split(" is ")[0].split("line ")[1] for example in result.damage.examples] == [
        "6: 2 cells where the header has 3", "2: step 'inf'", "4: step 'x'", "5: step '1e300'",
    ]  # fmt: skip
    assert next(iter(result.runs.values()))["damaged"] == 4
    curves = written(tmp_path / "curve.csv", "step,reward_mean\ninf,0.1\n1,0.2\n")
    assert read(curves, tmp_path / "curves").damage.count == 1


def test_a_table_of_runs_damages_each_of_them_once(tmp_path):
    text = "mode,seed,step,kl\ngrpo,0,1,0.1\ngrpo,1,1\ndapo,0,x,0.3\ndapo,0,1,0.3\n"
    result = read(written(tmp_path / "c.csv", text), tmp_path / "out", mode=None, seed=None)
    assert {run_id[:4]: run["damaged"] for run_id, run in result.runs.items()} == {"grpo": 1, "dapo": 2}
    assert result.damage.count == 2


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_completions_are_read_in_pieces_and_are_the_same(suffix, tmp_path, monkeypatch):
    rows = [
        {"mode": mode, "seed": seed, "step": step, "question": f"q{p}", "output": "x " * step, "score": float(p == s)}
        for step in (2, 1)
        for mode in ("grpo", "dapo")
        for seed in (0, 1)
        for p in range(2)
        for s in range(3)
    ]
    path = tmp_path / f"all.{suffix}"
    pd.DataFrame(rows).to_csv(path, index=False) if suffix == "csv" else path.write_text(lines(*rows))
    read(path, tmp_path / "whole", kind="csv", mode=None, seed=None)
    monkeypatch.setattr("lossbench.ingest.reading.BLOCK_BYTES", 500)
    monkeypatch.setattr("lossbench.ingest.staging.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    read(path, tmp_path / "pieces", kind="csv", mode=None, seed=None)
    whole, pieces = (load(tmp_path / name) for name in ("whole", "pieces"))
    assert len(whole.runs) == 4 and len(whole.rollouts) == 48
    pd.testing.assert_frame_equal(whole.table("rollouts"), pieces.table("rollouts"))
    pd.testing.assert_frame_equal(whole.steps, pieces.steps)
    assert whole.rollouts["sample"].tolist() == [0, 1, 2] * 16
    assert whole.rollouts["generation"].tolist() == ([1] * 6 + [2] * 6) * 4  # in order of appearance
    assert not any((tmp_path / "temporary").iterdir())


def test_completions_of_several_runs_are_read_once(tmp_path, monkeypatch):
    rows = [
        {"mode": "grpo", "seed": i % 3, "step": 1 + i // 30, "completion": f"x{i}", "correct": i % 2 == 0}
        for i in range(300)
    ]
    rows[250:] = [{**row, "correct": 0.25, "advantage": 1.0} for row in rows[250:]]  # numbers, and a column, begin late
    rows[299]["step"] = None
    path = written(tmp_path / "all.jsonl", lines(*rows[:100]) + "torn\n" + lines(*rows[100:]))
    opened: list[int] = []
    monkeypatch.setattr(reading, "_line_blocks", lambda *args: opened.append(1) or _line_blocks(*args))
    monkeypatch.setattr("lossbench.ingest.reading.BLOCK_BYTES", 5000)
    result = read(path, tmp_path / "out", kind="csv", mode=None, seed=None)
    assert len(opened) == 1
    # The torn line is damage of each run, the row without a step (299 = 3 * 99 + 2) of seed 2 alone.
    assert [run["damaged"] for run in result.runs.values()] == [1, 1, 2] and result.damage.count == 2
    found = load(tmp_path / "out").table("rollouts")
    assert found["completion"].tolist() == [f"x{i}" for seed in range(3) for i in range(seed, 299, 3)]
    assert found["correct"].sum() == 125 and found["advantage"].notna().sum() == 49
    late = lines(*rows[:250], *({**row, "run": "a"} for row in rows[250:]))
    assert "column run begins after row 200" in refusal(written(path, late), tmp_path / "late", kind="csv")


def test_a_byte_order_mark_may_open_the_lines(tmp_path):
    path = written(tmp_path / "grpo-s0.jsonl", "\ufeff" + lines({"step": 1, "completion": "a"}))
    assert read(path, tmp_path / "out", kind="csv", mode=None, seed=None).damage.count == 0
    assert load(tmp_path / "out").rollouts["step"].tolist() == [1]


def test_completions_of_one_run_are_read_once(tmp_path, monkeypatch):
    rows = [{"step": 1 + i // 4, "group": i // 4, "completion": f"x{i}", "reward": i % 2} for i in range(400)]
    rows = [{**row, "advantage": 0.5} if i >= 300 else row for i, row in enumerate(rows)]  # a column that begins late
    path = written(tmp_path / "grpo-s0.jsonl", lines(*rows[:350]) + "torn\n" + lines(*rows[350:]))
    opened: list[int] = []
    monkeypatch.setattr(reading, "_line_blocks", lambda *args: opened.append(1) or _line_blocks(*args))
    result = read(path, tmp_path / "out", kind="csv", mode=None, seed=None)
    assert len(opened) == 1
    assert result.damage.count == 1 and "line 351" in result.damage.examples[0]
    found = load(tmp_path / "out").rollouts
    assert len(found) == 400 and found["advantage"].notna().sum() == 100
    mixed = lines(*rows[:300], *({**row, "mode": "dapo"} for row in rows[300:]))
    assert "column mode begins after row 200" in refusal(written(path, mixed), tmp_path / "late", kind="csv")
    assert not (tmp_path / "late").exists()


def test_a_step_column_can_be_named_for_every_shape(tmp_path):
    path = written(tmp_path / "c.csv", "n,grpo-s0 - train/reward\n5,0.1\n")
    read(path, tmp_path / "out", mode=None, seed=None, columns={"step": "n"})
    assert load(tmp_path / "out").steps["step"].tolist() == [5]
    ragged = written(tmp_path / "l.jsonl", lines({"step": 1, "metric": "kl", "value": 0.5}, {"step": 2, "other": 1}))
    assert "seed 0 assumed" in notes(read(ragged, tmp_path / "long", seed=None))
    assert load(tmp_path / "long").steps["kl"].tolist() == [0.5]


def test_rows_without_a_group_are_of_none(tmp_path):
    rows = [("a", 1.0), (None, 1.0), ("a", 1.0), (None, 0.0), ("b", 0.0), ("b", 1.0)]
    text = lines(*({"step": 1, "group": group, "completion": "x", "reward": reward} for group, reward in rows))
    read(written(tmp_path / "grpo-s0.jsonl", text), tmp_path / "out", kind="csv")
    found = load(tmp_path / "out")
    assert found.rollouts["group"].fillna(-1).tolist() == [0, -1, 0, -1, 1, 1]
    assert found.rollouts["sample"].fillna(-1).tolist() == [0, -1, 1, -1, 0, 1]
    # Two groups: the rewards of a are equal, those of b differ.
    assert found.steps["zero_std_frac"].tolist() == [0.5]


def test_rows_that_name_no_run_are_damage_and_empty_ones_nothing(tmp_path):
    text = "mode,seed,step,kl\ngrpo,0,1,0.1\ngrpo,1a,1,0.2\ngrpo,1,1,0.3\n,,,\n"
    result = read(written(tmp_path / "c.csv", text), tmp_path / "out", mode=None, seed=None)
    assert load(tmp_path / "out").steps[["seed", "kl"]].to_numpy().tolist() == [[0, 0.1], [1, 0.3]]
    assert result.damage.examples == [f"{tmp_path / 'c.csv'}, line 3: its seed is no number"]
    text = text.replace("kl", "completion")
    assert read(written(tmp_path / "t.csv", text), tmp_path / "texts", mode=None, seed=None).damage.count == 1
    assert load(tmp_path / "texts").rollouts["seed"].tolist() == [0, 1]


def test_a_run_that_logged_nothing_does_not_stand_in_the_way_of_others(tmp_path):
    chart = written(tmp_path / "c.csv", "Step,grpo-s0 - train/reward,grpo-s1 - train/reward\n1,0.1,\n2,0.2,\n")
    read(chart, tmp_path / "charts", mode=None, seed=None)
    assert load(tmp_path / "charts").steps["seed"].tolist() == [0, 0]
    table = written(tmp_path / "t.csv", "mode,seed,step,completion\ngrpo,0,1,a\ngrpo,1,x,b\n")
    result = read(table, tmp_path / "out", mode=None, seed=None)
    assert len(result.runs) == 1 and "no row of run 'grpo-s1' can be read" in result.damage.examples[-1]
    only = refusal(written(tmp_path / "o.csv", "step,completion\nx,b\n"), tmp_path / "none")
    assert "holds no csv log" in only and "step 'x' is no number" in only


def test_a_folder_may_be_named_like_a_table(tmp_path):
    (tmp_path / "log" / "old.csv").mkdir(parents=True)
    written(tmp_path / "log" / "new.csv", "step,reward_mean\n1,0.5\n")
    assert len(read(tmp_path / "log", tmp_path / "out").runs) == 1


def test_cells_that_are_no_numbers_are_counted_and_their_rows_read(tmp_path):
    text = "step,completion,reward,length\n1,a,high,3\n1,b,,abc\n1,c,1,4\n"
    result = read(written(tmp_path / "grpo-s0.csv", text), tmp_path / "out", mode=None, seed=None)
    assert [example.split("), ")[1] for example in result.damage.examples] == [
        "line 2: reward 'high' is no number", "line 3: length 'abc' is no number",
    ]  # fmt: skip
    assert load(tmp_path / "out").rollouts["reward"].isna().tolist() == [True, True, False]
