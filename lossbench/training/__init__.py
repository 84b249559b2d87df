"""One run: the trainer under a mode, its sampler, its record."""
