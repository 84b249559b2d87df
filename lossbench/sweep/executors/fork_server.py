"""Imported by the fork server alone: what a run needs is imported once, and every run is forked from it."""

from lossbench.processes import die_with_parent

# Before the imports below, which take seconds: the server must not outlive its sweep even then.
die_with_parent()

import lossbench.sweep.executors.worker  # noqa: E402
import lossbench.training.run  # noqa: E402, F401
