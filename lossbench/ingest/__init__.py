"""Other trainers' logs into lossbench's schema. A new format is a file with a `Format`, and a row in `FORMATS`."""

from lossbench.ingest.base import Format
from lossbench.ingest.formats import console, nested, step_lists, swift, tabular, tensorboard, trl, verl, wandb_table
from lossbench.registry import Registry

FORMATS: Registry[Format] = Registry(
    "format",
    [
        *(trl.FORMAT, verl.FORMAT, swift.FORMAT, wandb_table.FORMAT, tensorboard.FORMAT),
        *(console.VERL, console.TRL, console.SLIME, step_lists.FORMAT, nested.FORMAT, tabular.FORMAT),
    ],
)
