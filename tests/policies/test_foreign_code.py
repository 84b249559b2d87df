"""No model's own code runs unless it is trusted, and no terminal is asked, whichever way a model comes in."""

import json
from pathlib import Path

import pytest
from support.architectures import saved_policy
from transformers import AutoModelForCausalLM, AutoTokenizer

from lossbench.errors import UsageError
from lossbench.policies import gguf, load
from lossbench.policies.hub import load_pretrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose config names code of its own, which would leave a file."""
    folder = Path(saved_policy(tmp_path, "gpt2"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd", "AutoModelForCausalLM": "odd.Odd"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "odd.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Odd: ...\n")
    return folder


def test_a_cached_policy_is_not_trusted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "ensure_policy", lambda config: folder)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a terminal was asked"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load.load_policy("selfcheck", 0)
    with pytest.raises(UsageError, match="runs code of its own"):
        load_pretrained(str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_gguf_file_is_read_without_code_and_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def from_pretrained(folder: Path, **options: object) -> None:
        asked.append(options)
        if len(asked) == 2:
            raise OSError("enough seen")

    for kind in (AutoTokenizer, AutoModelForCausalLM):
        monkeypatch.setattr(kind, "from_pretrained", from_pretrained)
    with pytest.raises(UsageError, match="enough seen"):
        gguf._convert(tmp_path / "a.gguf", tmp_path)
    assert [(options["trust_remote_code"], options["local_files_only"]) for options in asked] == [(False, True)] * 2
