"""`lossbench probe` on checkpoints, on adapters, on a part of the parameters, and in bfloat16."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.hazard_policy import EVEN_TASK
from support.trainer import model_folder, train
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.policies.adapters import parse_lora
from lossbench.policies.hub import load_pretrained
from lossbench.probe.batches import PAIR_STREAM, PolicySource, Sampling
from lossbench.probe.parameters import select_parameters
from lossbench.probe.prober import Prober, ProbeSettings
from lossbench.store.read import read_facts, read_table
from lossbench.training.checkpoint import saved_checkpoints


@pytest.fixture
def task() -> str:
    return EVEN_TASK


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A model and, in `out`, what a Trainer keeps of two steps on it."""
    root = tmp_path_factory.mktemp("trained")
    train(str(root), mode="grpo", max_steps=2, save_strategy="steps", save_steps=1)
    return root


def invoke(task: str, out: Path, *arguments: str):
    small = ["--batches", "2", "--completions", "16", "--num-generations", "4", "--max-completion-length", "6",
             "--recipe", "quick", "--modes", "grpo,dr_grpo", "--alphas", "0,1"]  # fmt: skip
    return CliRunner().invoke(app, ["probe", "--task", task, "--out", str(out), *small, *arguments])


def only_file(out: Path) -> Path:
    (file,) = (out / "probe").glob("*.parquet")
    return file


def by_direction(file: Path, step: int = 0) -> dict[tuple[str, str], np.ndarray]:
    frame = read_table(file, "probe").to_pandas()
    frame = frame[frame["step"] == step]
    return {key: rows["projection"].to_numpy() for key, rows in frame.groupby(["metric", "direction"], observed=True)}


def test_checkpoints_are_probed_step_by_step_into_one_file(trained, task, tmp_path):
    result = invoke(task, tmp_path, "--checkpoints", str(trained / "out"), "--detail")
    assert result.exit_code == 0, result.output
    file = only_file(tmp_path)
    assert file.name == "out.parquet"
    frame = read_table(file, "probe").to_pandas()
    # 2 pairs x 2 halves x 16 completions x 5 directions x 2 metrics, from each step
    assert frame.groupby("step").size().to_dict() == {1: 640, 2: 640}
    assert frame["policy"].unique().tolist() == ["out"] and read_facts(file)["policy_seed"] is None
    first, second = by_direction(file, 1)["plain", "random-0"], by_direction(file, 2)["plain", "random-0"]
    assert not np.allclose(first, second)  # a step lies between
    # a table of drifts and one of the dose-response for each step
    assert result.stdout.count("adam_drift") == result.stdout.count("incorrect_theory") == 2
    heads = [line.partition(": ")[0] for line in result.stderr.splitlines() if line.startswith("out, ")]
    assert heads == ["out, step 1", "out, step 2"]
    found = json.loads((tmp_path / "probe" / "probe.json").read_text())
    assert [(part["policy"], part["step"]) for part in found] == [("out", 1), ("out", 2)]


def test_of_a_runs_checkpoints_only_sealed_ones_count(trained, tmp_path):
    run_dir = tmp_path / "grpo-s0"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "run.json").write_text("{}")
    for step in (1, 2):
        shutil.copytree(trained / "out" / f"checkpoint-{step}", run_dir / "checkpoints" / f"checkpoint-{step}")
    (run_dir / "checkpoints" / "checkpoint-2" / "lossbench.json").write_text('{"run_id": "grpo-s0"}')
    sealed = [(2, run_dir.resolve() / "checkpoints" / "checkpoint-2")]
    assert saved_checkpoints(run_dir) == saved_checkpoints(run_dir / "checkpoints") == sealed
    assert [step for step, _ in saved_checkpoints(trained / "out")] == [1, 2]
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(UsageError, match="completed runs keep none: record their probes with sweep --probe-every"):
        saved_checkpoints(run_dir)


def test_a_part_of_the_parameters(trained, task, tmp_path):
    model = model_folder(str(trained))
    result = invoke(task, tmp_path / "part", "--model", model, "--params", "lm_head,layers.-1.mlp")
    assert result.exit_code == 0, result.output
    assert read_facts(only_file(tmp_path / "part"))["settings"]["params"] == ["lm_head", "layers.-1.mlp"]
    assert invoke(task, tmp_path / "whole", "--model", model).exit_code == 0
    part, whole = (by_direction(only_file(tmp_path / name)) for name in ("part", "whole"))
    # <h, score> over some parameters only: another number, on the same completions
    assert part["plain", "all"].shape == whole["plain", "all"].shape
    assert not np.allclose(part["plain", "all"], whole["plain", "all"])
    wrong = invoke(task, tmp_path / "wrong", "--model", model, "--params", "lm_head,layers.7")
    assert isinstance(wrong.exception, UsageError) and "'layers.7' matches no parameter" in str(wrong.exception)


