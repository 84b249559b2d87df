"""Other trainers' logs into lossbench's schema. A new format is a file with a `Format`, and a row in `FORMATS`."""

from lossbench.ingest.base import Format
from lossbench.ingest.formats import console, nested, step_lists, swift, tabular, tensorboard, trl, verl, wandb_table

FORMATS: dict[str, Format] = {
    "trl": trl.FORMAT,
    "verl": verl.FORMAT,
    "swift": swift.FORMAT,
    "wandb-table": wandb_table.FORMAT,
    "tensorboard": tensorboard.FORMAT,
    "verl-console": console.VERL,
    "trl-console": console.TRL,
    "slime-console": console.SLIME,
    "step-lists": step_lists.FORMAT,
    "nested": nested.FORMAT,
    "csv": tabular.FORMAT,
}
