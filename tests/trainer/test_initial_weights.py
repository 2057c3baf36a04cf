"""Starting from models trained elsewhere."""

import dataclasses
import hashlib
import json
import re
import shutil
import zlib

import numpy as np
import pytest
import torch
import transformers

from tests.datasets import SPECIALS
from tests.trainer.google_model import CONFIG, GOOGLE, VOCAB
from tokenizer.word_rule import UNCASED
from trainer.conversion.export import export_hf, load_hf
from trainer.conversion.google import TensorBundle
from trainer.conversion.huggingface import hf_names, to_hf_config
from trainer.conversion.initial_weights import InitialWeights, extend_rows, read_initial_weights
from trainer.model.bert import build_model
from trainer.pretrain.run import prepare_model
from trainer.settings import Phase, PretrainSettings

LAYER_1 = "bert/encoder/layer_1"
FEWER_LAYERS = f"{LAYER_1}/attention/output/LayerNorm/beta.* no BERT of 1 layers"
DATA, INDEX = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"


@pytest.fixture
def google(tmp_path):
    return shutil.copytree(GOOGLE, tmp_path / "copy")


def written(name, shape):
    start = zlib.crc32(name.encode()) % 1000
    values = 0.3 * np.sin(np.arange(np.prod(shape), dtype=np.float64) + start)
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def test_a_google_checkpoint_is_read_without_tensorflow():
    found = read_initial_weights(str(GOOGLE))
    assert found.config == CONFIG
    assert found.state.keys() == build_model(CONFIG, 0).state_dict().keys()
    for ours, name, shape in [
        ("bert.embeddings.word.weight", "bert/embeddings/word_embeddings", (30, 8)),
        ("bert.embeddings.norm.weight", "bert/embeddings/LayerNorm/gamma", (8,)),
        ("bert.layers.1.attention_norm.bias", f"{LAYER_1}/attention/output/LayerNorm/beta", (8,)),
        ("bert.pooler.bias", "bert/pooler/dense/bias", (8,)),
        ("mlm_head.bias", "cls/predictions/output_bias", (30,)),
        ("nsp_head.weight", "cls/seq_relationship/output_weights", (2, 8)),
    ]:
        assert torch.equal(found.state[ours], written(name, shape)), ours
    kernel = written("bert/encoder/layer_0/intermediate/dense/kernel", (8, 12))
    assert torch.equal(found.state["bert.layers.0.intermediate.weight"], kernel.T)


def test_a_google_checkpoint_goes_out_as_hugging_face_without_loss(tmp_path):
    found = read_initial_weights(str(GOOGLE))
    facts = {"rule": UNCASED, "provenance": {}}
    export_hf(found.state, found.config, VOCAB.encode(), str(tmp_path / "hf"), **facts)
    files = (tmp_path / "hf").iterdir()
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files} == {
        "README.md": "703ca5f97b1d43ed",
        "config.json": "0f4525624fb156cb",
        "model.safetensors": "830ca855a8b7d93b",
        "tokenizer.json": "3ea7957dd77fa93e",
        "tokenizer_config.json": "0fd5026552f98f5e",
        "vocab.txt": "01f4647d5498a9f3",
    }
    assert read_initial_weights(str(tmp_path / "hf")).vocab == VOCAB.encode()
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "hf").state_dict()
    names = hf_names(CONFIG)
    assert all(torch.equal(theirs[names[name]], tensor) for name, tensor in found.state.items())


def with_bit_flipped(data, position):
    data[position] ^= 1
    return data


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (DATA, lambda it: with_bit_flipped(it, 40), r"\d+ bytes of \d+, or another crc32c"),
        (DATA, lambda it: it[:100], r"00001: \S+ is damaged: \d+ bytes of \d+"),
        (INDEX, lambda it: with_bit_flipped(it, 100), "a block is cut short or has another crc32c"),
        (INDEX, lambda it: with_bit_flipped(it, -1), "it does not end as an index does"),
        ("bert_config.json", lambda it: it.replace(b'layers": 2', b'layers": 1'), FEWER_LAYERS),
    ],
)
def test_a_damaged_checkpoint_or_another_config_is_refused(google, name, change, message):
    (google / name).write_bytes(change(bytearray((google / name).read_bytes())))
    with pytest.raises(ValueError, match=message):
        read_initial_weights(str(google))


def hf_model(kind):
    return kind(transformers.BertConfig(**to_hf_config(CONFIG, 0)))


def test_a_pickle_is_not_read_and_the_message_says_how_to_convert_it(tmp_path):
    folder, model = tmp_path / "bin", hf_model(transformers.BertForPreTraining)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="is a pickle, which can run any code") as refused:
        read_initial_weights(str(folder))
    exec(str(refused.value).split('python -c "')[1].removesuffix('"'))
    state = read_initial_weights(str(folder)).state
    assert torch.equal(state["nsp_head.weight"], model.cls.seq_relationship.weight)


def prepare(model, vocabulary, **changes):
    """What is said of a run that begins with a model and a vocabulary."""
    settings = PretrainSettings(["d"], "o", [Phase(16, 8, 1, 0.1)], **changes)
    return list(prepare_model(model, settings, None, vocabulary))


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCAB)
    return tmp_path / "vocab.txt"


def test_a_run_starts_from_them_and_says_so(vocabulary):
    model = build_model(CONFIG, 0)
    said = prepare(model, vocabulary, init_from=str(GOOGLE))
    assert torch.equal(model.mlm_head.bias, written("cls/predictions/output_bias", (30,)))
    assert said == [
        f"weights are those of {GOOGLE}",
        "  it has no vocab.txt: only the size says that its vocabulary is the dataset's",
    ]


