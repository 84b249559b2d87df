"""`lossbench weights`: who gets how much weight under each mode, for lengths you name."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._shared import Format, FormatOption, print_table, talk
from lossbench.errors import UsageError
from lossbench.loss.lazy import np

if TYPE_CHECKING:
    from torch import Tensor

    from lossbench.loss.lazy import Array
    from lossbench.loss.modes import Mode

_DEFAULT_MODES = "grpo,dapo,dr_grpo,grpo@prompt-mean,grpo@length-power:0.5"


def weights(
    lengths: Annotated[str | None, typer.Option(help="Tokens of each completion: 10,100.")] = None,
    rewards: Annotated[str | None, typer.Option(help="Reward of each completion: 1,0; adds the advantages.")] = None,
    modes: Annotated[str, typer.Option(help="Modes to compare, a comma list.")] = _DEFAULT_MODES,
    prompts: Annotated[
        str | None, typer.Option(help="Prompt of each completion: 0,0,1,1. Default: one prompt.")
    ] = None,
    horizon: Annotated[
        float | None, typer.Option(help="Constant H in tokens. Default: the longest completion.")
    ] = None,
    micro_batch_rows: Annotated[int | None, typer.Option(help="Rows per micro-batch. Default: all in one.")] = None,
    match_scale: Annotated[bool, typer.Option(help="Rescale every mode's weights to add up to 1/H.")] = False,
    losses: Annotated[
        str | None, typer.Option(help="Token losses, rows split by ';': '1,1,1,1;3,3'. Prints each mode's loss.")
    ] = None,
    mask: Annotated[str | None, typer.Option(help="0/1 for each token loss, in the same layout.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure (png, svg, pdf) here.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show how much weight each completion gets, per token and as a whole, and how weight grows with length.

    Example: lossbench weights --lengths 4,2 --rewards 1,0
    """
    from lossbench.loss.modes import parse_modes

    try:
        chosen = parse_modes(modes)
        if losses is not None:
            unused = {"--rewards": rewards, "--plot": plot, "--match-scale": match_scale}
            if given := [name for name, value in unused.items() if value]:
                raise UsageError(
                    f"{given[0]} has no part in the loss of given token losses: leave it out with --losses"
                )
            print_table(_losses(chosen, losses, mask, lengths, prompts, horizon, micro_batch_rows), None, format)
            return
        if lengths is None:
            raise UsageError("nothing to weigh: give --lengths 10,100 or --losses '1,1;3'")
        lengths_N = np.array(_numbers("--lengths", lengths, whole=True))
        group_ids_N = _prompt_ids(prompts, len(lengths_N))
        rewards_N = _rewards(rewards, len(lengths_N))
        height = _horizon(horizon, lengths_N)
        weighed = _weigh(chosen, lengths_N, rewards_N, group_ids_N, height, micro_batch_rows, match_scale)
        rows = _rows(weighed, lengths_N, rewards_N, group_ids_N)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_table(rows, None, format)
    weights_of = {name: weights_N for name, (weights_N, _) in weighed.items()}
    if plot is not None:
        _plot(plot, weights_of, lengths_N)
    elif format == Format.table:
        _bars(weights_of, lengths_N)


def _numbers(option: str, text: str, *, whole: bool = False) -> list[float]:
    try:
        values = [float(item) for item in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} '{text}': not a list of numbers; valid: 10,100") from error
    if whole and not all(value >= 0 and value == value // 1 for value in values):
        raise UsageError(f"{option} '{text}': lengths are whole numbers of tokens, 0 or more; valid: 10,100")
    return values


def _rewards(text: str | None, count: int) -> "Array | None":
    if text is None:
        return None
    values = _numbers("--rewards", text)
    if not all(math.isfinite(value) for value in values):
        raise UsageError(f"--rewards '{text}': holds what is no finite number; valid: 1,0")
    if len(values) != count:
        raise UsageError(f"--rewards has {len(values)} values for {count} completions; valid: one each")
    return np.array(values)


def _prompt_ids(text: str | None, count: int) -> "Array":
    """Prompt ids may be any words; equal words are one prompt."""
    names = ["0"] * count if text is None else [item.strip() for item in text.split(",")]
    if len(names) != count:
        raise UsageError(f"--prompts has {len(names)} values for {count} completions; valid: one each")
    known = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names])


def _horizon(horizon: float | None, lengths_N: "Array") -> float:
    return max(float(lengths_N.max()), 1.0) if horizon is None else horizon


