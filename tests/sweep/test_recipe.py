import pytest

from lossbench.errors import UsageError
from lossbench.sweep.overrides import resolve
from lossbench.sweep.plan import plan, recipe_arms
from lossbench.sweep.preflight import preflight
from lossbench.sweep.recipe import (
    apply_assignments,
    load_recipe,
    make_recipe,
    parse_assignment,
    parse_seeds,
    recipe_names,
)
from lossbench.training.hashed_fields import hash_of


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("4", [0, 1, 2, 3]), ("0,3", [0, 3]), ("2-5", [2, 3, 4, 5]), ("7-7", [7]), ("0-1,8", [0, 1, 8]), (3, [0, 1, 2])],
)
def test_seeds_are_a_count_a_list_or_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["5-2", "a", "1,,2", "-1", ""])
def test_seeds_that_cannot_be_read_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a count|runs backwards"):
        parse_seeds(text)


def recipe(**keys):
    return make_recipe({"name": "t", "modes": ["grpo", "dr_grpo"], "seeds": 2, **keys}, "t")


def test_runs_are_seed_major_so_that_a_stopped_sweep_is_balanced():
    runs = plan(recipe(seeds=2))
    assert [(run.mode.name, run.seed) for run in runs] == [("grpo", 0), ("dr_grpo", 0), ("grpo", 1), ("dr_grpo", 1)]


def test_each_run_has_a_folder_of_its_own():
    runs = plan(recipe(modes=["grpo", "grpo@length-power:0.5/none"], seeds=3))
    assert len({run.run_id for run in runs}) == 6
    assert not any(set("/@:") & set(run.run_id) for run in runs)


def test_the_run_id_changes_with_any_setting_and_with_nothing_else():
    first, again = plan(recipe())[0], plan(recipe(description="other words", seeds=[0, 5]))[0]
    assert first.run_id == again.run_id
    assert first.run_id != plan(recipe(learning_rate=2e-4))[0].run_id


def test_the_folder_hash_covers_settings_but_not_modes_and_seeds():
    assert hash_of(recipe().shared()) == hash_of(recipe(modes=["dapo"], seeds=7).shared())
    assert hash_of(recipe().shared()) != hash_of(recipe(steps=10).shared())


def test_seeds_are_split_over_the_warm_starts():
    runs = plan(recipe(modes=["grpo"], seeds=8, policy_seeds=[0, 1], seeds_per_policy=4))
    assert [run.policy_seed for run in runs] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_an_arm_may_name_its_policy_and_is_called_after_it():
    arms = recipe_arms(recipe(modes=None, arms=[{"mode": "grpo"}, {"mode": "grpo", "policy": "selfcheck-null"}]))
    assert [name for name, _, _ in arms] == ["grpo", "grpo[selfcheck-null]"]


def test_an_arm_may_change_settings_of_its_own_runs():
    capped = {"mode": "grpo", "label": "cap", "set": {"max_completion_length": 16}}
    runs = plan(recipe(modes=["grpo"], arms=[capped], seeds=1))
    assert [run.settings.max_completion_length for run in runs] == [128, 16]
    assert [run.arm for run in runs] == ["grpo", "grpo[cap]"]


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_plans(name):
    resolved = load_recipe(name)
    assert resolved.description
    assert plan(resolved)