def test_a_run_starts_from_weights_at_a_url_with_options(vocabulary):
    options = json.dumps({"path": str(GOOGLE.parent), "target_protocol": "file"})
    model = build_model(CONFIG, 0)
    prepare(model, vocabulary, init_from=f"dir://{GOOGLE.name}", storage_options=options)
    assert torch.equal(model.mlm_head.bias, written("cls/predictions/output_bias", (30,)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_run_compiles_where_it_is_asked_to(vocabulary):
    model = build_model(CONFIG, 0)
    assert prepare(model, vocabulary, compile=True) == []
    assert {"forward", "sums"} <= vars(model.mlm_head).keys()


def test_heads_that_are_not_there_begin_as_new(vocabulary, tmp_path):
    hf_model(transformers.BertForMaskedLM).save_pretrained(tmp_path / "mlm")
    model = build_model(CONFIG, 0)
    before = model.nsp_head.weight.detach().clone()
    said = "".join(prepare(model, vocabulary, init_from=str(tmp_path / "mlm")))
    lacking = "bert.pooler.bias, bert.pooler.weight, nsp_head.bias, nsp_head.weight"
    assert f"lacks {lacking}, which begin as new" in said
    assert torch.equal(model.nsp_head.weight, before)
    assert torch.equal(model.mlm_head.bias, load_hf(str(tmp_path / "mlm"))[1]["mlm_head.bias"])


def refusal(config, init_from, vocabulary):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        prepare(build_model(config, 0), vocabulary, init_from=init_from)
    return str(refused.value)


def test_weights_of_another_model_or_vocabulary_are_refused(vocabulary, google):
    deeper = dataclasses.replace(CONFIG, num_layers=3)
    says = "num_layers 2 (this run: 3); choose the model preset"
    assert says in refusal(deeper, str(GOOGLE), vocabulary)
    (google / "vocab.txt").write_text(VOCAB.replace("[MASK]\na", "[MASK]\nz"))
    says = "differs from the dataset's vocabulary, so ids mean other words"
    assert says in refusal(CONFIG, str(google), vocabulary)


@pytest.fixture
def extended(google, tmp_path):
    """A model with [unused0], and a vocabulary that has replaced it and goes on."""
    (google / "vocab.txt").write_text(VOCAB.replace("\nb\n", "\n[unused0]\n"))
    path = tmp_path / "extended.txt"
    path.write_text(VOCAB.replace("\nb\n", "\nac\n") + "axe\n##z\n")
    return str(google), path


def test_new_pieces_begin_as_the_mean_of_their_old_ones(extended):
    folder, path = extended
    old = read_initial_weights(folder)
    ids = {token: index for index, token in enumerate(old.vocab.decode().split())}
    model = build_model(dataclasses.replace(CONFIG, vocab_size=32), 0)
    said = prepare(model, path, init_from=folder)
    assert said[1].startswith("  3 pieces are new to it: each begins as the mean of the old pieces")
    # "ac" and "axe" are [UNK] of that vocabulary, which continues no word; so is "##z".
    for rows, before in (
        (model.bert.embeddings.word.weight, old.state["bert.embeddings.word.weight"]),
        (model.mlm_head.bias, old.state["mlm_head.bias"]),
    ):
        kept = [index for index in range(30) if index != ids["[unused0]"]]
        assert torch.equal(rows[kept], before[kept])
        for index in (ids["[unused0]"], 30, 31):
            assert torch.equal(rows[index], before[ids["[UNK]"]])


def test_the_mean_is_that_of_all_pieces():
    state = {"bert.embeddings.word.weight": torch.arange(14.0).reshape(7, 2)}
    state["mlm_head.bias"] = torch.arange(7.0)
    old = "".join(f"{token}\n" for token in [*SPECIALS, "a", "##b"])
    found = InitialWeights(dataclasses.replace(CONFIG, vocab_size=7), state, old.encode())
    new, num_new = extend_rows(found, f"{old}abb\n##bb\n".encode(), "there")
    assert (num_new, new.config.vocab_size) == (2, 9)
    assert new.state["mlm_head.bias"][7:].tolist() == [pytest.approx((5 + 6 + 6) / 3), 6]
    words, mean = new.state["bert.embeddings.word.weight"], [(10 + 12 + 12) / 3, (11 + 13 + 13) / 3]
    assert words[7].tolist() == pytest.approx(mean)
    assert torch.equal(words[:7], state["bert.embeddings.word.weight"])


def test_a_vocabulary_that_is_no_extension_is_refused(extended):
    folder, path = extended
    for text, message in (
        (path.read_text().replace("\nc\n", "\ncc\n"), "'c' of it is 'cc' there"),
        (VOCAB[:-6], "30 lines, there"),
    ):
        path.write_text(text)
        says = f"ids mean other words .{message}.*--vocab or --extend of that file"
        assert re.search(says, refusal(CONFIG, folder, path))


def test_a_number_where_a_shape_belongs_takes_no_memory():
    """Python's bytes(n) are n zeros: the tensor "a" has 2^50 in the place of its shape."""
    index = bytes.fromhex(
        "00000608011a02080100010b610801108080808080808002000000000100000000c3ae5e34"
        "000000000100000000c0f2a1b000010262002000000000010000000030d3691c2508320e00"
    ).ljust(109, b"\0") + bytes.fromhex("57fb808b247547db")
    with pytest.raises(ValueError, match=r"here\.index: not a TensorFlow checkpoint, or damaged"):
        TensorBundle("here", lambda _suffix: index)
