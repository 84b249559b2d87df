"""`lossbench modes`, `weights` and `doctor` as a person meets them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.loss.equivalents import FRAMEWORKS, equivalents
from lossbench.loss.modes import PRESETS, folder_name, grid_modes, parse_mode, parse_modes


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def _mistake(*words: str) -> str:
    """The one line that a user's mistake gives."""
    result = _run(*words)
    assert isinstance(result.exception, UsageError) and "\n" not in str(result.exception)
    return str(result.exception)


def test_modes_lists_every_preset_with_its_triple() -> None:
    rows = json.loads(_run("modes", "--format", "json").stdout)
    by_name = {row["mode"]: row for row in rows}
    assert set(PRESETS) <= set(by_name)
    assert by_name["dr_grpo"]["triple"] == "grpo@seq-mean-token-sum-norm/none"
    assert by_name["grpo"]["length_exponent"] == 0.0 and by_name["dapo"]["length_exponent"] == 1.0
    assert (
        "TRL dapo, verl token-mean, ms-swift dapo, OpenRLHF token-mean, SkyRL token_mean, slime"
        in by_name["dapo"]["equals"]
    )
    assert by_name["grpo@prompt-mean/group"]["equals"] == "SkyRL prompt_mean"
    assert by_name["grpo@delta-l:0.5/group"]["equals"] is None


def test_modes_name_gives_settings_to_paste() -> None:
    page = _run("modes", "dr_grpo").stdout
    for words in (
        'loss_type="dr_grpo"',
        'scale_rewards="none"',
        "loss_scale_factor=H",
        "--loss_type dr_grpo",
        "1/(N·H)",
    ):
        assert words in page
    assert "not possible" in _run("modes", "grpo@prompt-mean").stdout


def test_every_mode_of_the_list_has_its_page() -> None:
    for row in json.loads(_run("modes", "--format", "json").stdout):
        result = _run("modes", row["mode"])
        assert result.exit_code == 0 and f"= {row['triple']}" in result.stdout, result


def test_settings_for_one_framework_are_code_that_runs(tmp_path: Path) -> None:
    from trl import GRPOConfig

    place = f'    output_dir="{tmp_path}", use_cpu=True, bf16=False,\n)'
    for name in ("dr_grpo", "cispo", "vespo", "luspo"):
        code = _run("modes", name, "--for", "trl", "--cap", "1024").stdout
        found: dict = {}
        exec(
            code.strip().removesuffix(")").replace("GRPOConfig(", "config = GRPOConfig(", 1) + place,
            {"GRPOConfig": GRPOConfig},
            found,
        )
        assert found["config"].scale_rewards == parse_mode(name).scale_rewards
    assert "max_completion_length=1024," in _run("modes", "dr_grpo", "--for", "trl", "--cap", "1024").stdout
    assert "loss_scale_factor=512" in _run("modes", "dr_grpo", "--for", "verl", "--cap", "512").stdout
    assert "--max_completion_length 64" in _run("modes", "dr_grpo", "--for", "swift", "--cap", "64").stdout
    assert "max_seq_len=64" in _run("modes", "dr_grpo", "--for", "skyrl", "--cap", "64").stdout
    assert "exactly" not in _run("modes", "dapo", "--for", "slime").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("modes", "dr_grpo", "--for", "trl"), ("--cap 1024",)),
        (("modes", "dr_grpo", "--for", "tlr"), ("unknown framework 'tlr'", "'trl'")),
        (("modes", "--for", "trl"), ("name a mode",)),
        (("modes", "grpo@prompt-mean", "--for", "trl"), ("no grpo@prompt-mean", "nearest:")),
        (("modes", "dr_grpo", "--for", "trl", "--cap", "0"), ("--cap", "1 or more")),
        (("weights", "--lengths", "4,2", "--modes", "grpo@balanced"), ("grpo@balanced/group", "--rewards")),
        (
            ("weights", "--lengths", "4,2", "--rewards", "1,0", "--prompts", "0,1", "--modes", "grpo@token-mean/loo"),
            ("others of its prompt", "valid:"),
        ),
        (("weights", "--lengths", "300,5", "--modes", "grpo@length-power:-1000"), ("5 to 300", "range of floats")),
        (
            ("weights", "--lengths", "3,5", "--rewards", "-1,1", "--modes", "grpo@token-mean/mean-scaled"),
            ("0 or more",),
        ),
    ],
)
def test_requests_that_no_mode_can_meet_are_one_line(words: tuple[str, ...], said: tuple[str, ...]) -> None:
    message = _mistake(*words)
    assert all(part in message for part in said), message


