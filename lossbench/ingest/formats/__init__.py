"""One file per log format; `FORMATS` in `lossbench.ingest` lists them."""
