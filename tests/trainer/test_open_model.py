"""One way to open a model: runs, exports and folders of others, on disks and at URLs."""

import json
import shutil

import pytest
import safetensors.torch
import torch
import transformers

from tests.datasets import SPECIALS
from tests.trainer.google_model import GOOGLE, VOCAB
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import train_tiny_run
from tokenizer.export import build_tokenizer
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED
from trainer.checkpoints.files import describe_file
from trainer.checkpoints.read import read_weights
from trainer.cli import main
from trainer.inference.open_model import open_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    return train_tiny_run(write_tiny_dataset(folder / "data"), folder / "run")


@pytest.fixture(scope="module")
def exported(run):
    folder = run.with_name("hf")
    assert main(["export", str(run), "--output", str(folder)]) == 0
    return folder


def equal(first, second):
    same = first.keys() == second.keys()
    return same and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.engines
def test_a_run_gives_the_checkpoint_that_is_asked_for(run, tmp_path):
    opened, before = open_model(str(run)), open_model(f"{run}@2")
    assert opened.where == str(run / "checkpoints" / "step-00000004")
    assert equal(opened.state, read_weights(run / "checkpoints" / "step-00000004"))
    assert (opened.config.hidden_size, opened.word_rule.lower_case) == (24, True)
    assert (opened.provenance["steps"], before.provenance["steps"]) == (4, 2)
    assert not equal(before.state, opened.state)
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "checkpoints" / "step-00000004" / "COMMITTED").unlink()
    assert open_model(str(copy)).provenance["steps"] == 2


@pytest.mark.engines
def test_a_checkpoint_with_a_nan_is_not_opened(run, tmp_path):
    checkpoint = shutil.copytree(run, tmp_path / "copy") / "checkpoints" / "step-00000004"
    weights = read_weights(checkpoint)
    weights["bert.pooler.bias"][1] = float("nan")
    safetensors.torch.save_file(weights, checkpoint / "model.safetensors")
    marker = json.loads((checkpoint / "COMMITTED").read_text())
    marker["files"]["model.safetensors"] = describe_file(checkpoint / "model.safetensors")
    (checkpoint / "COMMITTED").write_text(json.dumps(marker))
    says = r"step-00000004/model\.safetensors: bert\.pooler\.bias is damaged: 1 of 24 numbers"
    with pytest.raises(ValueError, match=says):
        open_model(str(tmp_path / "copy"))


@pytest.mark.engines
def test_an_export_of_a_run_is_the_same_model(run, exported):
    exported, trained = open_model(str(exported)), open_model(str(run))
    assert equal(exported.state, trained.state)
    assert (exported.vocab, exported.word_rule) == (trained.vocab, trained.word_rule)
    assert exported.provenance == trained.provenance


@pytest.mark.engines
def test_a_run_at_a_url_is_opened_and_exported(run, exported, bucket, tmp_path):
    bucket.put(f"{run}/", "/runs/tiny/", recursive=True)
    remote = "memory://runs/tiny"
    assert open_model(remote).where == f"{remote}/checkpoints/step-00000004"
    assert open_model(f"{remote}@2").provenance["steps"] == 2
    assert main(["export", remote, "--output", str(tmp_path / "hf")]) == 0
    assert equal(open_model(str(tmp_path / "hf")).state, open_model(str(exported)).state)
    path = "/runs/tiny/checkpoints/step-00000004/model.safetensors"
    bucket.pipe(path, bucket.cat(path)[:-1] + b"x")
    with pytest.raises(ValueError, match=rf"memory://{path}: sha256 is"):
        open_model(remote)


@pytest.mark.engines
def test_a_model_at_a_url_is_opened_with_the_options_of_the_command(exported, run, tmp_path):
    """The file system `dir://` needs options, which say which folder its paths are in."""
    options = {"path": str(exported.parent), "target_protocol": "file"}
    opened = open_model("dir://hf", options)
    assert equal(opened.state, open_model(str(exported)).state)
    assert opened.word_rule == UNCASED
    flags = ["--output", str(tmp_path / "again"), "--storage_options", json.dumps(options)]
    assert main(["export", "dir://hf", *flags]) == 0
    weights = "model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (exported / weights).read_bytes()


def test_a_checkpoint_of_google_with_a_vocabulary(tmp_path):
    folder = shutil.copytree(GOOGLE, tmp_path / "google")
    (folder / "vocab.txt").write_text(VOCAB)
    opened = open_model(str(folder))
    assert opened.word_rule.lower_case
    assert opened.tokenizer().encode("B [MASK]").tokens == ["[CLS]", "b", "[MASK]", "[SEP]"]
    (folder / "vocab.txt").write_text(VOCAB.replace("b", "B"))
    assert not open_model(str(folder)).word_rule.lower_case


def test_what_lacks_a_head_says_so(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=10, intermediate_size=20, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    opened = open_model(str(tmp_path))
    opened.check_has(("mlm_head.",), "the masked language model head")
    with pytest.raises(ValueError, match=r"without the next sentence head .*\(nsp_head. missing\)"):
        opened.check_has(("bert.embeddings.", "nsp_head."), "the next sentence head that nsp asks")
    with pytest.raises(ValueError, match=r"holds neither vocab.txt nor tokenizer.json"):
        opened.tokenizer()


@pytest.mark.engines
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(exported, tmp_path):
    tokens = [*SPECIALS, *(f"x{number}" for number in range(99))]
    vocabulary = parse_vocab("\n".join(tokens).encode(), "vocab.txt")
    folder = shutil.copytree(exported, tmp_path / "hf")
    (folder / "tokenizer.json").write_text(build_tokenizer(vocabulary, UNCASED).to_str())
    with pytest.raises(ValueError, match="tokenizer has 104 tokens, the model embeddings for 60"):
        open_model(str(folder)).tokenizer()


@pytest.mark.engines
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{run}@3", r"has no checkpoint of step 3; it has \[2, 4\]"),
        ("{run}/checkpoints@3", "holds no run.json; give the --output of a pretrain command"),
        ("{run}/checkpoints", "holds step-00000002/COMMITTED.*expected config.json with model"),
        ("{run}-absent", "holds nothing; expected config.json"),
    ],
)
def test_what_is_not_there_is_named(run, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        open_model(name.format(run=run))
