"""`lossbench reproduce`: a pre-stated recipe with its claims, then the verdict."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.claims.verdict import Verdict
    from lossbench.training.run_spec import RunSpec

_SMOKE = {"seeds": [0], "steps": 30}


def reproduce(
    recipe: Annotated[str, Argument(help="A recipe that states claims.")] = "dr-grpo",
    smoke: Annotated[bool, o.option("Two minutes instead of fifty: too small for verdicts.", "--smoke")] = False,
    probe: Annotated[bool, o.option("Also probe the frozen policy, which one claim needs.")] = True,
    sampler: o.SamplerOption = None,
    jobs: o.JobsOption = None,
    executor: o.ExecutorOption = None,
    address: o.AddressOption = None,
    retry_failed: o.RetryFailedOption = False,
    out: o.SweepOutOption = None,
    format: o.FormatOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Run a pre-stated recipe and judge its claims: the paper's figure, ours with its interval, and the verdict.

    Example: lossbench reproduce dr-grpo --smoke
    """
    from lossbench.api import load, plan_sweep
    from lossbench.claims.registry import select
    from lossbench.cli.sweep import make_runs
    from lossbench.sweep.recipe import recipe_path

    changes: dict[str, Any] = {"name": f"{recipe_path(recipe).stem}-smoke", **_SMOKE} if smoke else {}
    planned = plan_sweep(
        recipe, sampler=sampler, jobs=jobs, executor=executor, address=address, retry_failed=retry_failed, out=out,
        **changes,
    )  # fmt: skip
    if not planned.recipe.claims:
        raise UsageError(f"recipe '{recipe}' states no claims: use `lossbench sweep {recipe}`")
    if smoke:
        talk("a smoke run: one seed of 30 steps cannot decide any claim about training")
    folder = make_runs(planned, quiet)
    if probe and any(claim.needs_probe for claim in select(planned.recipe.claims)):
        _probe(folder, planned.runs, planned.recipe.policy, smoke, quiet)
    made = load(folder).report()
    print_table([_row(verdict) for verdict in made.data.verdicts], None, format)
    if not quiet:
        talk(f"the report: {made.folder / 'index.html'}")
    if not made.complete:
        raise Exit(1)


def _probe(folder: Path, runs: "Sequence[RunSpec]", policy: str, smoke: bool, quiet: bool) -> None:
    """Probe each warm start of the sweep's policy into its folder, once."""
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.measure import is_complete, measure, probe_path
    from lossbench.probe.prober import ProbeSettings

    jobs = {}
    for run in (run for run in runs if run.policy == policy):
        params = run.settings.policy_params
        settings, options = ProbeSettings(pairs=4 if smoke else 40), {"policy_params": params} if params else {}
        job = ProbeJob(policy, run.policy_seed, settings=settings, load_options=options)
        jobs.setdefault(probe_path(folder, job), job)
    for path, job in jobs.items():
        if not is_complete(path):
            measure([job], path)
            if not quiet:
                talk(f"probed warm start {job.policy_seed}: {path}")


def _row(verdict: "Verdict") -> dict[str, Any]:
    return {
        "claim": verdict.claim.id, "verdict": verdict.status, "paper": verdict.claim.paper_figure,
        "ours": _ours(verdict), "p_holm": verdict.p_holm, "n": verdict.n or None,
        "per_policy": "; ".join(
            f"policy {effect.policy_seed}: {effect.effect.estimate:+.3g} {verdict.policy_unit} (n={effect.n})"
            for effect in verdict.per_policy
        ),
        "sentence": verdict.claim.sentence,
    }  # fmt: skip


def _ours(verdict: "Verdict") -> str:
    """The effect with its interval, and the ratio where the claim has one."""
    from lossbench.claims.verdict import three_digits

    effect, ratio = verdict.effect, verdict.ratio
    if effect.estimate != effect.estimate:
        return verdict.reason
    is_ratio = verdict.unit == "ratio"
    low, high = three_digits(effect.low), three_digits(effect.high)
    text = f"{three_digits(effect.estimate, '' if is_ratio else '+')} [{low}, {high}] {verdict.unit}".strip()
    return text if is_ratio or ratio.estimate != ratio.estimate else f"{text}, ratio {ratio.estimate:.2f}"
