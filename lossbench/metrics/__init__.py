"""Metrics: one number per run and per step, and paired comparisons of them."""
