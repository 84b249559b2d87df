"""Claims as data, and the verdict on each from a sweep's metrics."""
