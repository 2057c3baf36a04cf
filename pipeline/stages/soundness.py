"""Finds signs, while a dataset is made, that it will not be the dataset that the user wants.

For example, if the vocabulary is of another language, every word becomes [UNK]. If the text is not
divided into sentences, every pair has a random second segment. Such a dataset would be complete,
and its shards valid, so no other check would find this. An unusual value is reported in one line. A
value that is surely a mistake stops the build, unless a setting allows it.
"""

from collections.abc import Sequence

from pipeline.settings import BuildSettings
from pipeline.shards.instance_kind import SEGMENT_PAIRS
from pipeline.shards.records import Shard
from pipeline.stages.build_tokens import TokenStore
from pipeline.storage.terminal import say
from tokenizer.vocab import Vocabulary

_NUM_SHOWN = 5  # words or characters in one message
_SAID_UNKNOWN = 0.01  # share of [UNK] above which the user is told
_USUAL_RANDOM_NEXT = (0.35, 0.65)
"""google-research/bert makes 56 to 57 % of all second segments random (docs/parity.md 5)."""


def check_tokens(settings: BuildSettings, vocabulary: Vocabulary, store: TokenStore) -> None:
    """Checks the encoded documents before shards are made of them.

    Raises:
        ValueError: The share of [UNK] is above max_unknown, or nearly all documents have only one
            sentence, so that nearly every pair would be random.
    """
    _check_unknown(settings, vocabulary, store)
    sentences = _sentences_per_document(store)
    if settings.instances != SEGMENT_PAIRS:
        return
    if settings.max_random_next < 1 and sentences < _fewest_sentences(settings):
        raise ValueError(
            f"the documents hold {sentences:.2f} sentences on average, so that nearly every second"
            f" segment would be a random one; {_random_cure(settings)}"
        )


def _check_unknown(settings: BuildSettings, vocabulary: Vocabulary, store: TokenStore) -> None:
    """Tells the user if more than 1 % of the tokens are [UNK], with examples of such words.

    Raises:
        ValueError: The share of [UNK] is above max_unknown.
    """
    unknown = store.counters.get("unknown_tokens", 0)
    share = unknown / max(1, store.counters.get("tokens", 0))
    if share <= _SAID_UNKNOWN:
        return

    known = {character for token in vocabulary.tokens for character in token}
    characters = [
        character
        for word in store.unknown_words
        for character in dict.fromkeys(word)
        if character not in known
    ]
    message = f"{share:.1%} of the tokens are [UNK]"
    if store.unknown_words:
        message += f": words such as {', '.join(map(repr, store.unknown_words[:_NUM_SHOWN]))}"
    if characters:
        missing = ", ".join(map(repr, list(dict.fromkeys(characters))[:_NUM_SHOWN]))
        message += f", with characters that no piece has: {missing}"
    if share <= settings.max_unknown:
        say(f"{message}; {_unknown_cure(settings)}")
        return
    raise ValueError(
        f"{message}, more than max_unknown {settings.max_unknown:g}; {_unknown_cure(settings)}; or"
        f" give --max_unknown {min(1.0, share + 0.01):.2f} if it is meant"
    )


def _unknown_cure(settings: BuildSettings) -> str:
    """Returns what to do about many [UNK], for a message."""
    if settings.vocab:
        return "give the vocabulary of text like this, or none to learn one"
    return "raise alphabet_size (Chinese needs some 8,000) or vocab_size"


def _sentences_per_document(store: TokenStore) -> float:
    """Returns the average number of sentences per document, of all documents with their copies."""
    documents = sum(
        source.documents + source.duplicates + sum(source.dropped.values())
        for source in store.totals.sources
    )
    return store.counters.get("sentences", 0) / max(1, documents)


def _fewest_sentences(settings: BuildSettings) -> float:
    """Returns the least average number of sentences per document that max_random_next allows.

    A document of one sentence always gives a pair with a random second segment, and one of two
    sentences does in half of all cases. If all documents have one or two sentences, and s on
    average, at most a share of (s - 1) / 2 of the pairs is not random. If s is less than
    1 + 2 * (1 - max_random_next), this is below 1 - max_random_next.
    """
    return 1 + 2 * (1 - settings.max_random_next)


def _random_cure(settings: BuildSettings) -> str:
    """Returns what to do about many random second segments, for a message."""
    languages = ", ".join(sorted({source.language for source in settings.corpus}))
    return (
        f"look at --language (now {languages}) and at how documents are divided (--format), or give"
        " --instances doc-sentences or --max_random_next 1 and train with --objective mlm, without"
        " next-sentence prediction"
    )


def check_random_next(settings: BuildSettings, store: TokenStore, shards: Sequence[Shard]) -> None:
    """Checks the share of random second segments before a dataset is published.

    Raises:
        ValueError: The share is above max_random_next. The shards stay, so that the same command
            with a higher max_random_next publishes them at once.
    """
    if settings.instances != SEGMENT_PAIRS:
        return
    train = [shard for shard in shards if shard.split == "train"]
    for seq_len in sorted({shard.seq_len for shard in train}):
        same_length = [shard for shard in train if shard.seq_len == seq_len]
        instances = sum(shard.instances for shard in same_length)
        share = sum(shard.random_next for shard in same_length) / max(1, instances)
        least, most = _USUAL_RANDOM_NEXT
        if least <= share <= most:
            continue
        tokens_per_sentence = store.counters["tokens"] / max(1, store.counters["sentences"])
        message = (
            f"L{seq_len}: {share:.1%} of the second segments are random, 56 % are usual: documents"
            f" hold {_sentences_per_document(store):.1f} sentences of"
            f" {tokens_per_sentence:.0f} tokens on average; {_random_cure(settings)}"
        )
        if share > settings.max_random_next:
            raise ValueError(message)
        say(message)
