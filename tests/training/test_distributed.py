"""One run on two processes: the same files, completions and first update as on one."""

import pytest
from support.sweeps import Watcher, planned, quick_recipe, tables

from lossbench.sweep.executors.local import LocalExecutor
from lossbench.sweep.folder import run_dir, run_state, write_plan
from lossbench.sweep.plan import plan
from lossbench.sweep.schedule import run_all

SETTINGS = {"modes": ["dapo"], "steps": 3, "eval_samples": 1, "text": True, "max_completion_length": 32}
SPLIT_FREE = ["step", "generation", "reward_mean", "length_mean", "tokens"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    """The tables of the run on one process and on two."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    recipe = quick_recipe(**SETTINGS, per_device_train_batch_size=32)
    alone = planned(one, recipe)[0]
    run_all(one, [alone], LocalExecutor([()]), Watcher())
    shared = plan(recipe, 2)[0]
    write_plan(two, recipe, [shared], 2)
    run_all(two, [shared], LocalExecutor([()]), Watcher())
    assert run_state(two, shared.run_id)["processes"] == 2
    names = [
        sorted(path.name for path in run_dir(*place).iterdir()) for place in ((one, alone.run_id), (two, shared.run_id))
    ]
    assert names[0] == names[1]
    return tables(one, alone), tables(two, shared)


@pytest.mark.slow
def test_first_completions_and_their_weights_are_those_of_one_process(both):
    one, two = (side["rollouts"][side["rollouts"]["step"] == 1] for side in both)
    columns = [name for name in one.columns if name not in ("run_id", "advantage", "token_weight")]
    key = ["group", "sample"]
    one, two = one.sort_values(key, ignore_index=True), two.sort_values(key, ignore_index=True)
    assert one[columns].equals(two[columns])
    assert two["token_weight"].tolist() == pytest.approx(one["token_weight"].tolist(), rel=1e-12)
    assert two["advantage"].tolist() == pytest.approx(one["advantage"].tolist(), rel=1e-6)


@pytest.mark.slow
def test_the_first_update_is_that_of_one_process(both):
    one, two = (side["steps"].iloc[0] for side in both)
    assert one[SPLIT_FREE].equals(two[SPLIT_FREE])
    for name in ("loss", "grad_norm", "entropy", "weight_sum"):
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-7), name


@pytest.mark.slow
def test_every_row_of_every_step_is_recorded_once(both):
    for side in both:
        assert side["steps"]["step"].tolist() == [1, 2, 3]
        assert len(side["rollouts"]) == 3 * 32
        assert not side["rollouts"].duplicated(["generation", "group", "sample"]).any()
        assert len(side["evals"]) == 200  # a hundred prompts, before and after


@pytest.mark.slow
def test_late_lengths_are_those_of_one_process_within_noise(tmp_path):
    recipe = quick_recipe(
        modes=["dr_grpo"], steps=50, eval_samples=0, max_completion_length=64, per_device_train_batch_size=32
    )
    late = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        spec = plan(recipe, processes)[0]
        write_plan(folder, recipe, [spec], processes)
        run_all(folder, [spec], LocalExecutor([()]), Watcher())
        late.append(tables(folder, spec)["steps"]["length_mean"].tail(10))
    # Float rounding sends the two runs apart after some steps, so they agree as two samples of one policy would.
    standard_error = (sum(lengths.var() / 10 for lengths in late)) ** 0.5
    assert standard_error < 3
    assert abs(late[0].mean() - late[1].mean()) < 3.5 * standard_error


@pytest.mark.slow
def test_a_failure_on_one_process_ends_the_run_with_its_reason(tmp_path):
    task = tmp_path / "mytask.py"
    task.write_text(
        "import os\nfrom lossbench.tasks.selfcheck import SelfCheck\n"
        "class Faulty(SelfCheck):\n"
        "    def reward(self, *_):\n"
        "        if os.environ['RANK'] == '1':\n"
        "            raise ZeroDivisionError('no such reward')\n"
        "        return 0.0\n"
    )
    recipe = quick_recipe(modes=["dapo"], task=f"{task}:Faulty")
    spec = plan(recipe, 2)[0]
    write_plan(tmp_path, recipe, [spec], 2)
    watcher = Watcher()
    run_all(tmp_path, [spec], LocalExecutor([()]), watcher)
    assert "ZeroDivisionError: no such reward" in (watcher.reasons[spec.run_id] or "")
    assert run_state(tmp_path, spec.run_id)["status"] == "failed"
