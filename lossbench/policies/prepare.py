"""Built-in policies into the cache before they are needed, several at once where there are cores for them."""

import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from multiprocessing.connection import wait
from typing import Any

from pydantic import ValidationError

from lossbench.errors import UsageError, unknown
from lossbench.policies import BUILT_IN
from lossbench.policies.tiny import TinyPolicy, phases
from lossbench.policies.warmstart import OnStep, ensure_policy, policy_path
from lossbench.processes import main_hidden

_POLL_S = 0.2


def built_in_policy(policy: str, policy_seed: int | None, params: Mapping[str, Any] | None = None) -> TinyPolicy:
    """The configuration of the built-in policy of that name, warm-started with that seed (None: 0).

    `params` change it, such as {"check_truth": 0.8}. Raises UsageError for a name or value that is not valid.
    """
    params = params or {}
    names = [field.name for field in fields(TinyPolicy) if field.name != "policy_seed"]
    for name in params:
        if name not in names:
            raise UsageError(unknown(f"parameter of policy '{policy}'", name, names))
    try:
        found = replace(BUILT_IN[policy], policy_seed=policy_seed or 0, **params)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UsageError(f"policy '{policy}': {wrong['loc'][0]}={wrong['input']!r}: {wrong['msg']}") from None
    if found.hidden_size % (2 * found.heads):
        raise UsageError(
            f"policy '{policy}': hidden_size={found.hidden_size}; valid: a multiple of 2 heads, {2 * found.heads}"
        )
    return found


def check_policy_params(policy: str, params: Mapping[str, Any]) -> None:
    """Raise UsageError for parameters that are not those of `policy`, which a model has none of."""
    if policy in BUILT_IN:
        built_in_policy(policy, None, params)
    elif params:
        raise UsageError(f"policy_params are for a built-in policy ({', '.join(BUILT_IN)}): '{policy}' is a model")


def missing_policies(policies: Sequence[TinyPolicy]) -> list[TinyPolicy]:
    """Those that the cache lacks, each once."""
    return [policy for policy in dict.fromkeys(policies) if not policy_path(policy).is_dir()]


def prepare_policies(policies: Sequence[TinyPolicy], workers: int, on_step: OnStep | None = None) -> None:
    """Build the policies that are missing, `workers` at a time, one thread each: the same weights for any number.

    `on_step(done, total)` counts the steps of all. Raises what a warm start raises, such as OSError for a full disk.
    """
    missing = missing_policies(policies)
    if min(workers, len(missing)) > 1:
        _in_processes(missing, workers, on_step)
    # The only one missing; or one whose process failed, which tells here why.
    for policy in missing_policies(policies):
        ensure_policy(policy, on_step)


def _in_processes(missing: Sequence[TinyPolicy], workers: int, on_step: OnStep | None) -> None:
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    steps_done = context.Value("q", 0)
    total = sum(phase.steps for policy in missing for phase in phases(policy))
    waiting, running = list(missing), []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                process = context.Process(target=_build, args=(waiting.pop(0), steps_done), daemon=True)
                with main_hidden():
                    process.start()
                running.append(process)
            wait([process.sentinel for process in running], _POLL_S)
            running = [process for process in running if process.is_alive()]
            if on_step:
                on_step(min(steps_done.value, total), total)  # one that is begun again makes more steps
    finally:
        for process in running:
            process.terminate()
            process.join()


def _build(policy: TinyPolicy, steps_done: Any) -> None:
    """A worker: Ctrl-C reaches every process of a terminal, and it is for the parent to end this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def count(done: int, total: int) -> None:
        with steps_done.get_lock():
            steps_done.value += 1

    try:
        ensure_policy(policy, count)
    except Exception:  # the parent builds this one again by itself, and there the exception reaches the caller
        raise SystemExit(1) from None
