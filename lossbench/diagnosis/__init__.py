"""Diagnosis of runs and losses made elsewhere: which mode a loss is, what it did to length, and what to change."""
