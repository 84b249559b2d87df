import hashlib
import json
import multiprocessing
import random
from dataclasses import replace

import pytest

from lossbench.errors import UsageError
from lossbench.policies import BUILT_IN, warmstart
from lossbench.policies.load import load_policy
from lossbench.policies.prepare import built_in_policy, missing_policies, prepare_policies
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer, phases, write_completion
from lossbench.policies.warmstart import accuracy, cache_dir, ensure_policy, policy_key

QUICK = TinyPolicy(
    short_steps=2, long_steps=2, warmstart_batch=8, hidden_size=16, heads=2, layers=1, least_knowledge=0.0
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights_digest(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_the_same_configuration_gives_the_same_weights(cache, tmp_path, monkeypatch):
    first = weights_digest(ensure_policy(QUICK))
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "other"))
    assert weights_digest(ensure_policy(QUICK)) == first
    assert weights_digest(ensure_policy(replace(QUICK, policy_seed=1))) != first


def test_building_a_policy_leaves_the_callers_random_numbers_alone(cache):
    import torch

    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    ensure_policy(QUICK)
    assert torch.equal(torch.rand(3), expected)


def _build(cache, steps_made):
    import os

    os.environ["LOSSBENCH_CACHE"] = str(cache)
    ensure_policy(QUICK, on_step=lambda done, total: steps_made.put(done))


@pytest.mark.slow
def test_two_processes_that_ask_at_once_build_once(cache):
    context = multiprocessing.get_context("spawn")
    steps_made = context.Queue()
    processes = [context.Process(target=_build, args=(cache, steps_made)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(steps_made.get() for _ in range(4)) == [1, 2, 3, 4] and steps_made.empty()
    assert [path.name for path in (cache / "policies").iterdir() if path.is_dir()] == [f"tiny-{policy_key(QUICK)}"]


@pytest.mark.slow
def test_policies_built_side_by_side_have_the_weights_of_policies_built_alone(cache, tmp_path, monkeypatch):
    policies = [replace(QUICK, policy_seed=seed) for seed in (0, 1, 0)]
    told = []
    prepare_policies(policies, workers=2, on_step=lambda done, total: told.append((done, total)))
    assert not missing_policies(policies)
    assert told[-1] == (8, 8)  # two policies of 2 + 2 steps
    together = [weights_digest(ensure_policy(policy)) for policy in policies]
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "alone"))
    assert together == [weights_digest(ensure_policy(policy)) for policy in policies]


def test_a_build_in_another_process_that_fails_says_why_in_this_one(cache):
    with pytest.raises(Exception, match="hidden size"):
        prepare_policies([replace(QUICK, hidden_size=3), replace(QUICK, policy_seed=1)], workers=2)
    assert missing_policies([replace(QUICK, policy_seed=1)]) == []


def test_a_build_that_dies_leaves_no_policy_behind(cache):
    def fail(done, total):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        ensure_policy(QUICK, on_step=fail)
    assert not [path for path in (cache / "policies").iterdir() if path.is_dir()]
    assert ensure_policy(QUICK).is_dir()


def test_the_cache_folder_follows_the_environment(cache, monkeypatch):
    assert cache_dir() == cache
    assert missing_policies([built_in_policy("selfcheck", 0)]) == [built_in_policy("selfcheck", None)]
    monkeypatch.delenv("LOSSBENCH_CACHE")
    assert cache_dir().name == "lossbench"


def test_a_policy_on_disk_says_what_it_is(cache):
    built = json.loads((ensure_policy(QUICK) / "policy.json").read_text())
    assert 0 <= built.pop("accuracy") < 0.05 and built == {**QUICK.as_dict(), "attempt": 1}


