"""What a sweep costs: against a shell loop over a plain TRL script, per step, per job, per run, per planned run.

Every figure is a ratio within one run, or a wall time with a limit; sides take turns and medians are compared.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.sweeps import Watcher, idle_run, planned, quick_recipe

from lossbench.policies import BUILT_IN
from lossbench.policies.warmstart import ensure_policy
from lossbench.sweep.executors.local import LocalExecutor
from lossbench.sweep.schedule import run_all

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

SCRIPT = Path(__file__).with_name("plain_trl.py")
MODES = ("grpo", "dr_grpo")
STEPS_OF_SWEEP = 100
LATE_STEPS = 20  # the last fifth


def say(capsys: pytest.CaptureFixture[str], title: str, *rows: tuple[str, str]) -> None:
    with capsys.disabled():
        print(f"\n{title}")
        for name, value in rows:
            print(f"  {name:<52}{value:>14}")


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def lossbench(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "lossbench", *words], check=True, capture_output=True)


def plain(mode: str, seed: int, steps: int, out: Path) -> None:
    """One run of the plain script, in a process of its own, with as many threads as torch likes."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    policy = str(ensure_policy(BUILT_IN["selfcheck"]))
    words = [sys.executable, str(SCRIPT), policy, mode, str(seed), str(steps), str(out)]
    subprocess.run(words, check=True, capture_output=True, env=environment)


def late_length(lengths: list[float]) -> float:
    return sum(lengths[-LATE_STEPS:]) / LATE_STEPS


def sweep_lengths(folder: Path) -> dict[str, list[float]]:
    from lossbench.store.read import load

    steps = load(folder).steps
    return {mode: group["length_mean"].tolist() for mode, group in steps.groupby("mode", observed=True)}


def test_a_sweep_against_a_shell_loop_over_a_plain_script(tmp_path, capsys):
    """2 modes x 2 seeds x 100 steps: at least three times faster, and the same late lengths within noise."""

    def loop() -> None:
        for mode in MODES:
            for seed in (0, 1):
                plain(mode, seed, STEPS_OF_SWEEP, tmp_path / f"{mode}-{seed}.txt")

    def sweep() -> None:
        lossbench(
            "sweep", "--modes", ",".join(MODES), "--seeds", "2", "--steps", str(STEPS_OF_SWEEP), "--set",
            "eval_samples=0", "--out", str(folder),
        )  # fmt: skip

    ensure_policy(BUILT_IN["selfcheck"])
    walls: dict[str, list[float]] = {"loop": [], "sweep": []}
    for attempt in range(3):
        folder = tmp_path / f"sweep-{attempt}"
        walls["sweep"].append(seconds(sweep))
        walls["loop"].append(seconds(loop))
    ratio = median(walls["loop"]) / median(walls["sweep"])
    rows = [(f"{name}, s", " ".join(f"{wall:.0f}" for wall in took)) for name, took in walls.items()]
    ours = sweep_lengths(folder)
    for mode in MODES:
        texts = [(tmp_path / f"{mode}-{seed}.txt").read_text().split() for seed in (0, 1)]
        theirs = [late_length([float(text) for text in lengths]) for lengths in texts]
        half = len(ours[mode]) // 2
        mine = [late_length(ours[mode][:half]), late_length(ours[mode][half:])]
        rows.append((f"{mode}: late lengths of two seeds, loop | sweep", f"{theirs} | {mine}"))
        # Seeds of one mode differ by several tokens at these few steps; twice that is noise, three times is a fault.
        assert abs(sum(theirs) - sum(mine)) / 2 < max(6.0, 0.3 * sum(mine) / 2), mode
    say(capsys, "2 modes x 2 seeds x 100 steps", *rows, ("ratio (at least 3)", f"{ratio:.2f}"))
    assert ratio >= 3


STEPS_TIMED = 8
STEP_SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 128, "learning_rate": 1e-6,
    "max_steps": STEPS_TIMED, "logging_steps": 1, "report_to": "none", "use_cpu": True, "bf16": False, "beta": 0.0,
    "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "temperature": 1.0,
}  # fmt: skip


