"""A Slurm of one node on this machine, with daemons, ports and keys of its own; and the executor without any Slurm."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossbench.sweep.executors.slurm import SlurmExecutor

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")

CONFIG = """\
ClusterName=lossbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=2
ReturnToService=2
SlurmdTimeout=10
KillWait=2
UnkillableStepTimeout=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why this machine cannot have one, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"needs Slurm (apt-get install slurm-wlm): no {', '.join(missing)}"
    return None if os.geteuid() == 0 else "the daemons of Slurm need root"


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class OneNodeSlurm:
    """The daemons, each in the foreground as a child of this process; `slots` jobs of one CPU run at once."""

    def __init__(self, folder: Path, slots: int = 4) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.config)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir()
        self.host = socket.gethostname().partition(".")[0]
        self.config.write_text(CONFIG.format(folder=folder, host=self.host, ports=_free_ports(2), slots=slots))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def start(self) -> None:
        """Start the daemons and wait until the node takes jobs."""
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        wait_until(lambda: (self.folder / "munge.socket").exists(), 20)
        self._daemon("slurmctld", "-D")
        wait_until(lambda: self.run("scontrol", "ping").returncode == 0, 30)
        self.start_node()

    def start_node(self) -> None:
        """Start slurmd and wait until the controller gives it jobs."""
        self._daemon("slurmd", "-D")
        wait_until(
            self._takes_jobs, 180, lambda: f"{self._node_state()}\n{self._log('slurmd')}\n{self._log('slurmctld')}"
        )

    def _takes_jobs(self) -> bool:
        if self._daemons["slurmd"].poll() is not None:  # its port may still have been taken
            self._daemon("slurmd", "-D")
        state = self._node_state()
        if state.startswith(("down", "drain")):  # a job whose processes vanished with the node drains it
            self.run("scontrol", "update", f"NodeName={self.host}", "State=RESUME")
        return state in ("idle", "mixed", "allocated", "completing")

    def _node_state(self) -> str:
        return self.say("sinfo", "--noheader", "--format=%T")

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def kill_node(self) -> None:
        """Kill slurmd and, as on a machine that loses its power, all that its jobs have started."""
        self._end("slurmd", signal.SIGKILL)
        for pid in _descendants_named("slurmstepd"):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the daemons."""
        for name in ("slurmd", "slurmctld", "munged"):
            self._end(name, signal.SIGTERM)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of Slurm, told about this cluster."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)

    def say(self, *command: str) -> str:
        """Its output."""
        return self.run(*command).stdout.strip()

    def _daemon(self, name: str, *options: str) -> None:
        path = shutil.which(name, path=_path()) or name
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen([path, *options], env=self.env, stdout=log, stderr=log)

    def _end(self, name: str, how: signal.Signals) -> None:
        if process := self._daemons.pop(name, None):
            process.send_signal(how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def one_node_slurm(folder: Path, slots: int = 4) -> Iterator[OneNodeSlurm]:
    """Such a cluster, up while the context is entered."""
    cluster = OneNodeSlurm(folder, slots)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _descendants_named(name: str) -> list[int]:
    """Processes of this name and everything below them."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            parents[int(entry.name)] = int(tail.split()[1])
            names[int(entry.name)] = head.partition("(")[2]
    found = {pid for pid, called in names.items() if called.startswith(name)}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def wait_until(condition: Callable[[], bool], seconds: float, seen: Callable[[], str] = str) -> None:
    """Fail, with what was `seen` instead, where the condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to that within {seconds} s: {seen()}"
        time.sleep(0.1)


# ---- without a cluster ----------------------------------------------------------------------------------------------


class Here(SlurmExecutor):
    """The Slurm executor over submitit's `local` or `debug` executor; jobs are asked themselves how they are."""

    def __init__(self, cluster: str) -> None:
        super().__init__({"time": "5"})
        self.cluster = cluster
        self.submitted: list[list[Any]] = []

    def _submit_array(self, run_ids: list[str]) -> list[str]:
        with keeping_jobs() as jobs:
            ids = super()._submit_array(run_ids)
        self.submitted.append(jobs)
        return ids

    def _states(self, jobs: Iterable[str]) -> dict[str, str] | None:
        return {job.job_id: "FAILED" if job.done() else "RUNNING" for batch in self.submitted for job in batch}


@contextmanager
def keeping_jobs() -> Iterator[list[Any]]:
    """The jobs that submitit's executors make while the context is entered."""
    import submitit

    kept: list[Any] = []
    original = submitit.AutoExecutor.submit

    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(original(self, *args, **kwargs))
        return kept[-1]

    submitit.AutoExecutor.submit = submit
    try:
        yield kept
    finally:
        submitit.AutoExecutor.submit = original


def pretend_program(path: Path, script: str) -> None:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
