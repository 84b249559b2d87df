import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lossbench
from lossbench.errors import UsageError
from lossbench.ingest.fields import Reading
from lossbench.ingest.staging import Staging
from lossbench.store.read import _database, newest_sweep
from lossbench.store.schema import SCHEMA_VERSION, TABLES, schema_for
from lossbench.store.write import PartWriter, as_arrow, write_json, write_table


def make_sweep(folder, runs=("a", "b")):
    folder.mkdir(parents=True)
    planned = {
        run: {"arm": run, "mode": run, "loss_type": "grpo", "agg_mode": "token-mean", "scale_rewards": "group",
              "seed": 0, "policy": "selfcheck", "policy_seed": 0, "steps_planned": 2}
        for run in runs
    }  # fmt: skip
    write_json(folder / "sweep.json", {"runs": planned})
    return folder


def step(run_id, number, **more):
    return {"run_id": run_id, "mode": run_id, "seed": 0, "step": number, **more}


def test_pandas_reads_any_file_and_the_schema_is_in_it(tmp_path):
    write_table(tmp_path / "steps.parquet", "steps", [step("a", 1, reward_mean=0.5, length_correct=None)])
    frame = pd.read_parquet(tmp_path / "steps.parquet")
    assert list(frame.columns) == [column.name for column in TABLES["steps"]]
    assert frame["reward_mean"].tolist() == [0.5]
    assert pq.read_schema(tmp_path / "steps.parquet").metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()


def test_a_column_of_nulls_is_still_a_column_of_numbers(tmp_path):
    # One run never terminated: its column is all null. Joined with a run that did, the column stays float64.
    sweep = make_sweep(tmp_path / "s")
    for run, value in (("a", None), ("b", 4.0)):
        (sweep / "runs" / run).mkdir(parents=True)
        write_table(sweep / "runs" / run / "steps.parquet", "steps", [step(run, 1, length_terminated=value)])
    column = lossbench.load(sweep).steps["length_terminated"]
    assert column.dtype == np.float64
    assert np.isnan(column[0]) and column[1] == 4.0


def test_nan_is_written_as_null():
    table = as_arrow("steps", [step("a", 1, kl=float("nan"), entropy=1.0)])
    assert table.column("kl").null_count == 1
    assert table.column("entropy").null_count == 0


def test_a_column_that_the_schema_lacks_is_refused():
    with pytest.raises(KeyError, match="no column"):
        as_arrow("steps", [{"run_id": "a", "lenght": 1}])


