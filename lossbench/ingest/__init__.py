"""Other trainers' logs into lossbench's schema. A new format is a file with a `Format`, and a row in `FORMATS`."""

from lossbench.ingest.base import Format
from lossbench.ingest.formats import swift, tabular, trl, verl

FORMATS: dict[str, Format] = {
    "trl": trl.FORMAT,
    "verl": verl.FORMAT,
    "swift": swift.FORMAT,
    "csv": tabular.FORMAT,
}
