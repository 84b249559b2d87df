"""Sampling completions: decoders, random streams, batches of similar length."""
