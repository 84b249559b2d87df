"""Console output of verl, TRL, ms-swift and slime."""

import pytest
from support.logs import notes, read, written

from lossbench.store.read import load

VERL = """some banner
(TaskRunner pid=1) step:0 - val-core/gsm8k/acc/mean@1:0.25
(TaskRunner pid=1) step:1 - actor/pg_loss:np.float64(0.035) - actor/grad_norm:0.5 - critic/rewards/mean:-1.5e-1 - response_length/mean:950.1 - response_length/clip_ratio:0.0
step:2 - actor/pg_loss:0.01 - critic/rewards/mean:0.5 - response_length/mean:900.0
(TaskRunner pid=7) step:2 - actor/pg_loss:0.02 - critic/rewards/mean:0.75 - response_length/mean:901.5
"""  # noqa: E501


def test_verls_console(tmp_path):
    result = read(written(tmp_path / "dapo-s3" / "nohup.log", VERL), tmp_path / "out", mode=None, seed=None)
    assert result.format == "verl-console"
    sweep = load(tmp_path / "out")
    assert sweep.runs.iloc[0][["mode", "seed"]].tolist() == ["dapo", 3]
    # Step 0 is validation alone: no row. Step 2 was repeated by a resumed run: the later line counts.
    assert sweep.steps["step"].tolist() == [1, 2]
    assert sweep.steps["reward_mean"].tolist() == [-0.15, 0.75]
    assert sweep.steps["length_mean"].tolist() == [950.1, 901.5]
    assert sweep.steps["loss"].tolist() == [0.035, 0.02] and sweep.steps["truncated_frac"].tolist()[0] == 0.0


def trl_line(reward, bar="", quote=""):
    pairs = {"loss": 0.01, "reward": reward, "completions/mean_length": 286.8, "epoch": 0.1}
    return bar + "{" + ", ".join(f"'{k}': {quote}{v}{quote}" for k, v in pairs.items()) + "}"


@pytest.mark.parametrize(
    ("text", "steps", "planned", "noted"),
    [
        # The bar is printed before the dict of its step, on the same line by a carriage return.
        ("  2%|1 | 10/500 [00:12<1:00]\r" + trl_line(0.5) + "\n  4%|1 | 20/500 [00:20<1:00]" + trl_line(0.75) + "\n",
         [10, 20], 500, "means over 10 steps"),
        # A late bar: 9 of 10.
        ("| 9/500 [00:12]\r" + trl_line(0.5) + "\n| 20/500 [00:20]" + trl_line(0.75) + "\n", [10, 20], 500, "over 10"),
        # An evaluation's bar is another.
        ("| 5/50 [0:12]\r" + trl_line(0.5) + "\n| 7/8 [00:1]\n| 10/50 [00:20]" + trl_line(0.75), [5, 10], 50, "over 5"),
        (trl_line(0.5, quote="'") + "\n" + trl_line(0.75, quote="'") + "\n", [1, 2], 2, "says no steps"),
    ],
)  # fmt: skip
def test_trls_console(text, steps, planned, noted, tmp_path):
    text += "\n{'train_runtime': 9.0, 'train_loss': 0.1, 'epoch': 1.0}\n{'eval_loss': 0.1, 'epoch': 1.0}\n"
    result = read(written(tmp_path / "out.txt", text), tmp_path / "out")
    assert result.format == "trl-console" and noted in notes(result)
    sweep = load(tmp_path / "out")
    assert sweep.steps["step"].tolist() == steps and sweep.steps["reward_mean"].tolist() == [0.5, 0.75]
    assert sweep.steps["length_mean"].tolist() == [286.8] * 2 and sweep.runs.iloc[0]["steps_planned"] == planned


def test_slimes_console(tmp_path):
    text = "".join(
        f"(Actor) perf {n}: {{'rollout/response_len/mean': {1877.5 + n}, 'rollout/raw_reward': .5, "
        f"'rollout/truncated_ratio': 0.25}}\n"
        for n in (0, 1)
    )
    result = read(written(tmp_path / "run.log", text), tmp_path / "out")
    steps = load(tmp_path / "out").steps
    assert result.format == "slime-console" and "counted from 0" in notes(result)
    assert steps["step"].tolist() == [1, 2] and steps["length_mean"].tolist() == [1877.5, 1878.5]
    assert steps["reward_mean"].tolist() == [0.5, 0.5] and steps["truncated_frac"].tolist() == [0.25, 0.25]
