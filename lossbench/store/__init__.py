"""Files: the schema of the tables, atomic writes, tolerant reads, and readers of other trainers' logs."""
