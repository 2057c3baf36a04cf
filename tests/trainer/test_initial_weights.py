"""Starting from models trained elsewhere."""

import dataclasses
import hashlib
import json
import shutil
import zlib

import numpy as np
import pytest
import torch
import transformers

from tests.trainer.google_model import CONFIG, GOOGLE, VOCAB
from trainer.conversion.export import export_hf, load_hf
from trainer.conversion.google import TensorBundle
from trainer.conversion.huggingface import hf_names
from trainer.conversion.initial_weights import InitialWeights, extend_rows, read_initial_weights
from trainer.model.bert import build_model
from trainer.model.config import ModelSettings, preset
from trainer.pretrain.run import prepare_model
from trainer.settings import Phase, PretrainSettings


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
        (
            "bert.layers.1.attention_norm.bias",
            "bert/encoder/layer_1/attention/output/LayerNorm/beta",
            (8,),
        ),
        ("bert.pooler.bias", "bert/pooler/dense/bias", (8,)),
        ("mlm_head.bias", "cls/predictions/output_bias", (30,)),
        ("nsp_head.weight", "cls/seq_relationship/output_weights", (2, 8)),
    ]:
        assert torch.equal(found.state[ours], written(name, shape)), ours
    kernel = written("bert/encoder/layer_0/intermediate/dense/kernel", (8, 12))
    assert torch.equal(found.state["bert.layers.0.intermediate.weight"], kernel.T)


def test_a_google_checkpoint_goes_out_as_hugging_face_without_loss(tmp_path):
    found = read_initial_weights(str(GOOGLE))
    export_hf(
        found.state,
        found.config,
        VOCAB.encode(),
        str(tmp_path / "hf"),
        lower_case=True,
        provenance={},
    )
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in (tmp_path / "hf").iterdir()
    }
    assert digests == {
        "README.md": "703ca5f97b1d43ed",
        "config.json": "0f4525624fb156cb",
        "model.safetensors": "830ca855a8b7d93b",
        "tokenizer.json": "3ea7957dd77fa93e",
        "tokenizer_config.json": "0fd5026552f98f5e",
        "vocab.txt": "01f4647d5498a9f3",
    }
    again = read_initial_weights(str(tmp_path / "hf"))
    assert again.config == found.config
    assert again.vocab == VOCAB.encode()
    assert all(torch.equal(again.state[name], tensor) for name, tensor in found.state.items())
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "hf").state_dict()
    names = hf_names(CONFIG)
    assert all(torch.equal(theirs[names[name]], tensor) for name, tensor in found.state.items())


@pytest.mark.parametrize(
    ("suffix", "position", "message"),
    [
        (".data-00000-of-00001", 40, r"is damaged: \d+ bytes of \d+, or another crc32c"),
        (".index", 100, "a block is cut short or has another crc32c"),
        (".index", -1, "it does not end as an index does"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, suffix, position, message):
    folder = shutil.copytree(GOOGLE, tmp_path / "copy")
    path = folder / f"bert_model.ckpt{suffix}"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_initial_weights(str(folder))


def test_a_checkpoint_of_more_layers_than_its_config_says_is_refused(tmp_path):
    folder = shutil.copytree(GOOGLE, tmp_path / "copy")
    settings = json.loads((folder / "bert_config.json").read_text())
    (folder / "bert_config.json").write_text(json.dumps(settings | {"num_hidden_layers": 1}))
    with pytest.raises(
        ValueError,
        match=r"bert/encoder/layer_1/attention/output/LayerNorm/beta.* no BERT of 1 layers",
    ):
        read_initial_weights(str(folder))


@pytest.fixture
def pickled(tmp_path):
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForPreTraining(config)
    model.config.save_pretrained(tmp_path / "bin")
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    return tmp_path / "bin", model


def test_a_pickle_is_not_read_and_the_message_says_how_to_convert_it(pickled):
    folder, model = pickled
    with pytest.raises(ValueError, match="is a pickle, which can run any code") as refused:
        read_initial_weights(str(folder))
    exec(str(refused.value).split('python -c "')[1].removesuffix('"'))
    state = read_initial_weights(str(folder)).state
    assert torch.equal(state["nsp_head.weight"], model.cls.seq_relationship.weight)


def test_a_folder_without_a_model_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"holds notes\.txt; expected config\.json"):
        read_initial_weights(str(tmp_path))


def settings_for(**changes):
    phases = [Phase(16, 8, 1, 0.1)]
    return PretrainSettings(
        data=["d"], output="o", phases=phases, model=ModelSettings("tiny"), **changes
    )


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCAB)
    return tmp_path / "vocab.txt"


