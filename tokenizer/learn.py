"""Learns a WordPiece vocabulary from texts.

May import the standard library, tokenizers, and this room's `export` and `vocab`.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.vocab import CLS, CONTINUATION, MASK, PAD, SEP, UNK, Vocabulary

MAX_ALPHABET = 1000
"""Characters kept, the commonest first; a word with another one is [UNK]."""


def learn_vocabulary(texts: Iterable[str], vocab_size: int, lower_case: bool, num_unused: int = 0) -> Vocabulary:
    """Vocabulary of `vocab_size` tokens in the order of BERT's: [PAD], [unused0]..., [UNK] [CLS] [SEP] [MASK], pieces.

    The merges are byte-pair encoding's, by the trainer of `tokenizers`, which breaks ties between equally common
    pairs differently from run to run. Special tokens' strings in the texts are plain text.

    Args:
        texts: Raw text in any pieces, read once, as a stream.
        vocab_size: Number of tokens; a text too small to have so many distinct pieces gives fewer: look at `len`.
        lower_case: Whether the vocabulary is for text without case and accents.
        num_unused: Number of [unusedN] tokens to set aside (BERT's published vocabularies have 99 there).

    Raises:
        ValueError: `vocab_size` does not hold the special tokens, the unused ones and the texts' alphabet.
    """
    specials = [PAD, *(f"[unused{n}]" for n in range(num_unused)), UNK, CLS, SEP, MASK]
    tokenizer = Tokenizer(WordPiece(unk_token=UNK))
    tokenizer.normalizer = build_normalizer(lower_case)
    tokenizer.pre_tokenizer = build_pre_tokenizer()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        limit_alphabet=MAX_ALPHABET,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    if len(ids) > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {len(specials)} special and unused tokens and the texts' alphabet "
            f"alone make {len(ids)}; raise vocab_size or lower num_unused={num_unused}"
        )
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)))
