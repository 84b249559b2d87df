"""`lossbench weights`: who gets how much weight under each mode, for lengths you name."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk
from lossbench.errors import UsageError
from lossbench.loss.lazy import np

if TYPE_CHECKING:
    from torch import Tensor

    from lossbench.loss.lazy import Array
    from lossbench.loss.modes import Mode

_DEFAULT_MODES = "grpo,dapo,dr_grpo,grpo@prompt-mean,grpo@length-power:0.5"
_BAR_COLUMNS = 40


def weights(
    lengths: Annotated[o.Text, o.option("Tokens of each completion: 10,100.")] = None,
    rewards: Annotated[o.Text, o.option("Reward of each completion: 1,0; adds the advantages.")] = None,
    modes: Annotated[str, o.option("Modes to compare, a comma list.")] = _DEFAULT_MODES,
    prompts: Annotated[o.Text, o.option("Prompt of each completion: 0,0,1,1. Default: one prompt.")] = None,
    horizon: Annotated[o.Number, o.option("Constant H in tokens. Default: the longest completion.")] = None,
    micro_batch_rows: Annotated[o.Count, o.option("Rows per micro-batch. Default: all in one.", min=1)] = None,
    match_scale: Annotated[bool, o.option("Rescale every mode's weights to add up to 1/H.")] = False,
    losses: Annotated[o.Text, o.option("Token losses, rows split by ';': '1,1;3,3'. Prints each mode's loss.")] = None,
    mask: Annotated[o.Text, o.option("0/1 for each token loss, in the same layout.")] = None,
    plot: Annotated[o.File, o.option("Write a figure (png, svg, pdf) here.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """Show how much weight each completion gets, per token and as a whole, and how weight grows with length.

    Example: lossbench weights --lengths 4,2 --rewards 1,0
    """
    from lossbench.loss.modes import parse_modes

    try:
        chosen = parse_modes(modes)
        if losses is not None:
            unused = {"--rewards": rewards, "--plot": plot, "--match-scale": match_scale}
            for name in (name for name, value in unused.items() if value):
                raise UsageError(f"{name} has no part in the loss of given token losses: leave it out with --losses")
            if lengths is not None:
                raise UsageError("--lengths and --losses exclude each other: with --losses lengths come from --mask")
            print_table(_losses(chosen, losses, mask, prompts, horizon, micro_batch_rows), None, format)
            return
        if lengths is None:
            raise UsageError("nothing to weigh: give --lengths 10,100 or --losses '1,1;3'")
        lengths_N = np.array(_numbers("--lengths", lengths))
        count = len(lengths_N)
        groups_N = _prompt_ids(prompts, count)
        rewards_N = None if rewards is None else _one_each("--rewards", _numbers("--rewards", rewards), count)
        height = max(float(lengths_N.max()), 1.0) if horizon is None else horizon
        weighed = _weigh(chosen, lengths_N, groups_N, height, micro_batch_rows, rewards_N, match_scale)
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_table(_rows(weighed, lengths_N, rewards_N, groups_N), None, format)
    weights_of = {name: weights_N for name, (weights_N, _) in weighed.items()}
    if plot is not None:
        _plot(plot, weights_of, lengths_N)
    elif format == "table":
        _bars(weights_of, lengths_N)


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(item) for item in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} '{text}': not a list of numbers; valid: 10,100") from error
    if option == "--lengths" and not all(value >= 0 and value == value // 1 for value in values):
        raise UsageError(f"{option} '{text}': lengths are whole numbers of tokens, 0 or more; valid: 10,100")
    if option == "--rewards" and not all(map(math.isfinite, values)):
        raise UsageError(f"{option} '{text}': holds what is no finite number; valid: 1,0")
    return values


def _one_each(option: str, values: list[Any], count: int) -> "Array":
    if len(values) != count:
        raise UsageError(f"{option} has {len(values)} values for {count} completions; valid: one each")
    return np.array(values)


def _prompt_ids(text: str | None, count: int) -> "Array":
    """Prompt ids may be any words; equal words are one prompt."""
    names = ["0"] * count if text is None else [item.strip() for item in text.split(",")]
    known = list(dict.fromkeys(names))
    return _one_each("--prompts", [known.index(name) for name in names], count)


def _weigh(
    modes: list["Mode"], lengths_N: "Array", groups_N: "Array", horizon: float, micro_batch_rows: int | None,
    rewards_N: "Array | None" = None, match_scale: bool = False,
) -> dict[str, tuple["Array", "Array | None"]]:  # fmt: skip
    """Weights and advantages (N,) of each mode, by its name. Raises UsageError for what a mode cannot do."""
    from lossbench.loss.advantages import advantages, parse_advantage
    from lossbench.loss.window import window_weights

    micro_N = np.arange(len(lengths_N)) // (micro_batch_rows or len(lengths_N))
    found: dict[str, tuple[Array, Array | None]] = {}
    for mode in modes:
        advantages_N = None
        if rewards_N is not None:
            chosen = parse_advantage(mode.advantage)
            if chosen.centre.needs_others and np.unique(groups_N, return_counts=True)[1].min() < 2:
                raise UsageError(
                    f"mode '{mode.name}' compares a completion with the others of its prompt, and a prompt has one "
                    "alone; valid: two or more completions a prompt, or an advantage such as none, group or batch"
                )
            advantages_N = advantages(rewards_N, groups_N, chosen, lengths_N)
        elif mode.aggregation.entry.needs_advantages:
            raise UsageError(f"the weights of mode '{mode.name}' depend on advantages: give --rewards 1,0")
        weights_N = window_weights(
            mode.aggregation, lengths_N, groups_N, horizon=horizon, micro_ids_N=micro_N, advantages_N=advantages_N,
            match_scale=match_scale,
        )  # fmt: skip
        found[mode.name] = weights_N, advantages_N
    return found


def _rows(
    weighed: dict[str, tuple["Array", "Array | None"]], lengths_N: "Array", rewards_N: "Array | None", groups_N: "Array"
) -> list[dict[str, Any]]:
    """One row per mode and completion; elasticity is that of the token weight to length, over the window's rows."""
    rows: list[dict[str, Any]] = []
    for name, (weights_N, advantages_N) in weighed.items():
        row_weights_N = weights_N * lengths_N
        total, elasticity = float(row_weights_N.sum()) or 1.0, _elasticity(weights_N, lengths_N)
        for i, (length, weight, row_weight) in enumerate(zip(lengths_N, weights_N, row_weights_N, strict=True)):
            row: dict[str, Any] = {
                "mode": name, "completion": i, "prompt": int(groups_N[i]), "length_tokens": int(length),
                "token_weight": float(weight), "row_weight": float(row_weight), "share": float(row_weight) / total,
                "elasticity": elasticity,
            }  # fmt: skip
            if rewards_N is not None and advantages_N is not None:
                advantage = float(advantages_N[i])
                row |= {"reward": float(rewards_N[i]), "advantage": advantage}
                row["pull_per_token"] = row["token_weight"] * advantage
            rows.append(row)
    return rows