def test_parts_are_readable_while_a_run_goes_and_become_one_file(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    writer = PartWriter(sweep / "runs" / "a")
    for number in (2, 1, 3):
        writer.append("steps", number, [step("a", number)])
    assert lossbench.load(sweep).steps["step"].tolist() == [1, 2, 3]
    writer.join()
    writer.drop_parts()
    assert sorted(path.name for path in (sweep / "runs" / "a").iterdir()) == ["steps.parquet"]
    assert lossbench.load(sweep).steps["step"].tolist() == [1, 2, 3]


def test_a_step_written_twice_counts_once_and_later_steps_can_be_dropped(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    writer = PartWriter(sweep / "runs" / "a")
    for number, reward in ((5, 0.1), (6, 0.2), (7, 0.3), (6, 0.9)):
        writer.append("steps", number, [step("a", number, reward_mean=reward)])
    writer.keep_up_to(6)
    steps = lossbench.load(sweep).steps
    assert steps["step"].tolist() == [5, 6]
    assert steps["reward_mean"].tolist() == [0.1, 0.9]


@pytest.mark.parametrize("content", [b"", b"PAR1" + b"\0" * 100])
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, content):
    sweep = make_sweep(tmp_path / "s")
    for run in ("a", "b"):
        (sweep / "runs" / run).mkdir(parents=True)
    write_table(sweep / "runs" / "a" / "steps.parquet", "steps", [step("a", 1)])
    (sweep / "runs" / "b" / "steps.parquet").write_bytes(content)
    loaded = lossbench.load(sweep)
    assert loaded.steps["run_id"].tolist() == ["a"]
    assert len(loaded.problems) == 1 and str(sweep / "runs" / "b" / "steps.parquet") in loaded.problems[0]


def test_nothing_half_written_is_left_where_writing_fails(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    with pytest.raises(KeyError):
        write_table(tmp_path / "x.parquet", "steps", [{"nonsense": 1}])
    assert list(tmp_path.iterdir()) == []


def test_runs_not_begun_are_pending_and_a_damaged_state_is_a_problem(tmp_path):
    sweep = make_sweep(tmp_path / "s")
    (sweep / "runs" / "a").mkdir(parents=True)
    (sweep / "runs" / "a" / "run.json").write_text("{")
    loaded = lossbench.load(sweep)
    assert loaded.runs["status"].tolist() == ["pending", "pending"]
    assert "run.json" in loaded.problems[0]


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    for path, words in ((tmp_path / "absent", "not a folder"), (tmp_path / "other", "not a sweep")):
        with pytest.raises(UsageError, match=words):
            lossbench.load(path)
    with pytest.raises(UsageError, match="no sweep below"):
        newest_sweep(tmp_path)


def test_only_the_columns_asked_for_are_read(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    (sweep / "runs" / "a").mkdir(parents=True)
    write_table(sweep / "runs" / "a" / "steps.parquet", "steps", [step("a", 1)])
    assert list(lossbench.load(sweep).table("steps", ["step", "loss"]).columns) == ["step", "loss"]


def test_every_table_has_a_type_and_words_for_each_column():
    for table, columns in TABLES.items():
        assert len(schema_for(table).names) == len({column.name for column in columns})
        assert all(column.doc for column in columns)
    assert json.loads(json.dumps([column.name for column in TABLES["rollouts"]]))


def test_a_table_that_a_completed_run_wrote_and_that_is_gone_is_a_problem(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    writer = PartWriter(sweep / "runs" / "a")
    writer.append("steps", 1, [step("a", 1)])
    write_json(sweep / "runs" / "a" / "run.json", {"status": "completed", "tables": {**writer.join(), "evals": 0}})
    writer.drop_parts()
    found = lossbench.load(sweep)
    assert len(found.runs) == 1 and found.problems == []
    (sweep / "runs" / "a" / "steps.parquet").unlink()
    found = lossbench.load(sweep)
    assert len(found.runs) == 1
    assert [text.split(": ", 1)[1] for text in found.problems] == ["missing, though the run is completed"]


def test_the_whole_table_is_preferred_to_parts(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    writer = PartWriter(sweep / "runs" / "a")
    writer.append("steps", 1, [step("a", 1)])
    writer.join()
    writer.append("steps", 2, [step("a", 2)])
    assert lossbench.load(sweep).steps["step"].tolist() == [1]


def test_a_run_that_continues_forgets_its_joined_tables(tmp_path):
    sweep = make_sweep(tmp_path / "s", runs=("a",))
    writer = PartWriter(sweep / "runs" / "a")
    for number in (1, 2):
        writer.append("steps", number, [step("a", number)])
    writer.join()
    writer.keep_up_to(1)
    assert lossbench.load(sweep).steps["step"].tolist() == [1]


COUNT = "SELECT count(*) AS rows, sum(length_tokens)::BIGINT AS tokens FROM {}".format


def test_queries_see_parts_old_schemas_and_skip_what_is_damaged(tmp_path):
    sweep = make_sweep(tmp_path / "it's [a] sweep", runs=("a", "b", "c"))
    writer = PartWriter(sweep / "runs" / "a")
    for number in (1, 2, 3):
        writer.append("rollouts", number, [{"step": number, "length_tokens": 10 * number}])
    (sweep / "runs" / "a" / "parts" / "rollouts-0000002.parquet").write_bytes(b"PAR1 but not quite")
    (sweep / "runs" / "b").mkdir(parents=True)
    pq.write_table(pa.table({"step": [1.0, 2.0], "length_tokens": [4, 5]}), sweep / "runs" / "b" / "rollouts.parquet")
    loaded = lossbench.load(sweep)
    columns = ["step", "length_tokens", "correct"]  # what an old file lacks is null
    found = {run: loaded.query(run, "rollouts", columns, COUNT) for run in "abc"}
    assert found["a"].to_pylist() == [{"rows": 2, "tokens": 40}] and found["c"] is None
    assert found["b"].to_pylist() == [{"rows": 2, "tokens": 9}]
    assert ["rollouts-0000002.parquet: damaged" in problem for problem in loaded.problems] == [True]


def test_a_folder_of_an_older_schema_is_read_with_nulls_for_later_columns():
    reference = Path(__file__).resolve().parents[2] / "results" / "reference" / "smollm2"
    sweep = lossbench.load(reference)
    run = next(iter(sweep.run_ids))
    assert "advantage_name" not in pq.read_schema(reference / "runs" / run / "rollouts.parquet").names
    rows = sweep.run_table(run, "rollouts", ["advantage_name", "length_tokens"])
    assert rows.num_rows > 0 and rows.column("advantage_name").null_count == rows.num_rows
    assert rows.column("length_tokens").null_count == 0 and not sweep.problems


@pytest.mark.parametrize("connected", [lambda folder: Staging(folder, Reading()).con, lambda _: _database(0)])
def test_long_queries_print_no_progress(connected, tmp_path, capfd):
    con = connected(tmp_path)
    con.execute("SET progress_bar_time = 1")
    con.sql("SELECT sum(hash(a.range * b.range) % 7) FROM range(60000) a, range(1000) b").to_arrow_table()
    assert capfd.readouterr() == ("", "")
