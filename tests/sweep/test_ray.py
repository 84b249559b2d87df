"""Runs on a Ray cluster whose nodes share no file system; one node is lost on the way."""

import pytest
from support.sweeps import Watcher, assert_readable, assert_same_tables, planned, quick_recipe, statuses, tables

import lossbench
from lossbench.errors import UsageError
from lossbench.sweep.executors import make_executor
from lossbench.sweep.executors.base import Resources
from lossbench.sweep.executors.local import LocalExecutor
from lossbench.sweep.folder import run_dir, run_state
from lossbench.sweep.schedule import run_all
from lossbench.training.run import execute

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ray = pytest.importorskip("ray", reason="needs the extra 'ray'")


@pytest.fixture
def cluster():
    """A head and another node with room for one run each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made, other
    ray.shutdown()
    made.shutdown()


def test_a_sweep_survives_the_loss_of_a_node_and_has_each_run_once(cluster, tmp_path):
    made, other = cluster
    recipe = quick_recipe(modes=["grpo", "dr_grpo"], seeds=[0, 1], steps=30)
    runs = planned(tmp_path, recipe)
    executor = make_executor("ray", Resources(address=made.address))
    assert executor.slots == 2
    seen: list[str] = []

    class LoseANode(Watcher):
        def progressed(self, progress):
            seen.append(progress.run_id)
            if len(set(seen)) == 2 and other in made.list_all_nodes():
                made.remove_node(other, allow_graceful=False)

    watcher = LoseANode()
    run_all(tmp_path, runs, executor, watcher)
    assert len(made.list_all_nodes()) == 1, "no node was lost: the test tested nothing"
    assert watcher.reasons == {spec.run_id: None for spec in runs}
    assert statuses(tmp_path, runs) == ["completed"] * 4
    assert_readable(tmp_path)
    counts = lossbench.load(tmp_path).steps.groupby("run_id", observed=True)["step"].agg(list)
    assert counts.to_dict() == {spec.run_id: list(range(1, 31)) for spec in runs}
    local = tmp_path / "local"
    run_all(local, planned(local, quick_recipe(steps=30, modes=["grpo"])), LocalExecutor([()]), Watcher())
    assert_same_tables(local, tmp_path, runs[0])


def test_a_local_cluster_runs_continues_from_a_checkpoint_and_reports_failures(tmp_path):
    task = tmp_path / "mytask.py"
    task.write_text(
        "from lossbench.tasks.selfcheck import SelfCheck\n"
        "class Faulty(SelfCheck):\n    def reward(self, *_):\n        raise ZeroDivisionError('no such reward')\n"
    )
    arms = [{"mode": "grpo"}, {"mode": "grpo", "label": "faulty", "set": {"task": f"{task}:Faulty"}}]
    runs = planned(tmp_path, quick_recipe(modes=None, arms=arms, checkpoint_every=1))

    def interrupt(step, *_):
        if step == 3:
            raise SystemExit

    with pytest.raises(SystemExit):
        execute(runs[0], run_dir(tmp_path, runs[0].run_id), interrupt)
    watcher = Watcher()
    run_all(tmp_path, runs, make_executor("ray", Resources(jobs=2)), watcher)
    assert not ray.is_initialized(), "the local cluster is still there"
    assert watcher.reasons[runs[0].run_id] is None
    assert watcher.reasons[runs[1].run_id] == "ZeroDivisionError: no such reward"
    assert statuses(tmp_path, runs) == ["completed", "failed"]
    assert run_state(tmp_path, runs[0].run_id)["resumed_from_step"] == 2
    assert tables(tmp_path, runs[0])["steps"]["step"].tolist() == [1, 2, 3, 4]
    assert "Traceback" in (tmp_path / "runs" / runs[1].run_id / "log.txt").read_text()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:x"])
def test_an_address_without_a_cluster_is_refused_in_one_line(address):
    with pytest.raises(UsageError, match=r"--address '.*' ?: cannot be reached") as refused:
        make_executor("ray", Resources(address=address))
    assert "\n" not in str(refused.value)


def test_more_gpus_than_any_node_has_are_refused(cluster):
    made, _ = cluster
    with pytest.raises(UsageError, match="the largest node of the cluster has 0 GPUs"):
        make_executor("ray", Resources(address=made.address, gpus_per_run=1))
    with pytest.raises(UsageError, match="no node of the cluster has 2 CPUs"):
        make_executor("ray", Resources(address=made.address, processes=2))
