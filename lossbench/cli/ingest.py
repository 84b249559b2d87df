"""`lossbench ingest`: other trainers' logs into the schema, so that `report` and `compare` work on them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossbench.cli import _options as o
from lossbench.cli._shared import OUTPUT, Format, FormatOption, QuietOption, print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.ingest.fields import CountTokens

_COLUMNS = ["run", "steps", "rollouts", "evals", "length_unit", "damaged"]


def ingest(
    path: Annotated[Path, typer.Argument(help="A log file, a run's folder, or a folder of runs.")],
    kind: Annotated[str, typer.Option("--as", help="trl, verl, swift, csv, or auto.")] = "auto",
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", help="FIELD=COLUMN of the log, such as length=response_len; repeatable."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer that counts lengths; without it: characters.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Loss mode that trained the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    num_generations: Annotated[int | None, typer.Option(min=1, help="Completions per prompt and step.")] = None,
    correct_above: Annotated[
        float | None,
        typer.Option(
            help="A completion counts as correct where its verdict (a column such as acc) is a number above this, or "
            "without such a column its reward is; a verdict of true or false stands."
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text/--no-text", help="Keep prompts and completions.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder; default results/ingested-<name>.", rich_help_panel=OUTPUT)
    ] = None,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Read another trainer's logs into lossbench's tables.

    Runs are added to what --out already holds, one call per run or a folder of runs named <mode>-s<seed>. Without
    --tokenizer lengths are characters, and no claim about tokens can be tested.

    Example: lossbench ingest runs/a --mode grpo --seed 0 --tokenizer Qwen/Qwen2.5-0.5B --out results/mine
    """
    from lossbench.ingest.base import Request
    from lossbench.ingest.fields import Reading
    from lossbench.ingest.sweep_folder import ingest as read_log

    request = Request(o.mapping(columns or []), mode, seed, num_generations)
    count_tokens = _token_counter(tokenizer) if tokenizer else None
    folder = out or Path("results") / f"ingested-{path.resolve().stem}"
    try:
        result = read_log(path, folder, kind, request, Reading(count_tokens, correct_above, text))
    except OSError as error:  # no permission, no room on the disk
        raise UsageError(f"'{path}' cannot be read into '{folder}': {error}") from None
    if not quiet:
        talk(f"{result.format} log, {len(result.runs)} runs -> {result.out}")
        for note, count in Counter(note for run in result.runs.values() for note in run["notes"]).items():
            talk(f"note: {note}" + (f" ({count} runs)" if count > 1 else ""))
    if result.damage.count:
        examples = "; ".join(result.damage.examples)
        talk(f"warning: {result.damage.count} damaged lines or files left out, such as {examples}")
    rows = [{"run": run_id, "steps": run["steps_done"], **run} for run_id, run in result.runs.items()]
    print_table(rows, _COLUMNS, format)


def _token_counter(reference: str) -> "CountTokens":
    """Counts the tokens of texts, special tokens left out. Raises UsageError where the tokenizer cannot be had."""
    from lossbench.policies.hub import load_tokenizer

    tokenizer = load_tokenizer(reference)

    def count(texts):
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]] if texts else []

    return count
