import json

import pytest
from tokenizers import Tokenizer

from tokenizer.export import build_tokenizer, tokenizer_config_json, tokenizer_json
from tokenizer.vocab import SPECIAL_TOKENS
from tokenizer.word_rule import UNCASED, WordRule

TEXTS = ["The cats sat on [MASK], unaffable!", "", "É中国 [SEP] \ue000", "a" * 150, "a" * 201]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def lower_case(request):
    return request.param


@pytest.fixture(scope="module")
def opened(tmp_path_factory, small_vocab, lower_case):
    """The exported files as transformers opens them next to a BERT model."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_text(small_vocab.to_text())
    (folder / "tokenizer.json").write_text(tokenizer_json(small_vocab, WordRule(lower_case)))
    settings = tokenizer_config_json(small_vocab, WordRule(lower_case), max_length=512)
    (folder / "tokenizer_config.json").write_text(settings)
    config = {"model_type": "bert", "vocab_size": len(small_vocab)}
    (folder / "config.json").write_text(json.dumps(config))
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_gives_the_same_ids(opened, small_vocab, lower_case, text):
    encoding = build_tokenizer(small_vocab, WordRule(lower_case)).encode(text, "on the mat")
    batch = opened(text, "on the mat")
    assert batch["input_ids"] == encoding.ids
    assert batch["token_type_ids"] == encoding.type_ids
    assert batch["attention_mask"] == encoding.attention_mask


def test_transformers_knows_the_specials(opened, small_vocab):
    assert opened.mask_token == "[MASK]"
    ids = [getattr(opened, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")]
    assert ids == [0, 1, 2, 3, 4]
    assert sorted(opened.all_special_ids) == [0, 1, 2, 3, 4]
    assert opened.model_max_length == 512
    assert len(opened) == len(small_vocab)


def test_a_pair_and_its_decoding(small_vocab):
    tokenizer = build_tokenizer(small_vocab, UNCASED)
    encoding = tokenizer.encode("The cats", "sat on [MASK]")
    assert " ".join(encoding.tokens) == "[CLS] the cat ##s [SEP] sat on [MASK] [SEP]"
    assert encoding.type_ids == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert tokenizer.decode(encoding.ids) == "the cats sat on"


def test_the_file_is_the_tokenizer(small_vocab, lower_case):
    text = tokenizer_json(small_vocab, WordRule(lower_case))
    assert text == tokenizer_json(small_vocab, WordRule(lower_case))
    content = json.loads(text)
    assert content["model"]["max_input_chars_per_word"] == 200
    assert [token["content"] for token in content["added_tokens"]] == list(SPECIAL_TOKENS)
    assert Tokenizer.from_str(text).get_vocab() == small_vocab.ids
