"""verl's, ms-swift's and exported logs, laid out as the frameworks write them, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.store.ingest.base import Request
from lossbench.store.ingest.folder import detect, ingest
from lossbench.store.ingest.jsonl import tables
from lossbench.store.ingest.kept import Kept
from lossbench.store.ingest.sink import Reading
from lossbench.store.ingest.swift import mode_of_args
from lossbench.store.read import load


def words(texts):
    return [len(text.split()) for text in texts]


def read(path, out, kind="auto", *, columns=None, mode="grpo", seed=0, generations=None, **reading):
    request = Request(columns or {}, mode, seed, generations)
    return ingest(path, out, kind, request, Reading(**reading))


def verl_lines(step, prompts, samples=2, **extra):
    """What verl's `_dump_generations` writes: row k is sample k % samples of prompt k // samples."""
    return "".join(
        json.dumps(
            {"input": f"q{p}", "output": "x " * (step + s), "gts": str(p), "score": float(s), "step": step}
            | {name: make(p, s) for name, make in extra.items()}
        )
        + "\n"
        for p in range(prompts)
        for s in range(samples)
    )


@pytest.fixture
def verl_folder(tmp_path):
    folder = tmp_path / "dapo-s1"
    (folder / "rollout").mkdir(parents=True)
    (folder / "validation").mkdir()
    for step in (1, 2, 10):
        text = verl_lines(step, 2, acc=lambda p, s: s == 1, uid=lambda p, s: f"aa-{p}_{s}_0")
        (folder / "rollout" / f"{step}.jsonl").write_text(text)
    (folder / "validation" / "0.jsonl").write_text(verl_lines(0, 3, 1, reward=lambda p, s: 0.0))
    metrics = {"response_length/mean": 7.0, "critic/rewards/mean": 0.5, "actor/grad_norm": 2.0, "timing_s/step": 3.0}
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "data": metrics}) + "\n")
    return folder


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
    monkeypatch.setattr("lossbench.store.ingest.jsonl.BLOCK_BYTES", 100)
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


def test_both_ways_through_a_block_give_the_same_table(tmp_path):
    import pyarrow as pa

    from lossbench.store.ingest.base import Damage

    text = '{"a": "x", "b": 1, "c": true}\n{"b": 2.5, "a": null, "d": [1]}\n\n{"a": "ü", "b": NaN, "c": false}\n'
    fields = {"a": pa.string(), "b": pa.float64(), "c": pa.bool_()}
    (tmp_path / "clean.jsonl").write_text(text)
    (tmp_path / "torn.jsonl").write_text(text + '{"a": "y"')
    damage = Damage()
    clean, torn = (pa.concat_tables(tables(tmp_path / f"{n}.jsonl", fields, damage)) for n in ("clean", "torn"))
    assert clean.drop_columns("b").equals(torn.drop_columns("b"))
    assert clean["b"].to_pylist()[:2] == torn["b"].to_pylist()[:2] == [1.0, 2.5]
    assert damage.count == 1 and "torn.jsonl, line 5" in damage.examples[0]


@pytest.fixture
def swift_folder(tmp_path):
    """ms-swift's output: columnar completions with steps as text, a generation logged twice, metrics, arguments."""
    folder = tmp_path / "v0-20260101-000000"
    folder.mkdir()
    table = {
        "step": ["1"] * 4,
        "prompt": ["q0", "q0", "q1", "q1"],
        "completion": ["a b", "a", "a b c", "a"],
        "Format": [1.0, 1.0, 0.0, 1.0],
        "MathAccuracy": [1.0, 0.0, 0.0, 1.0],
        "advantages": [0.7, -0.7, -0.7, 0.7],
    }
    later = {**table, "step": ["3"] * 4, "completion": ["b", "b b", "b", "b b"]}
    lines = [table, {**table, "step": ["2"] * 4}, later]
    (folder / "completions.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    metrics = {"loss": 0.1, "reward": 1.25, "rewards/Format/mean": 0.75, "rewards/MathAccuracy/mean": 0.5, "kl": 0.01}
    logs = [{**metrics, "global_step/max_steps": f"{step}/50"} for step in (1, 2, 3)]
    logs.append({"train_runtime": 9.0, "global_step/max_steps": "3/50"})
    (folder / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs))
    args = {"loss_type": "dr_grpo", "scale_rewards": "group", "seed": 42, "num_generations": 2}
    (folder / "args.json").write_text(json.dumps(args))
    (folder / "checkpoint-3").mkdir()
    (folder / "checkpoint-3" / "trainer_state.json").write_text("{}")
    return folder