def test_modes_shows_who_gets_the_weight() -> None:
    # two completions of one prompt: 1/(2*10) and 1/(2*100) per token
    page = _run("modes", "grpo").stdout
    assert "per token 0.05 " in page and "per token 0.005 " in page


@pytest.mark.parametrize("name", [*PRESETS, "gmpo@seq-mean-token-mean", "grpo@token-sum/batch", "sapo@delta-l:0.5"])
def test_every_mode_says_how_or_why_not(name: str) -> None:
    found = equivalents(parse_mode(name))
    assert [entry.framework for entry in found] == list(FRAMEWORKS)
    for entry in found:
        assert bool(entry.settings) == entry.possible
        assert entry.possible or entry.conditions


def test_trl_settings_are_accepted_by_the_installed_trl(tmp_path: Path) -> None:
    from trl import GRPOConfig

    for name in PRESETS:
        settings = equivalents(parse_mode(name))[0].settings
        text = "\n".join(settings).replace("=H,", "=32,")
        rest = f"    output_dir={str(tmp_path)!r}, use_cpu=True, bf16=False,\n)"
        config = eval(text.removesuffix(")") + rest, {"GRPOConfig": GRPOConfig})
        assert config.scale_rewards == parse_mode(name).scale_rewards


def test_weights_of_the_readme_s_example() -> None:
    rows = json.loads(
        _run("weights", "--lengths", "4,2", "--rewards", "1,0", "--modes", "grpo,dapo", "-f", "json").stdout
    )
    # grpo: 1/(2*4) and 1/(2*2); dapo: 1/6 both
    assert [row["token_weight"] for row in rows] == pytest.approx([1 / 8, 1 / 4, 1 / 6, 1 / 6])
    assert [row["elasticity"] for row in rows] == pytest.approx([-1, -1, 0, 0])
    assert [row["share"] for row in rows] == pytest.approx([1 / 2, 1 / 2, 2 / 3, 1 / 3])
    assert rows[0]["advantage"] == pytest.approx(-rows[1]["advantage"])


def test_weights_by_prompt_and_by_micro_batch() -> None:
    words = (
        "--lengths",
        "1,3,1,1",
        "--prompts",
        "a,a,b,b",
        "--micro-batch-rows",
        "2",
        "--modes",
        "grpo@prompt-mean,bnpo",
    )
    rows = json.loads(_run("weights", *words, "--format", "json").stdout)
    # two prompts of 4 and 2 tokens, two micro-batches of the same: 1/(2*4), 1/(2*2)
    assert [row["token_weight"] for row in rows] == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 4] * 2)


def test_losses_reproduce_the_scalars_and_ignore_masked_cells() -> None:
    words = ("--losses", "1,1,1,1;3,3,99,nan", "--mask", "1,1,1,1;1,1,0,0", "--horizon", "10", "--format", "json")
    rows = json.loads(_run("weights", *words, "--modes", "dapo,grpo@seq-mean-token-sum,grpo,dr_grpo").stdout)
    # 10/6, 10/2, (4/4 + 6/2)/2, 10/(2*10)
    assert [row["loss"] for row in rows] == pytest.approx([10 / 6, 5, 2, 0.5])


