"""The report command: what it prints, its exit codes, and the probe's section."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from support.made_sweeps import Plan, make_sweep, run_labels, sweep_spec
from typer.testing import CliRunner

from lossbench.claims.dose_claim import dose_claim
from lossbench.cli.report import report
from lossbench.probe.drift import DriftTable
from lossbench.probe.projections import read_projections
from lossbench.report.data import gather
from lossbench.report.markdown import render_markdown
from lossbench.report.sections import make_document
from lossbench.store.read import load
from lossbench.store.write import table_file, write_json

app = typer.Typer()
app.command()(report)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return make_sweep(tmp_path / "results" / "mine", Plan(("grpo", "dr_grpo"), 2, 5, text=False))


def test_json_is_the_summary_and_stdout_holds_nothing_else(sweep: Path) -> None:
    result = CliRunner().invoke(app, [str(sweep), "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((sweep / "report" / "summary.json").read_text())
    assert "index.html" in result.stderr


def test_the_newest_sweep_is_the_default_and_an_incomplete_one_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = Path("results", "begun")
    begun.mkdir(parents=True)
    write_json(begun / "sweep.json", sweep_spec(Plan(), dict(run_labels(arm, 0) for arm in ("grpo", "dr_grpo"))))
    result = CliRunner().invoke(app, ["--quiet"])
    assert result.exit_code == 1
    assert "no run of dr_grpo and grpo is completed" in result.stdout
    assert not result.stderr
    assert (begun / "report" / "index.html").is_file()


def _write_probe(path: Path, pairs: int = 8, rows: int = 32) -> None:
    """Completions whose projections on a length direction are how much longer than the mean they are, plus noise."""
    rng = np.random.default_rng(0)
    records = []
    for pair in range(pairs):
        for half in (0, 1):
            correct = rng.random(rows) < 0.4
            length = rng.geometric(1 / 20, rows)
            for direction in ("incorrect", "correct", "all"):
                sign = np.where(correct, 0.0, 1.0) if direction != "correct" else np.where(correct, 1.0, 0.0)
                # The score of a stopping hazard: short completions pull the length down, long ones up.
                projection = sign * (length - length.mean()) + rng.standard_normal(rows)
                records += [
                    {"policy": "selfcheck", "step": 0, "pair": pair, "half": half, "prompt_id": 0, "group": i // 8,
                     "sample": i % 8, "length_tokens": int(length[i]), "terminated": True, "reward": float(correct[i]),
                     "correct": bool(correct[i]), "direction": direction, "metric": "plain",
                     "projection": float(projection[i])}
                    for i in range(rows)
                ]  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    with table_file(path, "probe", {"policy_seed": 0}) as append:
        append({name: [record[name] for record in records] for name in records[0]})


def test_the_dose_falls_with_alpha_and_is_zero_at_one(tmp_path: Path) -> None:
    _write_probe(tmp_path / "probe" / "a.parquet")
    dose = dose_claim(DriftTable(read_projections(tmp_path / "probe" / "a.parquet")[0]), alphas=(0.0, 0.5, 1.0, 1.5))
    assert dose.drift[2] == pytest.approx(0, abs=1e-9)
    assert dose.drift[0] > dose.drift[1] > 0 > dose.drift[3]
    assert (dose.pairs, dose.p_falling, dose.p_rising) == (8, 1 / 2**8, 1)


def test_a_probed_sweep_shows_the_probe_and_others_do_not(sweep: Path) -> None:
    without = make_document(gather(load(sweep)), {}, sweep)
    assert "probe" not in [section.id for section in without.sections]
    _write_probe(sweep / "probe" / "a.parquet")
    (sweep / "probe" / "b.parquet").write_bytes(b"PAR1")
    data = gather(load(sweep))
    document = make_document(data, {}, sweep)
    assert "probe" in [section.id for section in document.sections]
    assert data.probe is not None and data.probe.frozen is not None
    text = render_markdown(document)
    assert "8 pairs of batches, 512 completions" in text and "by construction" in text
    # the mean's company: what reward says, the mechanism
    assert "Beside the mean" in text and "weight elasticity, incorrect" in text
    assert any("b.parquet" in problem for problem in data.sweep.problems)
    assert not data.complete


def test_reading_commands_load_no_torch(sweep: Path, tmp_path: Path) -> None:
    program = """
import sys
from lossbench.cli import app
for arguments in (["report", sys.argv[1]], ["compare", "grpo", "dr_grpo", "--in", sys.argv[1]], ["runs", sys.argv[1]]):
    app(arguments, standalone_mode=False)
    assert "torch" not in sys.modules, arguments
"""
    environment = {**os.environ, "LOSSBENCH_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, str(sweep)], env=environment, check=True, capture_output=True)
    assert list((tmp_path / "equalities").glob("*.json"))  # what does take torch was worked out elsewhere
