"""From a sweep's tables to metrics per run, paired comparisons and verdicts on pre-stated claims."""
