"""Exports as ONNX: the same numbers as transformers', for any batch and length, of every head."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
import transformers

from tests.trainer.lettered_model import CONFIG, VOCAB, export_lettered_model
from trainer.cli import main
from trainer.conversion.export import export_hf
from trainer.model.task_heads import Head, build_task_model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
TEXTS = ["The cats sat.", "a cat", "sat"]


def export(folder, output):
    return main(["export", str(folder), "--output", str(output), "--output_format", "onnx"])


def run(folder, batch):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = (each.name for each in session.get_outputs())
    return dict(zip(names, session.run(None, dict(batch)), strict=True))


@pytest.mark.engines
@pytest.mark.parametrize("changes", [{}, {"pre_norm": True, "is_causal": True}])
def test_a_pretrained_model_serves_what_transformers_computes(tmp_path, changes):
    folder = export_lettered_model(tmp_path / "hf", **changes)
    assert export(folder, tmp_path / "onnx") == 0
    names = "README.md config.json model.onnx tokenizer.json tokenizer_config.json vocab.txt"
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == names.split()
    assert "session.run(None" in (tmp_path / "onnx/README.md").read_text()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "onnx")
    kind = "MegatronBertForPreTraining" if changes else "BertForPreTraining"
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    for texts in (TEXTS, TEXTS[:1]):
        batch = tokenizer(texts, padding=True, return_tensors="np")
        found = run(tmp_path / "onnx", batch)
        with torch.inference_mode():
            theirs = model(**batch.convert_to_tensors("pt"), output_hidden_states=True)
        following = theirs.seq_relationship_logits
        np.testing.assert_allclose(found["logits"], theirs.prediction_logits, atol=1e-4)
        np.testing.assert_allclose(found["seq_relationship_logits"], following, atol=1e-4)
        np.testing.assert_allclose(found["last_hidden_state"], theirs.hidden_states[-1], atol=1e-4)
    assert export(folder, tmp_path / "onnx") == 0  # an earlier one is replaced


@pytest.mark.engines
@pytest.mark.parametrize(
    ("head", "shapes"),
    [
        (Head("classification", ("no", "yes", "maybe")), {"logits": (2, 3)}),
        (Head("span"), {"start_logits": (2, 6), "end_logits": (2, 6)}),
        (Head("choice"), {"logits": (2, 4)}),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_a_fine_tuned_model_has_the_outputs_of_its_head(tmp_path, head, shapes):
    config = dataclasses.replace(CONFIG, num_layers=1)
    state = build_task_model(config, head, seed=1).state_dict()
    facts = {"lower_case": True, "provenance": {"steps": 7}, "head": head}
    export_hf(state, config, VOCAB, str(tmp_path / "hf"), **facts)
    assert export(tmp_path / "hf", tmp_path / "onnx") == 0
    ids = np.ones((2, 4, 6) if head.kind == "choice" else (2, 6), np.int64)
    batch = {"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids}
    found = run(tmp_path / "onnx", batch)
    assert {name: values.shape for name, values in found.items()} == shapes


@pytest.mark.engines
def test_numbers_that_differ_are_not_left_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainer.conversion.onnx.TOLERANCE", -1.0)
    assert export(export_lettered_model(tmp_path / "hf"), tmp_path / "onnx") == 2
    assert "onnxruntime's logits of 1 sequences of 1 tokens differ by" in capsys.readouterr().err
    assert not (tmp_path / "onnx").exists()


def test_without_the_extra_one_line_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export(export_lettered_model(tmp_path / "hf"), tmp_path / "onnx") == 2
    assert capsys.readouterr().err.endswith("pip install -e '.[onnx]'\n")
    assert not (tmp_path / "onnx").exists()