def test_swift_names_its_own_mode_and_seed(swift_folder, tmp_path):
    result = ingest(swift_folder.parent, tmp_path / "out", "auto", Request(), Reading(words))
    assert result.format == "swift"
    sweep = load(tmp_path / "out")
    run = sweep.runs.iloc[0]
    # ms-swift's dr_grpo is the divisor alone: with its std the stored name is the triple.
    assert (run["mode"], run["seed"]) == ("grpo@seq-mean-token-sum-norm/group", 42)
    assert (run["steps_planned"], run["steps_done"]) == (50, 3)
    rows = sweep.rollouts
    assert rows["step"].tolist() == [1] * 4 + [3] * 4  # the generation logged again at step 2 is read once
    assert rows["reward"].tolist()[:4] == [2.0, 1.0, 0.0, 2.0]
    assert rows["correct"].tolist()[:4] == [True, False, False, True]
    assert rows["length_tokens"].tolist()[:4] == [2, 1, 3, 1]
    steps = sweep.steps
    assert steps["step"].tolist() == [1, 2, 3] and steps["kl"].tolist() == [0.01] * 3
    assert steps["reward_mean"].tolist() == [1.25] * 3


def test_swift_from_megatron_and_one_completion_per_line(tmp_path):
    for name, line in [
        ("columns", {"gen_step": [0, 0], "prompt": ["q", "q"], "completion": ["a", "b"], "Acc": [1.0, 0.0]}),
        ("rows", {"step": 1, "prompt": "q", "completion": "a", "Acc": 1.0}),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "completions.jsonl").write_text(json.dumps(line) + "\n")
        (folder / "logging.jsonl").write_text('{"loss": "0.5", "iteration": "1/4"}\n')
        read(folder, tmp_path / f"out-{name}")
        sweep = load(tmp_path / f"out-{name}")
        assert set(sweep.rollouts["step"]) == {1} and sweep.rollouts["reward"].tolist()[0] == 1.0
        assert sweep.steps["loss"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("args", "mode"),
    [
        ({"loss_type": "grpo"}, "grpo"),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, "gspo"),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr_grpo"),
        ({"loss_type": "dapo", "scale_rewards": False}, "grpo@token-mean/none"),
        ({"loss_type": "cispo"}, "cispo"),
        ({"loss_type": "grpo", "advantage_estimator": "rloo"}, None),
        ({"loss_type": "real"}, None),
        ({}, None),
    ],
)
def test_swift_arguments_as_modes(args, mode):
    assert mode_of_args(args) == mode


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


def test_what_cannot_be_read_is_refused_and_leaves_nothing(tmp_path, verl_folder, swift_folder):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "junk.csv").write_text("a,b\n1,2\n")
    (tmp_path / "nostep.csv").write_text("reward,b\n1,2\n")
    (tmp_path / "torn.json").write_text("[{")
    (tmp_path / "wide.csv").write_text("step,mode,seed,reward_mean\n1,grpo,0,0.5\n")
    two = tmp_path / "two"
    two.mkdir()
    (two / "completions.jsonl").write_text("{}\n")
    (two / "1.jsonl").write_text(verl_lines(1, 1))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sweep.json").write_text(json.dumps({"recipe": {}, "runs": {}}))
    verl = verl_folder / "rollout"
    for path, options, message in [
        (tmp_path / "nowhere", {}, "no such file or folder"),
        (tmp_path / "empty.jsonl", {}, "no row"),
        (tmp_path / "junk.csv", {}, "no step column"),
        (tmp_path / "nostep.csv", {}, "no step column"),
        (tmp_path / "torn.json", {}, "not valid JSON"),
        (two, {}, "two formats, verl .* and swift .*: choose one with --as"),
        (verl, {"kind": "tlr"}, "did you mean 'trl'"),
        (verl, {"kind": "trl"}, "holds no trl log"),
        (verl, {"mode": None}, "give --mode"),
        (verl, {"mode": "grop"}, "unknown mode 'grop'"),
        (verl, {"columns": {"lenght": "x"}}, "did you mean 'length'"),
        (verl, {"columns": {"length": "n"}}, "no column 'n' for --map length=n; it has input, output"),
        (tmp_path / "wide.csv", {"columns": {"kl": "KL"}}, "no column 'KL'"),
        (verl, {"out": mine}, "choose another --out"),
        (verl, {"out": verl}, "is not a sweep: choose another --out"),
    ]:
        out = options.pop("out", tmp_path / "out")
        with pytest.raises(UsageError, match=message) as caught:
            read(path, out, **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists(), message
    assert detect(verl_folder) == "verl" and detect(swift_folder) == "swift"


def test_the_command(verl_folder, tmp_path):
    arguments = ["ingest", str(verl_folder), "--correct-above", "0.5", "--out", str(tmp_path / "out"), "-f", "json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown[0]["rollouts"] == 12 and shown[0]["evals"] == 3 and shown[0]["length_unit"] == "characters"
    assert "verl log, 1 runs" in done.stderr and "no lengths in tokens" in done.stderr
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


def test_numbers_are_kept_as_in_a_dict(monkeypatch):
    monkeypatch.setattr("lossbench.store.ingest.kept.RECENT", 5)
    generator, kept, plain = np.random.default_rng(0), Kept(2), {}
    for _ in range(200):
        keys = generator.integers(-40, 40, 7).tolist()
        entries = kept.entries(keys)
        for key in keys:
            assert entries.get(key) == plain.get(key)
            entries[key] = plain[key] = (float(generator.integers(9)), 0.5)
    assert {key: kept.entries([key])[key] for key in plain} == plain