class Clock:
    """Wall time of each optimizer step of a trainer."""

    def __init__(self) -> None:
        from transformers import TrainerCallback

        walls, began = [], [0.0]

        class Ticks(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                began[0] = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                walls.append(time.perf_counter() - began[0])

        self.walls: list[float] = walls
        self.callback = Ticks()


def step_s(folder: Path, mode: str, sampler: str | None) -> float:
    """Median seconds of one step on one thread; `sampler` None is TRL's own trainer with the mode's loss."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from lossbench.loss.modes import parse_mode
    from lossbench.tasks import make_task
    from lossbench.training.rollout_data import TaskReward, training_data
    from lossbench.training.trainer import ModeTrainer

    torch.set_num_threads(1)
    policy = ensure_policy(BUILT_IN["selfcheck"])
    task, parsed, clock = make_task("selfcheck"), parse_mode(mode), Clock()
    stock = {"loss_type": mode, "scale_rewards": parsed.scale_rewards} if sampler is None else {}
    reward = TaskReward(task)
    common: dict[str, Any] = {
        "model": AutoModelForCausalLM.from_pretrained(policy),
        "processing_class": AutoTokenizer.from_pretrained(policy), "reward_funcs": reward,
        "callbacks": [clock.callback],
        "train_dataset": training_data(task, generations=STEPS_TIMED, prompts_per_generation=8, seed=0),
        "args": GRPOConfig(output_dir=str(folder), shuffle_dataset=False, seed=0, **STEP_SETTINGS, **stock),
    }  # fmt: skip
    if sampler is None:
        trainer: Any = GRPOTrainer(**common)
        trainer.eos_token_ids, trainer.note_outcomes = [trainer.processing_class.eos_token_id], lambda outcomes: None
    else:
        trainer = ModeTrainer(mode=parsed, sampler=sampler, **common)
    reward.trainer = trainer
    trainer.train()
    return median(clock.walls[2:])


@pytest.mark.parametrize("mode", MODES)
def test_one_training_step_against_stock(mode, tmp_path, capsys):
    """Generation, loss, backward and update on one thread: at least twice as fast as stock GRPOTrainer."""
    sides: dict[str, list[float]] = {"stock": [], "lossbench": []}
    for _ in range(3):
        sides["stock"].append(step_s(tmp_path, mode, None))
        sides["lossbench"].append(step_s(tmp_path, mode, "lossbench"))
    ratio = median(sides["stock"]) / median(sides["lossbench"])
    rows = [(f"{name}, ms per step", f"{1e3 * median(walls):.0f}") for name, walls in sides.items()]
    say(capsys, f"one training step, {mode}", *rows, ("ratio (at least 2)", f"{ratio:.2f}"))
    assert ratio >= 2


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_own_arithmetic_costs_nothing(mode, tmp_path, capsys):
    """With `generate` on both sides, the row weights and the record may cost five per cent of a step."""
    ratios = []
    for _ in range(5):
        stock, ours = step_s(tmp_path, mode, None), step_s(tmp_path, mode, "generate")
        ratios.append(ours / stock)
    say(
        capsys, f"ModeTrainer over stock, both with generate, {mode}", ("ratio (at most 1.05)", f"{median(ratios):.3f}")
    )
    assert median(ratios) <= 1.05


def test_two_jobs_against_one(tmp_path, capsys):
    """On two cores: at least 1.8 times the runs per hour."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two jobs need two cores")
    recipe = {
        "modes": list(MODES),
        "seeds": [0, 1],
        "steps": 60,
        "per_device_train_batch_size": 64,
        "num_generations": 8,
    }
    walls: dict[int, list[float]] = {1: [], 2: []}
    for attempt in range(3):
        for jobs in walls:
            folder = tmp_path / f"{jobs}-{attempt}"
            runs = planned(folder, quick_recipe(**recipe, max_completion_length=128))
            executor = LocalExecutor([()] * jobs)
            walls[jobs].append(seconds(lambda: run_all(folder, runs, executor, Watcher())))  # noqa: B023
    ratio = median(walls[1]) / median(walls[2])
    rows = [(f"{jobs} at once, s", f"{median(took):.1f}") for jobs, took in walls.items()]
    say(capsys, "four runs of 60 steps on two cores", *rows, ("ratio (at least 1.8)", f"{ratio:.2f}"))
    assert ratio >= 1.8


def test_what_the_schedule_itself_costs(tmp_path, capsys):
    """Runs that do nothing, one after another: at most 0.3 s each, once the fork server has imported what runs need."""
    executor = LocalExecutor([()], execute=idle_run)
    run_all(tmp_path / "warm", planned(tmp_path / "warm", quick_recipe()), executor, Watcher())
    runs_per_sweep = 20
    walls = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        runs = planned(folder, quick_recipe(seeds=list(range(runs_per_sweep // 2))))
        walls.append(seconds(lambda: run_all(folder, runs, executor, Watcher())) / runs_per_sweep)  # noqa: B023
    say(capsys, "schedule, runs that do nothing", ("s per run (at most 0.3)", f"{median(walls):.3f}"))
    assert median(walls) <= 0.3


def test_a_dry_run_of_a_thousand_runs(tmp_path, capsys):
    """At most two seconds for 1,000 planned runs, start of the interpreter included."""
    words = ("sweep", "--modes", ",".join(MODES), "--seeds", "500", "--dry-run", "--out", str(tmp_path / "out"))
    walls = [seconds(lambda: lossbench(*words)) for _ in range(5)]
    say(capsys, "1,000 planned runs, --dry-run", ("s (at most 2)", f"{median(walls):.2f}"))
    assert median(walls) <= 2
