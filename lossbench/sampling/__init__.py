"""Sampling completions: decoders, random streams, batches of like length."""