def test_a_run_starts_from_them_and_says_so(vocabulary):
    model = build_model(CONFIG, 0)
    said = list(prepare_model(model, settings_for(init_from=str(GOOGLE)), None, vocabulary))
    assert torch.equal(model.mlm_head.bias, written("cls/predictions/output_bias", (30,)))
    assert said == [
        f"weights are those of {GOOGLE}",
        "  it has no vocab.txt: nothing but the size says that its vocabulary is the dataset's",
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_run_compiles_where_it_is_asked_to(vocabulary):
    model = build_model(CONFIG, 0)
    assert list(prepare_model(model, settings_for(compile=True), None, vocabulary)) == []
    assert {"forward", "sums"} <= vars(model.mlm_head).keys()


def test_heads_that_are_not_there_begin_as_new(vocabulary, tmp_path):
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    model = build_model(CONFIG, 0)
    before = model.nsp_head.weight.detach().clone()
    said = "".join(
        prepare_model(model, settings_for(init_from=str(tmp_path / "mlm")), None, vocabulary)
    )
    assert (
        "lacks bert.pooler.bias, bert.pooler.weight, nsp_head.bias, nsp_head.weight, which begin as new"
        in said
    )
    assert torch.equal(model.nsp_head.weight, before)
    assert torch.equal(model.mlm_head.bias, load_hf(str(tmp_path / "mlm"))[1]["mlm_head.bias"])


def test_weights_of_another_model_or_vocabulary_are_refused(vocabulary, tmp_path):
    with pytest.raises(ValueError, match=r"num_layers 2 \(this run: 3\); choose the model preset"):
        list(prepare_model(build_model(preset("tiny", vocab_size=30, hidden_size=8, num_heads=2, num_layers=3,
            intermediate_size=12, max_position_embeddings=16), 0), settings_for(init_from=str(GOOGLE)), None,
            vocabulary))  # fmt: skip
    folder = shutil.copytree(GOOGLE, tmp_path / "copy")
    (folder / "vocab.txt").write_text(VOCAB.replace("[MASK]\na", "[MASK]\nz"))
    with pytest.raises(
        ValueError, match="differs from the dataset's vocabulary, so ids mean other words"
    ):
        list(
            prepare_model(
                build_model(CONFIG, 0), settings_for(init_from=str(folder)), None, vocabulary
            )
        )


@pytest.fixture
def extended(tmp_path):
    """A model with [unused0], and a vocabulary that has replaced it and goes on."""
    folder = shutil.copytree(GOOGLE, tmp_path / "copy")
    (folder / "vocab.txt").write_text(VOCAB.replace("\nb\n", "\n[unused0]\n"))
    path = tmp_path / "extended.txt"
    path.write_text(VOCAB.replace("\nb\n", "\nac\n") + "axe\n##z\n")
    return str(folder), path


def test_new_pieces_begin_as_the_mean_of_their_old_ones(extended):
    folder, path = extended
    old = read_initial_weights(folder)
    ids = {token: index for index, token in enumerate(old.vocab.decode().split())}
    model = build_model(dataclasses.replace(CONFIG, vocab_size=32), 0)
    said = list(prepare_model(model, settings_for(init_from=folder), None, path))
    assert (
        said[1]
        == "  3 pieces are new to it: each begins as the mean of the old pieces that it was cut into"
    )
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
    state = {
        "bert.embeddings.word.weight": torch.arange(14.0).reshape(7, 2),
        "mlm_head.bias": torch.arange(7.0),
    }
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    old = "".join(f"{token}\n" for token in [*specials, "a", "##b"])
    found = InitialWeights(dataclasses.replace(CONFIG, vocab_size=7), state, old.encode())
    new, num_new = extend_rows(found, f"{old}abb\n##bb\n".encode(), "there")
    assert num_new == 2
    assert new.config.vocab_size == 9
    assert new.state["mlm_head.bias"][7:].tolist() == [pytest.approx((5 + 6 + 6) / 3), 6]
    assert new.state["bert.embeddings.word.weight"][7].tolist() == pytest.approx(
        [(10 + 12 + 12) / 3, (11 + 13 + 13) / 3]
    )
    assert torch.equal(
        new.state["bert.embeddings.word.weight"][:7], state["bert.embeddings.word.weight"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("\nc\n", "\ncc\n"), "'c' of it is 'cc' there"),
        (lambda text: text[:-6], "30 lines, there"),
    ],
)
def test_a_vocabulary_that_is_no_extension_is_refused(extended, change, message):
    folder, path = extended
    path.write_text(change(VOCAB if "lines" in message else path.read_text()))
    with pytest.raises(
        ValueError, match=f"ids mean other words .{message}.*--vocab or --extend of that file"
    ):
        list(prepare_model(build_model(CONFIG, 0), settings_for(init_from=folder), None, path))


def test_a_number_where_a_shape_belongs_takes_no_memory():
    """Python's bytes(n) are n zeros: the entry of the tensor "a" has 2^50 in the place of its shape."""
    index = bytes.fromhex(
        "00000608011a02080100010b610801108080808080808002000000000100000000c3ae5e34"
        "000000000100000000c0f2a1b000010262002000000000010000000030d3691c2508320e00"
    ).ljust(109, b"\0") + bytes.fromhex("57fb808b247547db")
    with pytest.raises(ValueError, match=r"here\.index: not a TensorFlow checkpoint, or damaged"):
        TensorBundle("here", lambda _suffix: index)


def test_a_tensor_past_the_end_of_its_file_is_not_read(tmp_path):
    shutil.copytree(GOOGLE, tmp_path / "model")
    data = next((tmp_path / "model").glob("*.data-00000-of-00001"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"data-00000-of-00001: \S+ is damaged: \d+ bytes of \d+"):
        read_initial_weights(str(tmp_path / "model"))