def test_accuracy_is_the_probability_of_two_right_digits_and_no_third():
    import torch

    tokenizer = make_tokenizer()
    model = make_model(QUICK, len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight.zero_()
    # 16 tokens, equally likely: (1/16)^2 for the answer, and 6/16 that no digit follows
    assert accuracy(model, tokenizer) == pytest.approx(6 / 16**3)


def test_a_warm_start_that_did_not_learn_the_sums_is_begun_again(cache, monkeypatch):
    first = weights_digest(ensure_policy(QUICK))
    picky = replace(QUICK, least_knowledge=0.6)  # of the quarter of its answers that are right: 0.15
    found = iter([0.06, 0.149, 0.15])
    seeds = []
    train = warmstart._train
    monkeypatch.setattr(warmstart, "accuracy", lambda model, tokenizer: next(found))
    monkeypatch.setattr(warmstart, "_train", lambda *args: (seeds.append(args[3].getstate()), train(*args)))
    folder = ensure_policy(picky)
    built = json.loads((folder / "policy.json").read_text())
    assert (built["attempt"], built["accuracy"]) == (3, 0.15)
    assert weights_digest(folder) != first and len(set(seeds)) == 3


def test_a_policy_that_never_learns_is_not_kept(cache):
    with pytest.raises(UsageError, match=r"accuracy 0\.\d+, 0\.\d+, 0\.\d+ in 3 attempts, 0\.150 is needed"):
        ensure_policy(replace(QUICK, least_knowledge=0.6))
    assert not [path for path in (cache / "policies").iterdir() if path.is_dir()]


def test_the_tokenizer_is_one_token_per_character_and_reads_back():
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("7+8=51yyn")
    assert len(ids) == 9
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "7+8=51yyn"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_warm_start_text_has_the_stated_frequencies():
    # 4,000 completions; three binomial standard errors: 3 * sqrt(.25 * .75 / 4000) = .021, and for the check tokens
    # about 60,000 of them, 3 * sqrt(.05 * .95 / 60000) = .0027. Mean number of checks: sum of .94^k, k=1..60, = 15.28.
    policy, rng = TinyPolicy(), random.Random(0)
    texts = [write_completion(policy, phases(policy)[-1], 7, 8, rng) for _ in range(4000)]
    right = [text[:2] == "51" for text in texts]
    assert abs(sum(right) / 4000 - 0.25) < 0.021
    checks = [(token == "y") == is_right for text, is_right in zip(texts, right, strict=True) for token in text[2:]]
    assert abs(sum(checks) / len(checks) - 0.95) < 0.003
    assert abs(len(checks) / 4000 - 15.28) < 0.75
    assert all(sum(a != b for a, b in zip(text[:2], "51", strict=True)) <= 1 for text in texts)


def test_checks_of_the_null_policy_say_nothing():
    policy, rng = BUILT_IN["selfcheck-null"], random.Random(0)
    texts = [write_completion(policy, phases(policy)[-1], 7, 8, rng) for _ in range(2000)]
    says_yes = {right: [c == "y" for t in texts if (t[:2] == "51") == right for c in t[2:]] for right in (True, False)}
    for answers in says_yes.values():
        assert abs(sum(answers) / len(answers) - 0.5) < 0.025


def test_the_built_in_policy_starts_where_training_has_room_both_ways():
    import torch

    from lossbench.sampling.draws import row_uniforms
    from lossbench.sampling.rollouts import sample
    from lossbench.tasks import make_task

    policy, task = load_policy("selfcheck", 0), make_task("selfcheck")
    prompts = task.train_prompts * 4
    encoded = policy.tokenizer([p.text for p in prompts], return_tensors="pt")
    numbers = range(len(prompts))
    with torch.no_grad():
        completions = sample(
            policy.model, encoded["input_ids"], encoded["attention_mask"],
            row_uniforms(0, 0, numbers, numbers, 128), eos_token_ids=[policy.tokenizer.eos_token_id],
            pad_token_id=policy.tokenizer.pad_token_id,
        )  # fmt: skip
    texts = policy.tokenizer.batch_decode(completions, skip_special_tokens=True)
    accuracy = sum(task.verify(t, p.answer) for t, p in zip(texts, prompts, strict=True)) / len(prompts)
    lengths = torch.tensor([float(len(ids)) for ids in completions])
    assert 0.1 < accuracy < 0.35
    assert 14 < lengths.mean() < 24 and 10 < lengths.std() < 22


def test_parameters_make_another_policy_and_defaults_do_not(cache):
    default = built_in_policy("selfcheck", 3)
    assert built_in_policy("selfcheck", 3, {}) == built_in_policy("selfcheck", 3, {"check_truth": 0.95}) == default
    changed = built_in_policy("selfcheck", 3, {"check_truth": 1, "max_checks": 20})
    assert (changed.check_truth, changed.max_checks, changed.policy_seed) == (1.0, 20, 3)
    assert policy_key(changed) == policy_key(replace(default, check_truth=1.0, max_checks=20)) != policy_key(default)
    # the null policy is the default with its checks made coin flips, however it is named
    assert built_in_policy("selfcheck", 0, {"check_truth": 0.5}) == built_in_policy("selfcheck-null", 0)


@pytest.mark.parametrize(
    ("policy", "params", "message"),
    [
        ("selfcheck", {"check_trut": 1}, "unknown parameter of policy 'selfcheck' 'check_trut': did you mean"),
        ("selfcheck", {"policy_seed": 1}, "unknown parameter of policy 'selfcheck' 'policy_seed'"),
        ("selfcheck", {"check_truth": 1.5}, "check_truth=1.5: .*less than or equal to 1"),
        ("selfcheck", {"max_checks": 2.5}, "max_checks=2.5: "),
        ("selfcheck", {"check_truth": float("nan")}, "check_truth=nan: "),
        ("selfcheck", {"hidden_size": 30}, "hidden_size=30; valid: a multiple of 2 heads, 8"),
        ("org/model", {"check_truth": 0.8}, "policy_params are for a built-in policy .*'org/model' is a model"),
    ],
)
def test_parameters_that_are_not_a_policy_s_are_one_line(policy, params, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_policy(policy, 0, policy_params=params)
    assert "\n" not in str(caught.value)


def test_a_run_a_sweep_and_a_probe_take_policy_params(cache):
    from support.sweeps import quick_recipe, quick_run

    from lossbench.sweep.plan import plan
    from lossbench.sweep.preflight import preflight

    plain, changed = quick_run(), quick_run(policy_params={"check_truth": 0.8})
    assert plain.run_id != changed.run_id and plain.run_id == quick_run(policy_params={}).run_id
    arms = [
        {"label": "a", "mode": "grpo", "set": {"policy_params": {"check_truth": 0.6}}},
        {"label": "b", "mode": "dapo"},
    ]
    runs = plan(quick_recipe(modes=None, arms=arms))
    assert [run.settings.policy_params for run in runs] == [{"check_truth": 0.6}, {}]
    with pytest.raises(UsageError, match="unknown parameter of policy 'selfcheck' 'truth'"):
        preflight([quick_run(policy_params={"truth": 1})], fetch=False, say=print)
    quick = {name: value for name, value in QUICK.as_dict().items() if name != "policy_seed"}
    loaded = load_policy("selfcheck", 0, policy_params=quick)
    assert loaded.resolved["policy_key"] == policy_key(QUICK)