def test_a_fresh_adapter_moves_by_its_b_alone(trained, task, tmp_path):
    pytest.importorskip("peft", reason="the `peft` extra is not installed")
    model = model_folder(str(trained))
    result = invoke(task, tmp_path, "--model", model, "--lora", "r=2,alpha=8")
    assert result.exit_code == 0, result.output
    found = by_direction(only_file(tmp_path))
    assert np.isfinite(found["adam", "all"]).all() and found["plain", "all"].any()
    policy = load_pretrained(model, device="cpu", lora={"r": 2})
    sampling = Sampling(16, 4, 6)
    source = PolicySource(policy.model, policy.tokenizer, _made(task), sampling)
    prober = Prober(policy.model, source, ProbeSettings(sampling, pairs=1, random_directions=1, moment_batches=1))
    assert prober.engine.name == "local"
    (gradient,) = prober.engine.record(source(PAIR_STREAM, 0)).directions(torch.ones(1, 16))
    for name, tensor in zip(select_parameters(policy.model), gradient, strict=True):
        assert bool(tensor.any()) == ("lora_B" in name)


def _made(task: str):
    from lossbench.tasks import make_task

    return make_task(task, {})


def test_a_checkpoint_that_is_an_adapter_is_probed_by_it(trained, task, tmp_path):
    peft = pytest.importorskip("peft", reason="the `peft` extra is not installed")
    policy = load_pretrained(model_folder(str(trained)), device="cpu", lora={"r": 2})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    folder = tmp_path / "out" / "checkpoint-3"
    policy.model.save_pretrained(folder)
    again = load_pretrained(str(folder), device="cpu")
    assert again.resolved["adapter_of"] == model_folder(str(trained)) and isinstance(again.model, peft.PeftModel)
    assert all("lora_" in name for name, p in again.model.named_parameters() if p.requires_grad)
    ids = again.tokenizer(["1+2="], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(again.model.eval()(ids).logits, policy.model.eval()(ids).logits)
    result = invoke(task, tmp_path / "probed", "--checkpoints", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    found = by_direction(only_file(tmp_path / "probed"), 3)
    assert found["plain", "all"].any() and np.isfinite(found["adam", "all"]).all()
    with pytest.raises(UsageError, match="is an adapter already: leave --lora out"):
        load_pretrained(str(folder), lora={"r": 2})
    config = json.loads((folder / "adapter_config.json").read_text())
    for base, message in (("/nowhere/base", "base is not available.*no such folder"), (None, "does not name the base")):
        (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))
        with pytest.raises(UsageError, match=message) as caught:
            load_pretrained(str(folder))
        assert "\n" not in str(caught.value)


def test_an_adapter_without_peft_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    monkeypatch.setattr("lossbench.extras.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"is an adapter, which needs peft: pip install 'lossbench\[peft\]'"):
        load_pretrained(str(tmp_path), device="cpu")


def test_lora_options_in_one_line():
    assert parse_lora("r=16") == {"r": 16}
    assert parse_lora("r=16, alpha=32,dropout=0.1") == {"r": 16, "alpha": 32, "dropout": 0.1}
    for text, message in [
        ("16", "write r=16 or r=16,alpha=32"),
        ("r=16,", "write r=16"),
        ("r=many", "write r=16"),
        ("rank=8", "unknown LoRA option 'rank'.*valid: r, alpha, dropout"),
        ("r=8,target_modules=1", "unknown LoRA option 'target_modules'"),
        ("r=8,r=16", "r is given twice"),
        ("alpha=8", "r=None; valid: a whole number"),
        ("r=0", "r=0; valid: a whole number >= 1"),
        ("r=2.5", "r=2.5; valid: a whole number"),
        ("r=8,alpha=0", "alpha=0; valid: a number above 0"),
        ("r=8,alpha=nan", "alpha=nan; valid"),
        ("r=8,dropout=1", "dropout=1; valid: from 0"),
    ]:
        with pytest.raises(UsageError, match=message) as caught:
            parse_lora(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["sweep", "probe"])
def test_both_commands_read_lora_alike(command, tmp_path):
    result = CliRunner().invoke(app, [command, "--lora", "r=4,rang=8", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, UsageError)
    assert "--lora 'r=4,rang=8': unknown LoRA option 'rang': valid: r, alpha, dropout" in str(result.exception)


def test_a_built_in_policy_does_not_take_a_dtype_in_silence(tmp_path):
    for option in (["--dtype", "bfloat16"], ["--device", "cuda"]):
        result = CliRunner().invoke(app, ["probe", *option, "--out", str(tmp_path / "out")])
        assert isinstance(result.exception, UsageError)
        assert "--dtype and --device are for --model: 'selfcheck' is probed in float32 on the CPU" in str(
            result.exception
        )


def test_bfloat16_projects_as_float32_does(trained, task):
    model = model_folder(str(trained))
    policies = {dtype: load_pretrained(model, device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16")}
    exact = policies["float32"]
    # weights that bfloat16 holds exactly, so that only the computation differs
    exact.model.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in exact.model.state_dict().items()})
    sampling = Sampling(32, 4, 12)
    source = PolicySource(exact.model, exact.tokenizer, _made(task), sampling)
    found = {}
    for dtype, policy in policies.items():
        prober = Prober(policy.model.eval(), source, ProbeSettings(sampling, pairs=1, moment_batches=2))
        assert prober.engine.name == "local" and next(policy.model.parameters()).dtype == getattr(torch, dtype)
        columns = prober.pair(0)
        labels = list(zip(columns["metric"], columns["direction"], strict=True))
        values = np.array(columns["projection"], dtype=float)
        found[dtype] = {key: values[[label == key for label in labels]] for key in dict.fromkeys(labels)}
    assert len(found["float32"]) == 10  # three lengths and two random directions in each metric
    for key, values in found["float32"].items():
        assert np.corrcoef(values, found["bfloat16"][key])[0, 1] > 0.98, key