def test_quick_is_the_default_and_small():
    resolved = load_recipe("quick")
    assert (resolved.modes, resolved.seeds) == (["grpo", "dr_grpo"], [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"learning_rte": 1e-4}, ["unknown key 'learning_rte'", "'learning_rate'"]),
        ({"steps": 0}, ["steps = 0", "greater than or equal to 1"]),
        ({"steps": -3}, ["steps = -3"]),
        ({"seeds": [1, 1]}, ["given twice: 1"]),
        ({"num_generations": 1}, ["num_generations = 1", "greater than or equal to 2"]),
        ({"num_generations": 7}, ["64 completions", "num_generations 7"]),
        ({"seeds": []}, ["no seed"]),
        ({"seeds": "99999999999"}, ["seeds: 99999999999 runs", "LOSSBENCH_MAX_RUNS"]),
        ({"seeds": "0-300000000"}, ["300000001 runs"]),
        ({"seeds": "9" * 5000}, ["beyond the limit"]),
        ({"seeds": [2**32]}, ["0 to 4294967295"]),
        ({"steps": 10**20}, ["steps = 1000", "less than 2147483648"]),
        ({"warmup_steps": 10**20}, ["warmup_steps"]),
        ({"name": "../../evil"}, ["name '../../evil'", "one name"]),
        ({"name": "a\\b"}, ["one name"]),
        ({"name": ".."}, ["one name"]),
        ({"name": " "}, ["1 to 200 characters"]),
        ({"name": "x" * 300}, ["1 to 200 characters"]),
        ({"name": "a\x1b[2Jb"}, ["\\x1b[2J", "control characters"]),
        ({"learning_rate": "fast"}, ["learning_rate = 'fast'"]),
        ({"loss_types": ["grpo"]}, ["modes excludes loss_types"]),
        ({"epsilon_high": float("inf")}, ["epsilon_high = inf", "finite"]),
        ({"lr_scheduler_type": "cosin"}, ["lr_scheduler_type = 'cosin'", "'cosine'"]),
    ],
)
def test_a_bad_key_is_named_with_what_would_be_valid(keys, words):
    with pytest.raises(UsageError) as caught:
        recipe(**keys)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"modes": ["grp"]}, ["unknown mode 'grp'", "did you mean 'grpo'"]),
        ({"modes": ["grpo", "grpo@seq-mean-token-mean"]}, ["same mode"]),
        ({"modes": ["grpo@token-men"]}, ["unknown agg_mode 'token-men'", "'token-mean'"]),
        ({"modes": []}, ["empty"]),
        ({"task": "selfchek"}, ["unknown task 'selfchek'", "'selfcheck'"]),
        ({"per_device_train_batch_size": 808}, ["100 training prompts", "101"]),
        ({"max_completion_length": 2}, ["max_completion_length 2", "3 tokens"]),
        ({"arms": [{"mode": "grpo"}]}, ["'grpo' is given twice"]),
        ({"baseline": "gspo"}, ["unknown baseline 'gspo'", "grpo, dr_grpo"]),
        ({"modes": [f"grpo@length-power:{n}" for n in range(20_000)]}, ["the plan: 40000 runs", "limit of 10000"]),
        ({"modes": None, "arms": [{"mode": "grpo", "label": str(n)} for n in range(20_000)]}, ["40000 runs"]),
        ({"arms": [{"mode": "grpo", "set": {"steps": 5}}]}, ["give it a label"]),
        ({"dtype": "bfloat16"}, ["dtype 'bfloat16'", "'selfcheck' are float32"]),
        ({"lora": {"rank": 4}}, ["unknown LoRA option 'rank'", "valid: r"]),
        ({"lora": {}}, ["LoRA option r=None", "--lora r=16"]),
        ({"lora": {"r": 16, "alpha": "32"}}, ["LoRA option alpha='32'", "a number"]),
        ({"task": "arithmetic"}, ["asks as a chat", "form=plain"]),
        ({"task": "dataset"}, ["which one? give --dataset"]),
        ({"task": "dataset", "task_params": {"path": "hub:a/b", "verifier": "exct"}}, ["unknown verifier", "'exact'"]),
        ({"policy": "./nowhere"}, ["model './nowhere'", "no such folder"]),
        ({"policy": "nowhere.gguf"}, ["model 'nowhere.gguf'", "no such file"]),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_starts(keys, words):
    with pytest.raises(UsageError) as caught:
        preflight(plan(recipe(**keys)), fetch=False, say=print)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_set_reads_toml_values_and_reaches_into_tables():
    assert parse_assignment("learning_rate=1e-6") == ("learning_rate", 1e-6)  # a float, not the string "1e-6"
    assert parse_assignment("task=arithmetic") == ("task", "arithmetic")
    assert apply_assignments({"steps": 1}, ["task_params.digits=2", "steps=5"]) == {
        "steps": 5,
        "task_params": {"digits": 2},
    }
    with pytest.raises(UsageError, match="write key=value"):
        parse_assignment("learning_rate")


def test_steps_of_warm_up_are_taken_under_a_constant_rate_too(tmp_path):
    from lossbench.training.run import trainer_config

    def scheduler(**keys):
        return trainer_config(plan(recipe(**keys))[0], tmp_path).lr_scheduler_type

    assert [scheduler(), scheduler(warmup_steps=20)] == ["constant", "constant_with_warmup"]
    assert scheduler(warmup_steps=20, lr_scheduler_type="cosine") == "cosine"


def test_a_mode_that_vllms_probabilities_would_bias_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(UsageError, match="mode 'vespo' is not corrected"):
        preflight(plan(recipe(modes=["grpo", "vespo"], sampler="vllm")), fetch=False, say=print)


def test_one_prompt_a_generation_makes_equal_what_two_would_not():
    from lossbench.sweep.duplicates import setup_of

    sizes = {"per_device_train_batch_size": 64}
    assert setup_of(recipe(**sizes, num_generations=64)).rows_per_micro_batch == 64
    assert setup_of(recipe(**sizes, num_generations=8)).rows_per_micro_batch == 16


def test_a_baseline_goes_with_the_modes_that_are_replaced():
    resolved, _ = resolve("null-control", {"modes": "dapo,dr_grpo"})
    assert plan(resolved) and resolved.baseline == "grpo"  # the default, of which the report makes the first arm
    with pytest.raises(UsageError, match="unknown baseline 'gspo'"):
        plan(resolve("null-control", {"modes": "dapo,dr_grpo", "baseline": "gspo"})[0])


@pytest.mark.parametrize(
    "keys",
    [
        {"trust_remote_code": True},
        {"report_to": ["wandb"]},
        {"arms": [{"mode": "grpo", "label": "x", "set": {"trust_remote_code": True}}]},
        {"arms": [{"mode": "grpo", "label": "x", "set": {"report_to": ["wandb"]}}]},
    ],
)
def test_a_recipe_neither_trusts_code_nor_uploads_but_a_call_may(keys, tmp_path):
    with pytest.raises(UsageError, match="not for a recipe to decide: give --"):
        resolve({"modes": ["grpo"], **keys}, {})
    resolved, _ = resolve({"modes": ["grpo"]}, keys)
    assert resolved.trust_remote_code or resolved.report_to or resolved.arms
    assert resolve({"modes": ["grpo"], "trust_remote_code": False, "report_to": []}, {})


def test_a_recipe_file_may_begin_with_a_byte_order_mark_and_hold_any_letter(tmp_path):
    path = tmp_path / "café.toml"
    path.write_bytes(b"\xef\xbb\xbf" + 'description = "é"\nmodes = ["grpo"]\n'.encode())
    resolved = load_recipe(str(path))
    assert (resolved.name, resolved.description) == ("café", "é")
