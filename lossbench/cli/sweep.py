"""`lossbench sweep`: train a grid of modes x seeds."""

from lossbench.cli import _options as o
from lossbench.cli._shared import Format, FormatOption, QuietOption


def sweep(
    recipe: o.RecipeArgument = "quick",
    modes: o.ModesOption = None,
    loss_types: o.LossTypesOption = None,
    agg_modes: o.AggModesOption = None,
    scale_rewards: o.ScaleRewardsOption = None,
    seeds: o.SeedsOption = None,
    skip_duplicates: o.SkipDuplicatesOption = False,
    steps: o.StepsOption = None,
    model: o.ModelOption = None,
    task: o.TaskOption = None,
    dataset: o.DatasetOption = None,
    verifier: o.VerifierOption = None,
    lora: o.LoraOption = None,
    sampler: o.SamplerOption = None,
    report_to: o.ReportToOption = None,
    probe_every: o.ProbeEveryOption = None,
    checkpoint_every: o.CheckpointEveryOption = None,
    set_: o.SetOption = None,
    jobs: o.JobsOption = None,
    executor: o.ExecutorOption = "local",
    address: o.AddressOption = None,
    gpus_per_run: o.GpusPerRunOption = None,
    nproc_per_run: o.ProcessesOption = 1,
    shard: o.ShardOption = None,
    retry_failed: o.RetryFailedOption = False,
    fail_fast: o.FailFastOption = False,
    fresh: o.FreshOption = False,
    out: o.OutOption = None,
    dry_run: o.DryRunOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Train modes x seeds with GRPO; the same command again completes what is left.

    Example: lossbench sweep --modes grpo,dr_grpo,dapo --seeds 4
    """
    from lossbench.policies.adapters import parse_lora
    from lossbench.sweep.run import launch, resolved_recipe

    flags = {
        "seeds": seeds, "steps": steps, "policy": model, "task": task, "sampler": sampler,
        "lora": None if lora is None else parse_lora(lora), "report_to": _names(report_to), "probe_every": probe_every,
        "checkpoint_every": checkpoint_every, **o.dataset_task(dataset, verifier, task),
    }  # fmt: skip
    axes = {"modes": modes, "loss_types": loss_types, "agg_modes": agg_modes, "scale_rewards": scale_rewards}
    resolved = resolved_recipe(recipe, flags, axes, set_ or [])
    options = o.Launch(
        jobs=jobs, executor=executor, address=address, gpus_per_run=gpus_per_run, processes=nproc_per_run, shard=shard,
        retry_failed=retry_failed, fail_fast=fail_fast, fresh=fresh, skip_duplicates=skip_duplicates, out=out,
        dry_run=dry_run, format=str(format), quiet=quiet,
    )  # fmt: skip
    launch(resolved, options)


def _names(text: str | None) -> list[str] | None:
    """`a,b` as a list."""
    return None if text is None else [name.strip() for name in text.split(",")]
