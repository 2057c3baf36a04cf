from dataclasses import replace

import pytest
import torch
import transformers

from tests.trainer.tiny_run import BERT
from tests.trainer.two_ranks import random_micro_batch
from trainer.conversion.huggingface import hf_names, to_hf_config, to_hf_state
from trainer.model.bert import build_model, pretraining_sums
from trainer.model.config import preset
from trainer.stream.batches.pack import empty_micro_batch, pad_micro_batch, to_device

CONFIG = replace(BERT, num_layers=3, max_position_embeddings=48)


def transformers_twin(model):
    """transformers' BertForPreTraining with the weights of `model`."""
    twin = transformers.BertForPreTraining(transformers.BertConfig(**to_hf_config(model.config, 0)))
    weights = to_hf_state(model.state_dict(), model.config)
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    twin.load_state_dict(weights, strict=True)
    return twin.eval()


def transformers_logits(twin, batch):
    rows = pad_micro_batch(batch, batch.max_seqlen)
    names = ("input_ids", "attention_mask", "token_type_ids")
    output = twin(**{name: rows[name] for name in names})
    return output.prediction_logits[rows["labels"] != -100], output.seq_relationship_logits


@pytest.mark.parametrize(
    ("config", "lengths"),
    [(CONFIG, [7, 48, 3, 20, 33]), (preset("tiny", vocab_size=1000), [128, 60, 90, 128, 5])],
    ids=["random", "bert-tiny"],
)
def test_logits_and_gradients_equal_transformers(config, lengths):
    batch = random_micro_batch(lengths, config.vocab_size, seed=0)
    model = build_model(config, seed=1).eval()
    torch.manual_seed(9)
    with torch.no_grad():  # larger weights, and biases other than 0, so that a wrong rule shows
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    twin = transformers_twin(model)
    logits, expected = model(batch, batch.masked_positions), transformers_logits(twin, batch)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    for outputs in (logits, expected):
        sums = pretraining_sums(*outputs, batch.masked_labels, batch.is_random_next)
        (sums.mlm_nll / len(batch.masked_labels) + sums.nsp_nll / len(lengths)).backward()
    theirs, names = dict(twin.named_parameters()), hf_names(config)
    for name, parameter in model.named_parameters():
        expected = theirs[names[name]].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-5, msg=name)


def test_the_vocabulary_is_scored_at_masked_positions_only():
    config = replace(CONFIG, vocab_size=3001)
    batch = random_micro_batch([40, 20], config.vocab_size, seed=0)
    sizes = []
    note = lambda x: sizes.append(x.numel()) or x  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        mlm_logits, nsp_logits = build_model(config, seed=1)(batch, batch.masked_positions)
        pretraining_sums(mlm_logits, nsp_logits, batch.masked_labels, batch.is_random_next)
    assert (mlm_logits.shape, nsp_logits.shape) == ((10, 3001), (2, 2))
    assert max(sizes) == 3001 * 24, "the decoder's weight; logits of 60 tokens would be larger"


def test_an_empty_micro_batch_gives_zero_gradients_everywhere():
    model = build_model(CONFIG, seed=1)
    batch = to_device(empty_micro_batch(), torch.device("cpu"))
    logits = model(batch, batch.masked_positions)
    sums = pretraining_sums(*logits, batch.masked_labels, batch.is_random_next)
    (sums.mlm_nll + sums.nsp_nll).backward()
    assert sums.mlm_nll.item() == sums.nsp_nll.item() == 0.0
    assert sums.num_mlm_correct.item() == sums.num_nsp_correct.item() == 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_initial_weights_are_a_truncated_normal():
    state = build_model(preset("tiny"), seed=3).state_dict()
    words = state["bert.embeddings.word.weight"]
    assert words.abs().max() <= 0.04
    assert words.std().item() == pytest.approx(0.02 * 0.8796, rel=2e-3)  # a normal cut at 2 sigma
    assert words.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert not torch.equal(state["bert.layers.0.query.weight"], state["bert.layers.1.query.weight"])
    for name, weight in state.items():
        if weight.ndim == 1:
            expected = float(name.endswith("norm.weight"))
            assert torch.equal(weight, torch.full_like(weight, expected)), name


@pytest.mark.parametrize("dropout", ["hidden_dropout", "attention_dropout"])
def test_dropout_is_active_only_in_training(dropout):
    off = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    config = preset("tiny", vocab_size=50, **(off | {dropout: 0.5}))
    model, batch = build_model(config, seed=1), random_micro_batch([30, 12], 50, seed=0)
    for is_training in (True, False):
        model.train(is_training)
        first, second = (model(batch, batch.masked_positions)[0] for _ in range(2))
        assert torch.equal(first, second) is not is_training
