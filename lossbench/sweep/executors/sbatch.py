"""Options of sbatch: parsed, checked with the cluster, and written into a script for those who submit it themselves."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lossbench.errors import UsageError, one_line, unknown

OPTIONS = (
    "partition", "time", "gpus_per_node", "cpus_per_task", "mem", "account", "qos", "constraint", "gres", "nodelist",
    "exclude", "mem_per_cpu", "mem_per_gpu", "reservation", "licenses", "dependency", "nice", "comment", "mail_type",
    "mail_user",
)  # fmt: skip
_ANSWER_WITHIN_S = 60


def parse_options(text: str | None) -> dict[str, str]:
    """`partition=gpu,nodelist=n1,n2` as a table; a piece without `=` belongs to the value before it.

    Raises UsageError, also where the time limit is missing: jobs without one get what their partition happens to give.

    >>> parse_options("time=120,nodelist=n1,n2")
    {'time': '120', 'nodelist': 'n1,n2'}
    """
    options: dict[str, str] = {}
    for piece in text.split(",") if text else ():
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals and options:
            options[next(reversed(options))] += f",{name}"
            continue
        if not value:
            raise UsageError(f"--slurm '{piece}': give NAME=VALUE, such as partition=gpu")
        if (name := name.replace("-", "_")) not in OPTIONS:
            raise UsageError(unknown("Slurm option", name, OPTIONS))
        options[name] = value
    if not options.get("time", "").isdecimal() or int(options["time"]) < 1:
        raise UsageError("--slurm: give a job's time limit in minutes, such as time=120")
    return options


def check_options(options: Mapping[str, str]) -> None:
    """Have the cluster check the options, submitting nothing.

    Raises UsageError if Slurm is missing, does not answer, or it would refuse a job.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("--executor slurm: no `sbatch` on the path; run this on a login node of a Slurm cluster")
    partitions = _ask(["sinfo", "--noheader", "--format=%R"], "sinfo").split()
    for name in options["partition"].split(",") if "partition" in options else ():
        if name not in partitions:
            raise UsageError(unknown("partition", name, dict.fromkeys(partitions)))
    _ask(["sbatch", "--test-only", *_flags(options), "--wrap=true"], "Slurm refuses these options")


def _ask(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--executor slurm: {what}: {one_line(error)}") from None
    if done.returncode:
        raise UsageError(f"--executor slurm: {what}: {one_line(done.stderr)}")
    return done.stdout


def _flags(options: Mapping[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def sbatch_script(options: Mapping[str, str], command: Sequence[str], runs: int, jobs: int | None, folder: Path) -> str:
    """An array job with a slice of the plan, here one run, per task; `command` is a sweep into `folder`."""
    given = {
        "job_name": "lossbench", "array": f"1-{runs}" + (f"%{jobs}" if jobs else ""),
        "output": f"{folder.name}-%A_%a.out", "open_mode": "append", **options,
    }  # fmt: skip
    lines = [f"#SBATCH {shlex.quote(flag)}" for flag in ["--requeue", *_flags(given)]]
    shard = "--shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
    return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join(command)} {shard}"])