def test_weights_draws_a_figure(tmp_path: Path) -> None:
    figure = tmp_path / "new" / "weights.png"
    result = _run("weights", "--lengths", "4,2", "--plot", str(figure), "--format", "csv")
    assert result.exit_code == 0 and figure.read_bytes().startswith(b"\x89PNG")
    assert "█" in _run("weights", "--lengths", "4,2").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("modes", "gspa"), ("gspa", "did you mean 'gspo'", "valid:")),
        (("modes", "dapo@token-mean"), ("preset", "grpo@token-mean/group")),
        (("weights",), ("--lengths",)),
        (("weights", "--lengths", "4,x"), ("--lengths", "4,x")),
        (("weights", "--lengths", "4,-2"), ("--lengths", "whole numbers")),
        (("weights", "--lengths", "4,nan"), ("--lengths", "whole numbers")),
        (("weights", "--lengths", "4,2", "--rewards", "1"), ("--rewards", "1 values for 2")),
        (("weights", "--lengths", "4,2", "--horizon", "0"), ("horizon", "above 0")),
        (("weights", "--lengths", "4,2", "--modes", "grpo,grpo"), ("same mode", "grpo")),
        (("weights", "--lengths", "4,2", "--modes", "grpo,"), ("empty item",)),
        (("weights", "--lengths", "4,2", "--plot", "x.gif"), ("--plot", ".png")),
        (("weights", "--losses", "1,2", "--mask", "1"), ("--mask", "layout")),
        (("weights", "--losses", "1,2", "--mask", "1,0.5"), ("mask", "0.5")),
        (("weights", "--losses", "1", "--lengths", "1"), ("exclude",)),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: tuple[str, ...]) -> None:
    message = _mistake(*words)
    assert all(part in message for part in said), message


def test_doctor_finds_this_trl_sound() -> None:
    result = _run("doctor", "--format", "json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0 and len(rows) == 8 and {row["verdict"] for row in rows} == {"ok"}
    assert "threads" in result.stderr and "trl 1.16" in result.stderr


def test_doctor_exits_1_on_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOTrainer

    original = GRPOTrainer._compute_loss
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, *rest: 1.001 * original(self, *rest))
    assert _run("doctor").exit_code == 1
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model: None)
    result = _run("doctor")
    assert result.exit_code == 1 and "changed: TypeError" in result.stdout


@pytest.mark.parametrize(
    ("spelling", "stored"),
    [
        ("grpo@token-mean", "dapo"),
        ("grpo@seq-mean-token-sum-norm/none", "dr_grpo"),
        ("grpo@seq-mean-token-sum-norm", "grpo@seq-mean-token-sum-norm/group"),
        ("grpo@length-power:.50", "grpo@length-power:0.5/group"),
        ("gspo@seq-mean-token-sum/group", "luspo"),
        (" dapo ", "dapo"),
    ],
)
def test_stored_names(spelling: str, stored: str) -> None:
    mode = parse_mode(spelling)
    assert mode.name == stored
    assert parse_mode(mode.triple) == mode == parse_mode(mode.name)


def test_two_spellings_of_one_mode_are_a_duplicate() -> None:
    with pytest.raises(ValueError, match="'dapo' and 'grpo@token-mean/group' are the same mode"):
        parse_modes("dapo,grpo@token-mean/group")


def test_grids() -> None:
    assert [mode.name for mode in grid_modes(["grpo", "dr_grpo"])] == ["grpo", "dr_grpo"]
    product = grid_modes(["grpo", "sapo"], ["token-mean", "seq-mean-token-mean"], ["group", "none"])
    assert len(product) == 8 and product[0].name == "dapo" and product[-1].name == "sapo@seq-mean-token-mean/none"
    assert [mode.name for mode in grid_modes(None, ["token-mean"])] == ["dapo"]
    assert [mode.scale_rewards for mode in grid_modes(["dr_grpo"], None, ["none", "batch"])] == ["none", "batch"]
    with pytest.raises(ValueError, match="write 'grpo@token-mean/group'"):
        grid_modes(["dapo"], ["token-mean"])


def test_a_cap_below_one_is_warned_of(tmp_path: Path) -> None:
    # TRL falls back to epsilon = 0.2 for this cap, which scales every on-policy gradient by 0.2
    words = ("sweep", "--modes", "cispo,dapo", "--steps", "2", "--dry-run", "--out", str(tmp_path / "sweep"))
    assert "cispo_cap" not in _run(*words).stderr
    result = _run(*words, "--set", "cispo_cap=0.2")
    assert result.exit_code == 0 and "cispo_cap = 0.2 is below 1" in result.stderr
    assert "dapo is 5 times cispo" in result.stderr


def test_folder_names_are_plain() -> None:
    assert folder_name("grpo@length-power:0.5/none") == "grpo.length-power-0.5-none"
