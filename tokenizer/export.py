"""Makes the files from which `tokenizers` and `transformers` open a trained model's tokenizer."""

import json
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing

from tokenizer.vocab import CLS, CONTINUATION, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary
from tokenizer.word_rule import WordRule
from tokenizer.wordpiece import MAX_WORD_CHARACTERS


def build_tokenizer(vocab: Vocabulary, rule: WordRule) -> Tokenizer:
    """Returns the tokenizer for users of a trained model.

    It adds [CLS] and [SEP], and makes the mask token of "[MASK]" in a text. Words of up to 200
    characters are cut into pieces, as in google-research/bert; the library's default is 100.

    Args:
        vocab: The vocabulary.
        rule: How a text becomes words.
    """
    limit = MAX_WORD_CHARACTERS
    model = WordPiece(dict(vocab.ids), unk_token=UNK, max_input_chars_per_word=limit)
    tokenizer = Tokenizer(model)
    normalizer = rule.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, vocab.cls_id), (SEP, vocab.sep_id)],
    )
    tokenizer.decoder = WordPieceDecoder(prefix=CONTINUATION)
    specials = [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(specials)
    return tokenizer


@lru_cache(maxsize=4)  # a build asks three times, and making it takes 10 ms
def tokenizer_json(vocab: Vocabulary, rule: WordRule) -> str:
    """Returns the content of tokenizer.json. Equal arguments give equal bytes."""
    return build_tokenizer(vocab, rule).to_str(pretty=True)


def tokenizer_config_json(vocab: Vocabulary, rule: WordRule, max_length: int) -> str:
    """Returns the content of tokenizer_config.json for `transformers.AutoTokenizer`.

    The file names `PreTrainedTokenizerFast` as the class of the tokenizer, because this class uses
    tokenizer.json as it is. `BertTokenizer` of transformers 5 would build a tokenizer of its own
    from the vocabulary, and make [UNK] of words with more than 100 characters.

    Args:
        vocab: The vocabulary.
        rule: How a text becomes words.
        max_length: The most tokens of a text that the model takes.
    """
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    special = {"content": "", **flags, "special": True}
    added = {str(vocab.ids[token]): special | {"content": token} for token in SPECIAL_TOKENS}
    config = {
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "cls_token": CLS,
        "do_lower_case": rule.lower_case,
        "mask_token": MASK,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": max_length,
        "pad_token": PAD,
        "sep_token": SEP,
        "strip_accents": None,
        "tokenize_chinese_chars": not rule.keeps_words,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNK,
    }
    return json.dumps(config, indent=2) + "\n"
