"""Exports in transformers, folders that transformers saved here, and what is refused."""

import dataclasses
import json

import pytest
import safetensors.torch
import torch
import transformers

from pipeline.storage.folder import Folder
from tests.trainer.lettered_model import CONFIG, TOKENS, VOCAB
from tokenizer.word_rule import UNCASED
from trainer.conversion.export import export_hf, load_hf, read_json
from trainer.inference.open_model import open_model
from trainer.model.bert import build_model
from trainer.model.packed_inputs import pack_sequences


@pytest.fixture(scope="module")
def model():
    return build_model(CONFIG, seed=5).eval()


def export(model, folder, **changes):
    settings = {"rule": UNCASED, "provenance": {"tokens_seen": 12_345, "steps": 7}} | changes
    vocab = settings.pop("vocab", VOCAB)
    export_hf(model.state_dict(), model.config, vocab, str(folder), **settings)
    return folder


def ours(model, input_ids):
    return model(pack_sequences([input_ids], torch.device("cpu")), torch.arange(len(input_ids)))


def provenance(folder):
    return read_json(str(folder), "config.json").get("beambert")


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformers_opens_models_whole_and_computes_the_same(pre_norm, is_causal, tmp_path):
    config = dataclasses.replace(CONFIG, pre_norm=pre_norm, is_causal=is_causal)
    model = build_model(config, seed=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).view(parameter.shape))
    folder = export(model, tmp_path / "out")
    kind = (transformers.BertForPreTraining, transformers.MegatronBertForPreTraining)[pre_norm]
    theirs, loading = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer("The cats sat. a [MASK] sat", return_tensors="pt")
    with torch.no_grad():
        output = theirs.eval()(**batch)
        mlm_logits, nsp_logits = ours(model, batch["input_ids"][0].tolist())
    torch.testing.assert_close(output.prediction_logits[0], mlm_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(output.seq_relationship_logits, nsp_logits, rtol=0, atol=1e-5)
    again, state, _ = load_hf(str(folder))
    assert again == config
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_an_export_replaces_an_earlier_one(model, tmp_path):
    folder = export(model, tmp_path / "deep" / "out")
    assert provenance(folder) == {"tokens_seen": 12_345, "steps": 7}
    export(model, folder, provenance={"steps": 8})
    assert provenance(folder) == {"steps": 8}
    assert (folder / "vocab.txt").read_bytes() == VOCAB
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_weights_that_share_memory_are_written_apart(model, tmp_path):
    """Under ZeRO, parameters are views of one flat buffer, often in bfloat16."""
    state = model.state_dict()
    flat = torch.cat([tensor.flatten() for tensor in state.values()]).bfloat16()
    pieces = flat.split([tensor.numel() for tensor in state.values()])
    views = {name: piece.view_as(state[name]) for name, piece in zip(state, pieces, strict=True)}
    export_hf(views, CONFIG, VOCAB, str(tmp_path / "out"), rule=UNCASED, provenance={})
    _, found, _ = load_hf(str(tmp_path / "out"))
    assert all(torch.equal(found[name], view.float()) for name, view in views.items())


@pytest.mark.parametrize("num_written", [1, 2, 5])
def test_a_killed_export_to_an_object_store_is_done_again(model, monkeypatch, num_written):
    folder, written, write = f"memory://models/killed-{num_written}", [], Folder.write

    def die(self, name, data):
        if len(written) == num_written:
            raise KeyboardInterrupt
        written.append(name)
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", die)
        with pytest.raises(KeyboardInterrupt):
            export(model, folder)
    assert Folder(folder).list().keys() == set(written)
    assert "config.json" not in written
    export(model, folder)
    config, state, _ = load_hf(folder)
    assert config == CONFIG
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("edit", [lambda _: "mine", lambda card: card + "Licence: mine.\n"])
def test_a_card_that_somebody_wrote_or_edited_is_kept(model, tmp_path, edit):
    card = export(model, tmp_path / "out") / "README.md"
    card.write_text(mine := edit(card.read_text()))
    refused = r"out: holds README.md, which no export wrote; empty it or name another"
    with pytest.raises(ValueError, match=refused):
        export(model, tmp_path / "out")
    assert card.read_text() == mine


def test_what_is_no_folder_for_an_export_is_refused(model, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds config\.json without the key 'beambert'"):
        export(model, tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        export(model, tmp_path / "config.json")
    sizes = rf"vocab.txt has {len(TOKENS) + 1} tokens, the model {len(TOKENS)}"
    with pytest.raises(ValueError, match=sizes):
        export(model, tmp_path / "out", vocab=VOCAB + b"dog\n")
    assert not (tmp_path / "out").exists()


DECODER_BIAS = "cls.predictions.decoder.bias"


@pytest.fixture
def folder(tmp_path):
    """What transformers saved of a BertForPreTraining."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, intermediate_size=20, **sizes)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path)
    return tmp_path


def edit_weights(folder, changes):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path) | changes
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def test_load_what_transformers_saved(folder):
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    config, state, _ = load_hf(str(folder))
    assert (config.num_layers, config.num_heads, config.max_position_embeddings) == (2, 2, 512)
    loaded = build_model(config, seed=0).eval()
    loaded.load_state_dict(state)
    with torch.no_grad():
        expected = theirs(torch.tensor([[2, 5, 7, 3]])).prediction_logits[0]
        torch.testing.assert_close(ours(loaded, [2, 5, 7, 3])[0], expected, rtol=0, atol=1e-5)
    assert provenance(folder) is None


def test_load_old_names_and_a_tied_decoder_written_out(folder):
    _, expected, _ = load_hf(str(folder))

    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    for new, old in {
        "LayerNorm.weight": "LayerNorm.gamma",
        "LayerNorm.bias": "LayerNorm.beta",
    }.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    tensors["cls.predictions.decoder.weight"] = words.clone()
    tensors[DECODER_BIAS] = tensors["cls.predictions.bias"].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(512)[None]
    safetensors.torch.save_file(tensors, path)
    _, state, _ = load_hf(str(folder))
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in expected.items())


def edit_config(folder, changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("edit", "changes", "message"),
    [
        (edit_weights, {DECODER_BIAS: torch.ones(30)}, r"bias differs from cls\.predictions"),
        (edit_weights, {"some.weight": torch.ones(2)}, r"unknown \['some.weight'\], missing \[\]"),
        (edit_config, {"max_position_embeddings": 100}, r"config.json says \(100, 16\)"),
        (edit_config, {"hidden_act": "gelu_new"}, "config.json: hidden_act is 'gelu_new'"),
        (edit_config, {"model_type": "roberta"}, "config.json: model_type is 'roberta', expected"),
    ],
)
def test_load_refuses_another_model(folder, edit, changes, message):
    edit(folder, changes)
    with pytest.raises(ValueError, match=message):
        load_hf(str(folder))


def test_load_names_what_a_folder_holds(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json, found nothing"):
        load_hf(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("")
    found = r"no model\.safetensors, found config\.json, pytorch_model\.bin"
    with pytest.raises(FileNotFoundError, match=found):
        load_hf(str(tmp_path))


def test_load_names_a_damaged_file(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged"):
        load_hf(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        load_hf(str(folder))


def test_sentence_transformers_opens_it_as_means_of_tokens(model, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder, texts = export(model, tmp_path / "out"), ["The cats sat.", "a [MASK] sat", ""]
    opened = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    found = torch.from_numpy(opened.encode(texts))
    ids = [encoding.ids for encoding in open_model(str(folder)).tokenizer().encode_batch(texts)]
    with torch.inference_mode():
        hidden, _ = model.eval().bert(pack_sequences(ids, torch.device("cpu")))
    means = torch.stack([each.mean(0) for each in hidden.split([len(each) for each in ids])])
    assert torch.allclose(found, means, atol=1e-5)