def _elasticity(weights_N: "Array", lengths_N: "Array") -> float | None:
    """Least-squares slope of log token weight on log length over the live rows; None where lengths do not differ."""
    live = (lengths_N > 0) & (weights_N > 0)
    if len(np.unique(lengths_N[live])) < 2:
        return None
    slope = np.polyfit(np.log(lengths_N[live]), np.log(weights_N[live]), 1)[0]
    return round(float(slope), 12) + 0.0  # no minus before a zero


def _losses(
    modes: list["Mode"], losses: str, mask: str | None, prompts: str | None, horizon: float | None, rows: int | None
) -> list[dict[str, Any]]:
    """The scalar loss of each mode for given token losses; lengths come from the mask."""
    import torch

    from lossbench.loss.token_loss import check_mask, weighted_loss

    loss_BT, filled_BT = _matrix("--losses", losses)
    mask_BT, given_BT = (filled_BT, filled_BT) if mask is None else _matrix("--mask", mask)
    if not torch.equal(given_BT, filled_BT):
        raise UsageError("--mask has another layout than --losses; valid: one 0 or 1 per token loss")
    mask_BT = check_mask(mask_BT)
    lengths_B = mask_BT.sum(-1)
    height = float(loss_BT.shape[1]) if horizon is None else horizon
    weighed = _weigh(modes, lengths_B.numpy(), _prompt_ids(prompts, len(loss_BT)), height, rows)
    live = int(lengths_B.sum())
    return [
        {"mode": name, "loss": weighted_loss(loss_BT, mask_BT, weights_B).item(), "live_tokens": live}
        for name, (weights_B, _) in weighed.items()
    ]


def _matrix(option: str, text: str) -> tuple["Tensor", "Tensor"]:
    """Rows split by ';' as a matrix padded with 0, and where it was given."""
    import torch

    rows = [torch.tensor(_numbers(option, row), dtype=torch.float64) for row in text.split(";")]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad([torch.ones_like(row).bool() for row in rows], batch_first=True)


def _bars(weights_of: dict[str, "Array"], lengths_N: "Array") -> None:
    """Bars of token weight within each mode, for people, beside the data."""
    for name, weights_N in weights_of.items():
        talk(f"{name}: weight of one token")
        top = float(weights_N.max()) or 1.0
        for length, weight in zip(lengths_N, weights_N, strict=True):
            talk(f"  {int(length):>6} tokens  {'█' * round(_BAR_COLUMNS * weight / top)} {weight:.4g}")


def _plot(path: Path, weights_of: dict[str, "Array"], lengths_N: "Array") -> None:
    import matplotlib
    import pandas as pd

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot '{path}': unknown kind of figure; valid: .png, .svg, .pdf")
    matplotlib.use("Agg")
    row_weights = {name: weights_N * lengths_N for name, weights_N in weights_of.items()}
    shares = {name: row_weights_N / (row_weights_N.sum() or 1.0) for name, row_weights_N in row_weights.items()}
    frame = pd.DataFrame(shares, index=[f"{int(length)} tokens" for length in lengths_N])
    axes = frame.plot.bar(figsize=(7, 4), width=0.8, rot=0, ylabel="share of the total weight")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    axes.get_figure().savefig(path, dpi=150, bbox_inches="tight")
    talk(f"wrote {path}")
