"""Model folders that are damaged, odd or hostile: one line that names the file, and no wait."""

import json
import os
import shutil

import pytest
import safetensors.torch
import torch

from tests.finetune.tiny_model import write_fine_tuned, write_pretrained
from tests.trainer.google_model import GOOGLE
from trainer.cli import main
from trainer.conversion.huggingface import hf_names
from trainer.conversion.initial_weights import read_initial_weights
from trainer.inference.open_model import open_model
from trainer.model.task_heads import Head
from trainer.model.weights import check_weights

DEEP = "[" * 100_000
WORD = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_pretrained(folder / "bert")
    write_fine_tuned(folder / "labelled", Head("classification", ("x", "y")))
    return folder


@pytest.fixture
def bert(folders, tmp_path):
    return shutil.copytree(folders / "bert", tmp_path / "bert")


def refusal(folder):
    """What is said of a model that is opened, which is one line."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        open_model(str(folder)).tokenizer()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def change_weights(folder, change):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(change(tensors), folder / "model.safetensors")


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_number_is_named_with_its_file(bert, value, capsys):
    def spoil(tensors):
        tensors["bert.encoder.layer.1.output.dense.bias"][3] = value
        return tensors

    change_weights(bert, spoil)
    file, name = f"{bert}/model.safetensors", "bert.encoder.layer.1.output.dense.bias"
    assert refusal(bert).startswith(
        f"{file}: {name} is damaged: 1 of 32 numbers are NaN or infinite; take an earlier"
    )
    assert main(["fill-mask", "--model", str(bert), "the [MASK]"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_whole_numbers_are_no_weights():
    assert check_weights({"a": torch.ones(2, dtype=torch.bfloat16)}, "f") is None
    with pytest.raises(ValueError, match="f: a is of int8, expected floating-point numbers"):
        check_weights({"a": torch.ones(2, dtype=torch.int8)}, "f")


def test_a_nan_of_googles_checkpoint(monkeypatch):
    def spoil(bundle, name, read=None):
        values = original(bundle, name)
        return values * float("nan") if name == "bert/pooler/dense/bias" else values

    from trainer.conversion.google import TensorBundle

    original = TensorBundle.read
    monkeypatch.setattr(TensorBundle, "read", spoil)
    with pytest.raises(ValueError, match=r"bert_model\.ckpt: bert\.pooler\.dense\.bias is damaged"):
        read_initial_weights(str(GOOGLE))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num_hidden_layers": 10**6}, "num_layers is 1,000,000; it must be at most 1,024"),
        ({"num_hidden_layers": 10**6, "model_type": "megatron-bert"}, "at most 1,024"),
        ({"hidden_size": "32"}, "model setting hidden_size is '32'; it must be a whole number"),
        ({"hidden_size": 32.0}, "model setting hidden_size is 32.0; it must be a whole number"),
        ({"num_attention_heads": True}, "num_heads is True; it must be a whole number"),
        ({"vocab_size": None}, "vocab_size is None; it must be a whole number"),
        ({"vocab_size": [1] * 99}, "vocab_size is [1, 1, 1, 1,"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan; it must be positive"),
        ({"hidden_dropout_prob": "x"}, "hidden_dropout is 'x'; it must be a number"),
        ({"is_decoder": "false"}, "is_causal is 'false'; it must be true or false"),
        ({"model_type": ["bert"]}, "model_type is ['bert'], expected one of bert, megatron-bert"),
        ({"hidden_act": {"a": 1}}, "hidden_act is {'a': 1}, expected 'gelu'"),
        ({"architectures": 3}, "architectures is 3, expected a list of names"),
        ({"architectures": [3]}, "architectures is [3], expected a list of names"),
        ({"beambert": "mine"}, "beambert is 'mine', which no export wrote"),
        ({"beambert": {"finetuned": []}}, "beambert is {'finetuned': []}, which no export wrote"),
    ],
)
def test_settings_of_a_model_that_make_no_sense(bert, values, says):
    change_json(bert / "config.json", **values)
    said = refusal(bert)
    assert said.startswith(f"{bert}/config.json: ")
    assert says in said


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"id2label": ["x", "y"]}, "id2label is ['x', 'y'], expected names by their numbers"),
        ({"id2label": {"x": 0}}, "id2label is {'x': 0}, expected names by their numbers"),
        ({"id2label": {"1": "x"}}, "id2label has the ids [1], expected 0 to 0"),
        ({"classifier_dropout": "0.1"}, "classifier_dropout is '0.1', expected null or a share"),
        ({"classifier_dropout": 2}, "classifier_dropout is 2, expected null or a share below 1"),
    ],
)
def test_settings_of_a_head_that_make_no_sense(folders, tmp_path, values, says):
    folder = shutil.copytree(folders / "labelled", tmp_path / "labelled")
    change_json(folder / "config.json", **values)
    assert refusal(folder).startswith(f"{folder}/config.json: {says}")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", DEEP, "not JSON (maximum recursion depth exceeded"),
        ("config.json", "[]", "expected a JSON object, found list"),
        ("tokenizer.json", DEEP, "not JSON (maximum recursion depth exceeded"),
        ("tokenizer.json", "[1]", "expected a JSON object, found list"),
        ("tokenizer.json", '{"normalizer": "x"}', "not a tokenizer ("),
        ("tokenizer.json", '{"a": "\\ud800"}', "not a tokenizer ("),
        ("tokenizer_config.json", "{", "not JSON ("),
        ("tokenizer_config.json", "3", "expected a JSON object, found int"),
        ("model.safetensors", "x" * 40, "damaged ("),
        ("model.safetensors", "", "damaged ("),
    ],
)
def test_files_of_a_model_that_cannot_be_read(bert, name, text, says):
    (bert / name).write_text(text)
    assert refusal(bert).startswith(f"{bert}/{name}: {says}")


@pytest.mark.parametrize("model", [None, 3, {"type": "BPE"}, {"type": "WordPiece", "vocab": [1]}])
def test_a_vocabulary_that_tokenizer_json_does_not_hold(bert, model):
    (bert / "vocab.txt").unlink()
    change_json(bert / "tokenizer.json", model=model)
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: (is a .* tokenizer|its vocab is \[1\])"
    ):
        open_model(str(bert)).vocabulary()


@pytest.mark.parametrize("name", ["vocab.txt", "config.json", "model.safetensors"])
def test_a_pipe_among_the_files(bert, name):
    (bert / name).unlink()
    os.mkfifo(bert / name)
    assert refusal(bert).startswith(f"{bert}/{name}: is a pipe (FIFO)")


@pytest.fixture
def universal(folders, tmp_path):
    """A universal checkpoint, without an optimizer's states."""
    folder = tmp_path / "universal"
    folder.mkdir()
    shutil.copy(folders / "bert/config.json", folder)
    (folder / "latest_universal").write_text("u\n")
    found = read_initial_weights(str(folders / "bert"))
    for ours, theirs in hf_names(found.config).items():
        (folder / "u/zero" / theirs).mkdir(parents=True)
        torch.save({"param": found.state[ours]}, folder / "u/zero" / theirs / "fp32.pt")
    return folder


