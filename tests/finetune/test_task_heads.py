"""Heads, their losses, and folders of fine-tuned models, against transformers' classes."""

import json

import numpy as np
import pytest
import torch
import transformers

from tests.finetune.tiny_model import TOKENS, tiny_config, write_fine_tuned, write_pretrained
from trainer.finetune.batches import pack_items
from trainer.finetune.prepare import start_model
from trainer.finetune.task import Item
from trainer.finetune.text import TokenSequence
from trainer.inference.open_model import open_model
from trainer.model import task_heads
from trainer.model.task_heads import IGNORED, BertForTask, Head, build_task_model

CPU = torch.device("cpu")
HEADS = {
    "classification": Head("classification", ("no", "yes", "maybe")),
    "regression": Head("regression"),
    "choice": Head("choice"),
    "tokens": Head("tokens", ("O", "B-X", "I-X")),
    "span": Head("span"),
}
CLASSES = dict.fromkeys(("classification", "regression"), "BertForSequenceClassification")
CLASSES |= {"choice": "BertForMultipleChoice", "tokens": "BertForTokenClassification"}
CLASSES["span"] = "BertForQuestionAnswering"
LABELS = {
    "classification": [[2], [0], [1]],
    "regression": [[0.5], [-1.25], [3.0]],
    "choice": [[1], [2], [0]],
    "tokens": [[IGNORED, 0, 1, 2, IGNORED], [IGNORED] * 7 + [1, IGNORED], [IGNORED, 2, IGNORED]],
    "span": [[1, 3], [0, 0], [1, 1]],
}
LENGTHS = [(5, 2), (9, 6), (3, 3)]


def random_sequence(length, segment_a, seed):
    ids = np.random.default_rng(seed).integers(5, len(TOKENS), length)
    ids[0], ids[-1] = 2, 3
    return TokenSequence(ids.astype(np.uint16), segment_a)


def make_items(kind):
    """Three items of different lengths; choices have three sequences each."""
    dtype = np.float32 if kind == "regression" else np.int64
    num_choices = 3 if kind == "choice" else 1
    items = []
    for number, ((length, a), label) in enumerate(zip(LENGTHS, LABELS[kind], strict=True)):
        places = ((length + each, a, 10 * number + each) for each in range(num_choices))
        sequences = tuple(random_sequence(*place) for place in places)
        items.append(Item(number, sequences, np.array(label, dtype)))
    return items


def padded(sequences):
    """As transformers takes them."""
    width = max(len(sequence.input_ids) for sequence in sequences)
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = {name: torch.zeros(len(sequences), width, dtype=torch.long) for name in names}
    for row, sequence in enumerate(sequences):
        length = len(sequence.input_ids)
        batch["input_ids"][row, :length] = torch.from_numpy(sequence.input_ids.astype(np.int64))
        batch["attention_mask"][row, :length] = 1
        batch["token_type_ids"][row, sequence.segment_a_length : length] = 1
    return batch


def their_outputs(theirs, kind, items):
    """Loss and logits of transformers' model for the items, in our shapes."""
    batch = padded([sequence for item in items for sequence in item.sequences])
    labels = [torch.from_numpy(item.labels) for item in items]
    if kind == "choice":
        rows = {name: values.view(len(items), 3, -1) for name, values in batch.items()}
        output = theirs(**rows, labels=torch.cat(labels))
        return output.loss, output.logits.reshape(-1, 1)
    if kind == "tokens":
        rows = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED)
        output = theirs(**batch, labels=rows)
        return output.loss, output.logits[batch["attention_mask"].bool()]
    if kind == "span":
        output = theirs(**batch)
        logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
        # Its softmax gives padding a share; ours has none, as it has none of one sequence.
        losses = []
        for item, (start, end) in zip(items, labels, strict=True):
            places = {"start_positions": start[None], "end_positions": end[None]}
            losses.append(theirs(**padded(item.sequences), **places).loss)
        return sum(losses) / 3, logits[batch["attention_mask"].bool()]
    output = theirs(**batch, labels=torch.cat(labels))
    return output.loss, output.logits


def our_outputs(model, items):
    """The sum of losses, their number, and logits."""
    batch = pack_items(items, CPU)
    logits = model(batch)
    places = (batch.labels, batch.cu_seqlens, batch.item_starts)
    loss_sum = task_heads.task_loss_sum(model.head, logits, *places)
    return loss_sum, task_heads.count_losses(model.head, batch.labels), logits


