"""Probing a run while it trains: the first policy, and every `probe_every` steps."""

import logging
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from lossbench.errors import UsageError
from lossbench.policies.loaded import LoadedPolicy
from lossbench.probe.batches import Sampling
from lossbench.probe.jobs import draw_seed
from lossbench.probe.prober import ProbeSettings, probe_now
from lossbench.store.write import PartWriter
from lossbench.training.run_spec import RunSpec

_RUN_PAIRS = 8

_log = logging.getLogger(__name__)


class Probes(TrainerCallback):
    """Callback that writes the `probe` table of a run; does nothing where the run is not to be probed.

    `leave_out` takes the seconds that a probe took, which are not the step's.
    """

    def __init__(
        self, spec: RunSpec, policy: LoadedPolicy, task: Any, writer: PartWriter | None,
        leave_out: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.spec, self.policy, self.task, self.writer, self.leave_out = spec, policy, task, writer, leave_out

    def at(self, step: int) -> None:
        """Probe now, as the policy after `step` steps."""
        if self.spec.settings.probe_every is None or self.writer is None:
            return
        settings = settings_for_run(self.spec)
        began = time.perf_counter()
        try:
            rows = probe_now(
                self.policy.model, self.policy.tokenizer, self.task, settings, policy=self.spec.policy, step=step
            )
        except UsageError as error:
            # A policy that is right or wrong throughout has no gradient to probe; that is no reason to end its run.
            _log.warning("no probe at step %d: %s", step, error)
            return
        finally:
            self.leave_out(time.perf_counter() - began)
        self.writer.append("probe", step, rows)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Called by the trainer after each optimizer step; the last policy has nothing left to predict."""
        every = self.spec.settings.probe_every
        if every and state.global_step % every == 0 and state.global_step < self.spec.settings.steps:
            self.at(state.global_step)


def settings_for_run(spec: RunSpec) -> ProbeSettings:
    """A probe small enough to be taken while a run trains: eight pairs of batches, as large and drawn as the run's.

    Runs of one policy and seed share prompts and draws, others do not.
    """
    settings, seed = spec.settings, draw_seed(spec.seed, spec.policy, spec.policy_seed)
    sampling = Sampling(
        settings.rows_per_generation(), settings.num_generations, settings.max_completion_length, settings.temperature,
        seed,
    )  # fmt: skip
    return ProbeSettings(sampling, pairs=_RUN_PAIRS, moment_batches=_RUN_PAIRS // 2)
