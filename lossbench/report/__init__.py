"""From a sweep's folder to files for people: one HTML page, Markdown, figures, and the numbers beside them."""
