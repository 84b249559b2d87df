"""Imported by the fork server alone: what a run needs is imported once, and every run is forked from it."""

import signal

from lossbench.training.lifeline import die_with_parent

# Before the imports below, which take seconds: Ctrl-C is the sweep's affair, and the server must not outlive it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
die_with_parent()

import lossbench.training.ranks  # noqa: E402, F401