def compare(model, theirs, kind):
    items = make_items(kind)
    loss_sum, count, our_logits = our_outputs(model, items)
    their_loss, their_logits = their_outputs(theirs, kind, items)
    torch.testing.assert_close(our_logits, their_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(loss_sum / count, their_loss, rtol=0, atol=1e-5)
    (loss_sum / count).backward()
    their_loss.backward()
    ours, expected = model.bert.embeddings.word.weight, theirs.get_input_embeddings().weight
    torch.testing.assert_close(ours.grad, expected.grad, rtol=0, atol=1e-5)


def load(folder, head):
    opened = open_model(str(folder))
    assert opened.head == head
    return start_model(opened, opened.config, head, seed=77, keeps_head=True).eval()


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_transformers_opens_an_export_whole_and_computes_the_same(kind, pre_norm, tmp_path):
    folder = write_fine_tuned(tmp_path / "out", HEADS[kind], pre_norm=pre_norm)
    name = f"Megatron{CLASSES[kind]}" if pre_norm else CLASSES[kind]
    theirs, loading = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(loading[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert tuple(theirs.config.id2label.values())[: len(HEADS[kind].labels)] == HEADS[kind].labels
    compare(load(folder, HEADS[kind]), theirs.eval(), kind)


@pytest.mark.parametrize("kind", HEADS)
def test_a_folder_that_transformers_saved_opens_here(kind, tmp_path):
    settings = {"num_labels": 1, "problem_type": "regression"} if kind == "regression" else {}
    if HEADS[kind].labels:
        settings["id2label"] = dict(enumerate(HEADS[kind].labels))
        settings["label2id"] = {label: index for index, label in enumerate(HEADS[kind].labels)}
    settings |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings |= {"vocab_size": len(TOKENS), "max_position_embeddings": 40, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = getattr(transformers, CLASSES[kind])(transformers.BertConfig(**settings)).eval()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    compare(load(tmp_path, HEADS[kind]), theirs, kind)


@pytest.mark.parametrize("kind", HEADS)
def test_an_empty_micro_batch_gives_every_parameter_a_gradient_of_zero(kind):
    model = build_task_model(tiny_config(), HEADS[kind], seed=1)
    loss, count, _ = our_outputs(model, [])
    assert (loss.item(), count) == (0.0, 0)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(each is not None and not each.any() for each in gradients)


@pytest.mark.parametrize("kind", HEADS)
def test_micro_batches_add_up(kind):
    model = build_task_model(tiny_config(), HEADS[kind], seed=1).eval()
    items = make_items(kind)
    whole, count, _ = our_outputs(model, items)
    parts = [our_outputs(model, [item]) for item in items]
    assert sum(part[1] for part in parts) == count
    torch.testing.assert_close(sum(part[0] for part in parts), whole, rtol=1e-5, atol=1e-5)


def test_dropout_stands_where_transformers_has_it():
    for kind, head in HEADS.items():
        model = build_task_model(tiny_config(), head, seed=1)
        assert model.dropout.p == (0.0 if kind == "span" else 0.1)
        assert isinstance(model.bert.pooler, torch.nn.Linear) == head.reads_pooled
    assert build_task_model(tiny_config(), Head("regression", dropout=0.3), seed=1).dropout.p == 0.3


def test_a_causal_model_is_pooled_at_its_last_token():
    model = build_task_model(tiny_config(is_causal=True), HEADS["classification"], seed=1).eval()
    one, other = random_sequence(6, 6, 1), random_sequence(6, 6, 2)
    logits = model(pack_items([Item(0, (each,), np.array([0])) for each in (one, other)], CPU))
    assert not torch.allclose(logits[0], logits[1])


def test_new_weights_depend_on_the_seed_and_others_are_kept(tmp_path):
    opened = open_model(str(write_pretrained(tmp_path / "out")))
    rest = (opened, opened.config, HEADS["span"])
    models = [start_model(*rest, seed, keeps_head=False) for seed in (1, 1, 2)]
    first, same, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], same[name]) for name in first)
    differs = [name for name in first if not torch.equal(first[name], other[name])]
    assert differs == ["task_head.weight"]
    name = "bert.layers.1.query.weight"
    assert torch.equal(first[name], opened.state[name])
    assert isinstance(models[0], BertForTask)


def test_folders_that_do_not_fit_are_refused(tmp_path):
    path = write_fine_tuned(tmp_path / "out", HEADS["classification"]) / "config.json"
    settings = json.loads(path.read_text())
    labels = {"0": "no", "1": "yes"}
    for changes, says in (
        ({"problem_type": "multi_label_classification"}, "heads of one label a sequence"),
        ({"id2label": labels}, r"has shape \(3, 32\), config\.json says \(2, 32\)"),
        ({"id2label": {"0": "no", "2": "yes"}}, r"the ids \[0, 2\], expected 0 to 1"),
        ({"architectures": ["BertForQuestionAnswering"]}, r"missing \['qa_outputs.weight', 'qa"),
    ):
        path.write_text(json.dumps(settings | changes))
        with pytest.raises(ValueError, match=says):
            open_model(str(path.parent))