def _weigh(
    modes: list["Mode"],
    lengths_N: "Array",
    rewards_N: "Array | None",
    groups_N: "Array",
    horizon: float,
    micro_batch_rows: int | None,
    match_scale: bool = False,
) -> dict[str, tuple["Array", "Array | None"]]:
    """Weights and advantages (N,) of each mode, by its name. Raises UsageError for what a mode cannot do."""
    from lossbench.loss.advantages import advantages, parse_advantage
    from lossbench.loss.window import window_weights

    if micro_batch_rows is not None and micro_batch_rows < 1:
        raise UsageError(f"--micro-batch-rows is {micro_batch_rows}; valid: 1 or more")
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
        micro_N = None if micro_batch_rows is None else np.arange(len(lengths_N)) // micro_batch_rows
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
        total = float((weights_N * lengths_N).sum()) or 1.0
        elasticity = _elasticity(weights_N, lengths_N)
        for i, (length, weight) in enumerate(zip(lengths_N.tolist(), weights_N.tolist(), strict=True)):
            row: dict[str, Any] = {
                "mode": name, "completion": i, "prompt": int(groups_N[i]), "length_tokens": int(length),
                "token_weight": weight, "row_weight": weight * length, "share": weight * length / total,
                "elasticity": elasticity,
            }  # fmt: skip
            if rewards_N is not None and advantages_N is not None:
                advantage = float(advantages_N[i])
                row |= {"reward": float(rewards_N[i]), "advantage": advantage, "pull_per_token": weight * advantage}
            rows.append(row)
    return rows


def _elasticity(weights_N: "Array", lengths_N: "Array") -> float | None:
    """Least-squares slope of log token weight on log length over the live rows; None where lengths do not differ."""
    live = (lengths_N > 0) & (weights_N > 0)
    if not live.any():
        return None
    x, y = np.log(lengths_N[live]), np.log(weights_N[live])
    x, y = x - x.mean(), y - y.mean()
    spread = float((x * x).sum())
    return round(float((x * y).sum()) / spread, 12) if spread > 0 else None


def _losses(
    modes: list["Mode"],
    losses: str,
    mask: str | None,
    lengths: str | None,
    prompts: str | None,
    horizon: float | None,
    rows: int | None,
) -> list[dict[str, Any]]:
    """The scalar loss of each mode for given token losses; lengths come from the mask."""
    import torch

    from lossbench.loss.token_loss import check_mask, weighted_loss

    if lengths is not None:
        raise UsageError("--lengths and --losses exclude each other: with --losses the lengths come from --mask")
    loss_BT, filled_BT = _matrix("--losses", losses)
    if mask is None:
        mask_BT = filled_BT
    else:
        values_BT, given_BT = _matrix("--mask", mask)
        if not torch.equal(given_BT, filled_BT):
            raise UsageError("--mask has another layout than --losses; valid: one 0 or 1 per token loss")
        mask_BT = check_mask(values_BT)
    lengths_B = mask_BT.sum(-1)
    height = float(loss_BT.shape[1]) if horizon is None else horizon
    weighed = _weigh(modes, lengths_B.numpy(), None, _prompt_ids(prompts, len(loss_BT)), height, rows)
    return [
        {
            "mode": mode.name,
            "loss": weighted_loss(loss_BT, mask_BT, weighed[mode.name][0]).item(),
            "live_tokens": int(lengths_B.sum()),
        }
        for mode in modes
    ]


def _matrix(option: str, text: str) -> tuple["Tensor", "Tensor"]:
    """Rows split by ';' as a matrix padded with 0, and where it was given."""
    import torch

    rows = [torch.tensor(_numbers(option, row), dtype=torch.float64) for row in text.split(";")]
    given = [torch.ones(len(row), dtype=torch.bool) for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(given, batch_first=True)


def _bars(weights_of: dict[str, "Array"], lengths_N: "Array") -> None:
    """Bars of token weight within each mode, for people, beside the data."""
    width = 40
    for name, weights_N in weights_of.items():
        talk(f"{name}: weight of one token")
        top = float(weights_N.max()) or 1.0
        for length, weight in zip(lengths_N.tolist(), weights_N.tolist(), strict=True):
            talk(f"  {int(length):>6} tokens  {'█' * round(width * weight / top)} {weight:.4g}")


def _plot(path: Path, weights_of: dict[str, "Array"], lengths_N: "Array") -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot '{path}': unknown kind of figure; valid: .png, .svg, .pdf")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    size = 0.8 / len(weights_of)
    for place, (name, weights_N) in enumerate(weights_of.items()):
        share_N = weights_N * lengths_N
        share_N = share_N / (share_N.sum() or 1.0)
        positions = [row + size * (place - (len(weights_of) - 1) / 2) for row in range(len(lengths_N))]
        axes.bar(positions, share_N.tolist(), width=size, label=name)
    axes.set_xticks(range(len(lengths_N)), [f"{int(length)} tokens" for length in lengths_N.tolist()])
    axes.set_ylabel("share of the total weight")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    talk(f"wrote {path}")
