"""`lossbench ingest`: other trainers' logs into the schema, so that `report` and `compare` work on them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lossbench.ingest.fields import CountTokens

_COLUMNS = ["run", "steps", "rollouts", "evals", "length_unit", "damaged"]


def ingest(
    path: Annotated[Path, Argument(help="A log file, a run's folder, or a folder of runs.")],
    kind: o.KindOption = "auto",
    columns: o.MapOption = None,
    tokenizer: Annotated[
        o.Text, o.option("Folder or hub id of the tokenizer that counts lengths; without it: characters.")
    ] = None,
    mode: Annotated[
        o.Texts, o.option("Loss mode; NAME=MODE (or MODE-s<seed>) for what the log calls NAME; NAME= leaves it out.")
    ] = None,
    run: Annotated[o.Texts, o.option("Name of a run to read; repeatable. Default: all.")] = None,
    seed: Annotated[o.Count, o.option("Seed of the run.")] = None,
    num_generations: Annotated[o.Count, o.option("Completions per prompt and step.", min=1)] = None,
    reward_weight: Annotated[o.Texts, o.option("NAME=WEIGHT of a reward function, for their sum; repeatable.")] = None,
    forced_tokens: Annotated[int, o.option("Tokens at the head of each completion that were not sampled.", min=0)] = 0,
    correct_above: o.CorrectAboveOption = None,
    text: Annotated[bool, o.option("Keep prompts and completions.", "--text/--no-text")] = True,
    out: Annotated[o.File, o.output("Folder; default results/ingested-<name>.")] = None,
    format: o.FormatOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Read another trainer's logs into lossbench's tables.

    Runs are added to what --out already holds, one call per run or a folder of runs named <mode>-s<seed>. Without
    --tokenizer lengths are characters, and no claim about tokens can be tested.

    Example: lossbench ingest runs/a --mode grpo --seed 0 --tokenizer Qwen/Qwen2.5-0.5B --out results/mine
    """
    from lossbench.ingest.base import Request
    from lossbench.ingest.fields import Reading
    from lossbench.ingest.sweep_folder import ingest as read_log

    plain = [given for given in mode or () if "=" not in given]
    if len(plain) > 1:
        raise UsageError(f"--mode {plain[0]} and --mode {plain[1]}: of several runs, --mode NAME=MODE says each one's")
    named = o.pairs("--mode", [given for given in mode or () if "=" in given])
    weights = {name: _weight(name, value) for name, value in o.pairs("--reward-weight", reward_weight).items()}
    request = Request(
        o.mapping(columns), next(iter(plain), None), seed, num_generations, named, run or (), weights, forced_tokens
    )
    count_tokens, eos = _token_counter(tokenizer) if tokenizer else (None, None)
    folder = out or Path("results") / f"ingested-{path.resolve().stem}"
    try:
        result = read_log(path, folder, kind, request, Reading(count_tokens, correct_above, text, eos))
    except OSError as error:  # no permission, no room on the disk
        raise UsageError(f"'{path}' cannot be read into '{folder}': {error}") from None
    if not quiet:
        talk(f"{result.format} log, {len(result.runs)} runs -> {result.out}")
        for run_id, state in result.runs.items():
            talk(_columns_read(run_id, state))
        for note, count in Counter(note for state in result.runs.values() for note in state["notes"]).items():
            talk(f"note: {note}" + (f" ({count} runs)" if count > 1 else ""))
    if result.damage.count:
        examples = "; ".join(result.damage.examples)
        talk(f"warning: {result.damage.count} damaged lines or files left out, such as {examples}")
    rows = [{"run": run_id, "steps": state["steps_done"], **state} for run_id, state in result.runs.items()]
    print_table(rows, _COLUMNS, format)


def _columns_read(run_id: str, state: "Mapping[str, Any]") -> str:
    """Columns by the fields that they became, and the columns not used."""
    first = ("reward", "reward_mean", "length", "length_mean")
    columns = sorted(state["columns"].items(), key=lambda pair: pair[0] not in first)
    line = f"{run_id} ({state['name']}): " + ", ".join(f"{ours} ← {column}" for ours, column in columns)
    unused, alike = state["not_used"], state["look_alikes"]
    if unused:
        line += f"; not used: {', '.join(unused[:20])}" + f" and {len(unused) - 20} more" * (len(unused) > 20)
    return line + f" (perhaps {', '.join(alike[:4])})" * bool(alike)


def _weight(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--reward-weight {name}={value}: '{value}' is no number") from None


def _token_counter(reference: str) -> "tuple[CountTokens, str | None]":
    """Counter of the tokens of texts, special tokens left out, and the text of the EOS. Raises UsageError where the
    tokenizer is not available."""
    from lossbench.policies.hub import load_tokenizer

    tokenizer = load_tokenizer(reference)

    def count(texts):
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]] if texts else []

    return count, tokenizer.eos_token
