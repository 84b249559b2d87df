"""From a sweep's folder to files that a person reads: one HTML page, Markdown, figures, and the numbers beside them."""
