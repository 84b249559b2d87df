"""Checks before anything starts: each thing that the runs need from outside their plan, checked once."""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.policies.fit import check_texts
from lossbench.policies.hardware import placement
from lossbench.policies.load import is_built_in
from lossbench.policies.prepare import check_policy_params
from lossbench.tasks import Task, make_task, remote_data
from lossbench.tasks.user_file import is_file_reference
from lossbench.training.contents import Contents, model_contents, task_contents
from lossbench.training.run_spec import RunSpec, Settings

_ALSO_BY = {"tensorboard": "tensorboardX"}  # a logger's other package; the first is called like the logger

Say = Callable[[str], None]


def preflight(runs: Iterable[RunSpec], *, fetch: bool, say: Say, here: bool = True) -> Contents:
    """Check devices, extras, tasks, models and prompts; returns the fingerprints of what the runs will read.

    Raises UsageError, one line, for what the runs would fail on. With `fetch`, data sets and models that this machine
    lacks are fetched, `.gguf` files converted and task files run; else they are passed over, and `say` is told. `here`
    is whether the runs run on this machine: devices and extras of others are theirs to check.
    """
    contents: Contents = {}
    tasks: dict[str, Task | None] = {}
    policies_seen: set[tuple[Any, ...]] = set()
    for spec in _distinct(runs):
        settings = spec.settings
        if here:
            _check_extras(settings)
        _check_mode(spec)
        _check_built_in(spec)
        asked = f"{settings.task} {sorted(settings.task_params.items())}"
        if asked not in tasks:
            tasks[asked] = _task(settings, fetch, say)
            contents |= task_contents(settings, tasks[asked])
        task = tasks[asked]
        if task is not None:
            _check_prompts(settings, task)
        policy = (spec.policy, asked, settings.trust_remote_code, settings.max_completion_length, settings.sampler)
        if policy not in policies_seen:
            policies_seen.add(policy)
            contents |= _check_policy(spec, task, fetch, say)
    return contents


def _distinct(runs: Iterable[RunSpec]) -> Sequence[RunSpec]:
    """One run of each policy, loss_type and settings: seeds and aggregations need nothing of their own."""
    return list({(spec.policy, spec.mode.loss_type, spec.settings.model_dump_json()): spec for spec in runs}.values())


def _check_extras(settings: Settings) -> None:
    placement(settings.device, settings.dtype)
    if settings.sampler == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UsageError("sampler 'vllm' needs vllm: pip install 'lossbench[vllm]'; valid without: lossbench, generate")
    for name in settings.report_to:
        if not any(importlib.util.find_spec(package) for package in (name, _ALSO_BY.get(name, name))):
            raise UsageError(f"--report-to {name} needs {name}: pip install 'lossbench[{name}]'")
    if settings.lora is not None:
        from lossbench.policies.adapters import refuse_bad_lora

        if settings.lora.get("dropout") and settings.disable_dropout:
            raise UsageError(
                f"LoRA option dropout={settings.lora['dropout']} is switched off: leave it out, or "
                "--set disable_dropout=false"
            )
        refuse_bad_lora(settings.lora)


def _check_mode(spec: RunSpec) -> None:
    """A correction of vLLM's probabilities that a mode would leave out in silence."""
    if spec.settings.sampler == "vllm" and not spec.mode.surrogate.corrects_sampler:
        mode = f"mode '{spec.mode.name}'"
        raise UsageError(f"{mode} is not corrected for vLLM's probabilities: use sampler lossbench or generate")


def _check_built_in(spec: RunSpec) -> None:
    """Parameters of the policy, and a setting that a built-in one would pass over in silence."""
    check_policy_params(spec.policy, spec.settings.policy_params)
    if is_built_in(spec.policy) and spec.settings.dtype == "bfloat16":
        raise UsageError(f"dtype 'bfloat16' is for a model: the weights of policy '{spec.policy}' are float32")


def _task(settings: Settings, fetch: bool, say: Say) -> Task | None:
    """The runs' task, None where its data would have to be fetched, or code of the user's own would have to run."""
    if is_file_reference(settings.task):
        path = settings.task.partition(":")[0]
        if not fetch and Path(path).is_file():
            say(f"task file '{path}': run, and its prompts checked, when the sweep starts")
            return None
        say(f"task file '{path}' is run now")
    remote = None if fetch else remote_data(settings.task, settings.task_params)
    if remote is None:
        return make_task(settings.task, settings.task_params)
    say(f"data set {remote}: fetched, and its rows checked, when the sweep starts")
    return None


def _check_prompts(settings: Settings, task: Task) -> None:
    for prompt in (*task.train_prompts, *task.eval_prompts):
        if not prompt.text.strip():
            raise UsageError(f"task '{settings.task}': prompt {prompt.id} is empty: fix or drop it")
        if any("\ud800" <= character <= "\udfff" for character in prompt.text):
            raise UsageError(f"task '{settings.task}': prompt {prompt.id} holds half a surrogate pair: fix or drop it")
    needed, there = settings.prompts_per_generation(), len(task.train_prompts)
    if there < needed:
        raise UsageError(
            f"task '{settings.task}' has {there} training prompts, fewer than the {needed} of one generation"
        )
    check_texts(task.name, (*task.train_prompts, *task.eval_prompts))
    if settings.max_completion_length < task.shortest_answer_tokens:
        raise UsageError(
            f"max_completion_length {settings.max_completion_length} is below the shortest rewarded completion of "
            f"task '{settings.task}', {task.shortest_answer_tokens} tokens with its EOS"
        )


def _check_policy(spec: RunSpec, task: Task | None, fetch: bool, say: Say) -> Contents:
    """Refuse a model that is not available, whose tokenizer has no EOS, or whose chat template the prompts break."""
    from lossbench.policies.chat import PLAIN, as_read_by
    from lossbench.policies.fit import check_balancing_loss, check_fit
    from lossbench.policies.hub import CONVERTED, first_use, load_config, load_tokenizer, resolve
    from lossbench.sampling.prompts import check_cache

    if is_built_in(spec.policy):
        if getattr(task, "chat", False):
            raise UsageError(
                f"task '{spec.settings.task}' asks as a chat, and policy '{spec.policy}' has none: {PLAIN}"
            )
        return {}
    todo = first_use(spec.policy)
    if todo and not fetch:
        say(f"model {spec.policy}: {todo}, and its tokenizer checked, when the sweep starts")
        return {}
    if todo == CONVERTED:
        say(f"model {spec.policy}: {todo}, once …")
    resolve(spec.policy)
    tokenizer = load_tokenizer(spec.policy, trust_remote_code=spec.settings.trust_remote_code)
    config = load_config(spec.policy, trust_remote_code=spec.settings.trust_remote_code)
    check_balancing_loss(type(config).__name__, config, spec.settings.router_aux_loss_coef)
    if spec.settings.sampler == "lossbench" or spec.settings.eval_samples:
        check_cache(spec.policy, config)
    if task is not None:
        read = as_read_by(task, tokenizer, spec.policy)
        prompts = list({prompt.text: prompt for prompt in (*read.train_prompts, *read.eval_prompts)}.values())
        check_fit(spec.policy, config, tokenizer, prompts, spec.settings.max_completion_length, say)
    return model_contents(spec.policy)
