"""`fill-mask`: what transformers says of the same texts, and what is refused."""

import dataclasses

import pytest
import torch
import transformers

from tests.trainer.lettered_model import CONFIG, TOKENS, export_lettered_model
from trainer.inference.ask import Candidate, fill_mask, format_candidates
from trainer.inference.open_model import open_model


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return open_model(str(export_lettered_model(tmp_path_factory.mktemp("model") / "hf")))


def test_candidates_are_those_of_transformers(opened):
    theirs = transformers.BertForPreTraining.from_pretrained(opened.where).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(opened.where)
    with torch.no_grad():
        logits = theirs(**tokenizer("The [MASK] sat.", return_tensors="pt")).prediction_logits
    expected = logits[0, 2].softmax(-1).sort(descending=True)
    [[found]] = fill_mask(opened, ["The [MASK] sat."], top_k=4)
    assert [each.token for each in found] == [TOKENS[index] for index in expected.indices[:4]]
    probabilities = expected.values[:4].tolist()
    assert [each.probability for each in found] == pytest.approx(probabilities, abs=1e-6)


def test_several_masks_come_in_reading_order_and_probabilities_sum_to_one(opened):
    [found] = fill_mask(opened, ["[MASK] cat [MASK]."], top_k=len(TOKENS))
    assert found[0] != found[1]
    for of_mask in found:
        assert sum(each.probability for each in of_mask) == pytest.approx(1.0, abs=1e-6)
        assert {each.token for each in of_mask} == set(TOKENS)


@pytest.mark.parametrize(
    ("text", "top_k", "message"),
    [
        ("the cat sat", 5, r"the text has no \[MASK\]: 'the cat sat'; write \[MASK\] where"),
        ("[mask]", 5, r"has no \[MASK\]"),
        ("[MASK] " * 39, 5, "has 41 tokens with .* the model reads 40; shorten it"),
        ("[MASK]", 0, f"top_k is 0; it must be between 1 and the vocabulary's {len(TOKENS)}"),
        ("[MASK]", 99, "top_k is 99"),
        ("caf\udce9 [MASK]", 5, r"the text is not UTF-8: 'caf\\udce9 \[MASK\]'; set the terminal"),
    ],
)
def test_errors_say_what_to_do(opened, text, top_k, message):
    with pytest.raises(ValueError, match=message):
        fill_mask(opened, [text], top_k)


def test_models_that_cannot_fill_masks_are_refused(opened):
    headless = {name: opened.state[name] for name in opened.state if "mlm_head" not in name}
    with pytest.raises(ValueError, match="masked language model head, so it cannot fill masks"):
        fill_mask(dataclasses.replace(opened, state=headless), ["[MASK]"])
    causal = dataclasses.replace(opened, config=dataclasses.replace(CONFIG, is_causal=True))
    with pytest.raises(ValueError, match="was trained left to right"):
        fill_mask(causal, ["[MASK]"])
    maskless = opened.tokenizer_file.replace(b"[MASK]", b"[BLANK]")
    without_mask = dataclasses.replace(opened, tokenizer_file=maskless, vocab=None)
    with pytest.raises(ValueError, match=r"its tokenizer has no \[MASK\], .* give another model"):
        fill_mask(without_mask, ["[MASK]"])


def test_format():
    cat, end = Candidate("cat", 0.75), Candidate("##s", 0.03125)
    assert format_candidates({"a [MASK]": [[cat, end]]}, 1_234_567) == (
        "cat  0.7500\n##s  0.0312\nThis model has seen 1,234,567 tokens; BERT saw 128 billion."
    )
    two = format_candidates({"a [MASK]": [[cat]], "b [MASK]": [[end]]}, 8)
    assert two.splitlines()[:4] == ["a [MASK]", "cat  0.7500", "b [MASK]", "##s  0.0312"]
    assert format_candidates({"[MASK] [MASK]": [[cat], [end]]}, None) == (
        "[MASK] 1\ncat  0.7500\n[MASK] 2\n##s  0.0312\n"
        "This model has seen an unknown number of tokens; BERT saw 128 billion."
    )
