import pytest
import torch
import transformers

from trainer.cli import main
from trainer.conversion.export import export_hf
from trainer.inference.fill_mask import Candidate, fill_mask, format_candidates, open_mask_filler
from trainer.model.bert import build_model
from trainer.model.config import preset

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "."]
CONFIG = preset("tiny", vocab_size=len(TOKENS), hidden_size=64, max_position_embeddings=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "out"
    model = build_model(CONFIG, seed=5)
    torch.nn.init.normal_(
        model.bert.embeddings.word.weight, generator=torch.Generator().manual_seed(2)
    )
    vocab = "".join(f"{token}\n" for token in TOKENS).encode()
    facts = {"lower_case": True, "provenance": {"tokens_seen": 1_234_567}}
    export_hf(model.state_dict(), CONFIG, vocab, str(path), **facts)
    return path


@pytest.fixture(scope="module")
def filler(folder):
    return open_mask_filler(str(folder))


def test_candidates_are_those_of_transformers(folder, filler):
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer("The [MASK] sat.", return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**batch).prediction_logits[0, 2].softmax(-1).sort(descending=True)
    [found] = fill_mask(filler, "The [MASK] sat.", top_k=4)
    assert [candidate.token for candidate in found] == [
        TOKENS[index] for index in expected.indices[:4]
    ]
    assert [candidate.probability for candidate in found] == pytest.approx(
        expected.values[:4].tolist(), abs=1e-6
    )


def test_several_masks_come_in_reading_order_and_probabilities_sum_to_one(filler):
    found = fill_mask(filler, "[MASK] cat [MASK].", top_k=len(TOKENS))
    assert found[0] != found[1]
    for of_mask in found:
        assert sum(each.probability for each in of_mask) == pytest.approx(1.0, abs=1e-6)
        assert {each.token for each in of_mask} == set(TOKENS)


def test_a_filler_whose_tokenizer_was_used_for_plain_text_still_sees_masks(filler):
    filler.tokenizer.encode_special_tokens = True
    assert len(fill_mask(filler, "the [MASK]")) == 1


@pytest.mark.parametrize(
    ("text", "top_k", "message"),
    [
        ("the cat sat", 5, r"the text has no \[MASK\]: 'the cat sat'; write \[MASK\] where"),
        ("[mask]", 5, r"has no \[MASK\]"),
        ("[MASK] " * 11, 5, "the text has 13 tokens with .* the model reads 12; shorten it"),
        ("[MASK]", 0, "top_k is 0; it must be between 1 and the vocabulary's 10"),
        ("[MASK]", 11, "top_k is 11"),
    ],
)
def test_errors_say_what_to_do(filler, text, top_k, message):
    with pytest.raises(ValueError, match=message):
        fill_mask(filler, text, top_k)


def test_a_folder_without_the_masked_lm_head_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=10, intermediate_size=20, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="masked language model head, so it cannot fill masks"):
        open_mask_filler(str(tmp_path))


def test_a_model_transformers_saved_for_masked_lm_fills_masks(folder, tmp_path):
    transformers.AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    found = fill_mask(open_mask_filler(str(tmp_path)), "The [MASK] sat.")
    assert found == fill_mask(open_mask_filler(str(folder)), "The [MASK] sat.")


def test_the_command_takes_several_texts(folder, capsys):
    assert (
        main(["fill-mask", "--model", str(folder), "the [MASK]", "[MASK] sat", "--top_k", "2"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[3]] == ["the [MASK]", "[MASK] sat"]
    assert len(lines) == 7


def test_format(filler):
    assert filler.tokens_seen == 1_234_567
    cat, end = Candidate("cat", 0.75), Candidate("##s", 0.03125)
    assert format_candidates({"a [MASK]": [[cat, end]]}, 1_234_567) == (
        "cat  0.7500\n##s  0.0312\nThis model has seen 1,234,567 tokens; BERT saw 128 billion."
    )
    assert format_candidates({"a [MASK]": [[cat]], "b [MASK]": [[end]]}, 8) == (
        "a [MASK]\ncat  0.7500\nb [MASK]\n##s  0.0312\nThis model has seen 8 tokens; BERT saw 128 billion."
    )
    assert format_candidates({"[MASK] [MASK]": [[cat], [end]]}, None) == (
        "[MASK] 1\ncat  0.7500\n[MASK] 2\n##s  0.0312\n"
        "This model has seen an unknown number of tokens; BERT saw 128 billion."
    )