def test_a_universal_checkpoint_without_an_optimizer_is_read(universal, folders):
    expected = read_initial_weights(str(folders / "bert")).state
    found = read_initial_weights(str(universal)).state
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", f"u/zero/{WORD}/fp32.pt: cannot be read ("),
        (b"no pickle", f"u/zero/{WORD}/fp32.pt: cannot be read ("),
        (torch.ones(3), f"u/zero/{WORD}/fp32.pt: holds Tensor, expected a tensor 'param'"),
        ([1], f"u/zero/{WORD}/fp32.pt: holds list, expected a tensor 'param'"),
        ({"a": 1}, f"u/zero/{WORD}/fp32.pt: holds 'a', expected a tensor 'param'"),
        ({"param": "x"}, f"u/zero/{WORD}/fp32.pt: holds 'param', expected a tensor 'param'"),
        ({"param": torch.full((3,), float("nan"))}, f"u: {WORD} is damaged: 3 of 3 numbers are"),
        ({"param": torch.ones(3)}, "u: bert.embeddings.word.weight has shape (3,), config.json"),
    ],
)
def test_odd_files_of_a_universal_checkpoint(universal, value, says):
    path = universal / "u/zero" / WORD / "fp32.pt"
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        torch.save(value, path)
    assert refusal(universal).startswith(f"{universal}/{says}")


@pytest.mark.parametrize("tag", [b"gone", b"", b"\xff\xfe", b"../elsewhere"])
def test_a_universal_checkpoint_that_is_not_where_it_is_said_to_be(universal, tag):
    (universal / "latest_universal").write_bytes(tag)
    assert "which holds no zero/NAME/fp32.pt" in refusal(universal)
