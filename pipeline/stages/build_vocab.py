"""The vocabulary stage takes a given vocabulary, or learns one from a sample of the input.

The words of the sample are kept in word_counts.parquet. vocab.json, beside vocab.txt, says what the
vocabulary was made of. If the same command is given again, the vocabulary is reused. Other input or
settings are refused.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.documents.parts import InputFile, Part
from pipeline.documents.sources import count_factors
from pipeline.jobs.tokens_job import ReadingRule
from pipeline.jobs.vocab_job import CountingRule, run_vocab_job
from pipeline.settings import BuildSettings, describe_changes
from pipeline.shards.manifest import MANIFEST
from pipeline.shards.records import json_bytes
from pipeline.stages.corpus import VOCAB, read_vocabulary
from pipeline.stages.given_vocabulary import check_vocabulary
from pipeline.stages.publish import remove_unfinished
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object, read_present
from pipeline.storage.secret_values import hide, identify
from pipeline.storage.terminal import say
from pipeline.tokens.token_records import (
    count_by_source,
    find_files_without_text,
    read_records,
    read_word_seals,
    require_finished,
    sum_counters,
)
from pipeline.tokens.word_counts import (
    WORD_COUNTS,
    add_word_seals,
    choose_sample,
    join_tables,
    read_commonest,
)
from tokenizer.export import tokenizer_json
from tokenizer.extend import extend_vocabulary, tokens_per_word
from tokenizer.learn import learn_vocabulary, learn_words
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.word_rule import WordRule

TOKENIZER = "tokenizer.json"
ORIGIN = "vocab.json"
_NUM_NAMED = 8  # files in one message
TOKENS_SETTINGS = "settings.json"
"""The file in the folder of encoded documents that says what decides their content."""
# Keys of vocab.json that are not compared with the settings:
_FILES = "files"  # sizes of the input files, only for messages
_SHA256 = "vocab_txt_sha256"  # hash of the vocabulary that was made
_REMEDY = f"delete {ORIGIN} beside it and run the same command again, which makes the vocabulary"
_MOST_FILES = 10_000  # with more, vocab.json does not list them
COUNTING = "_words"
"""A folder in the output, for the files of the vocabulary job."""


def prepare_vocabulary(
    settings: BuildSettings,
    files: Sequence[InputFile],
    parts: Sequence[Part],
    beam_arguments: Sequence[str],
) -> Vocabulary:
    """Returns the dataset's vocabulary. If there is none yet, makes it.

    A vocabulary that is made is written with tokenizer.json and vocab.json.

    Args:
        settings: Settings of the build.
        files: All files of the input.
        parts: All parts of the input.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: The dataset has a vocabulary of another origin, --vocab is not a BERT
            vocabulary, the input is malformed or without words, or vocab_size does not hold its
            alphabet.
    """
    folder = settings.open_output()
    origin = _origin(settings, files)
    if folder.exists(ORIGIN):
        origin_before = read_object(folder, ORIGIN, _REMEDY)
        _refuse_other_origin(settings, origin_before, origin, files)
        return _read_made(folder, origin_before)

    _remove_counting(folder)  # a killed build may have left files there
    if settings.vocab:
        vocabulary = read_vocabulary(settings, settings.vocab)
        check_vocabulary(vocabulary, settings.word_rule, settings.vocab)
    else:
        vocabulary = _learn(settings, parts, folder, beam_arguments)
    _remove_other_work(settings, vocabulary)
    folder.write(VOCAB, vocabulary.to_text().encode())
    write_tokenizer(folder, vocabulary, settings.word_rule)
    notes = {_FILES: _sizes(files), _SHA256: vocabulary.sha256}
    folder.write(ORIGIN, json_bytes(origin | notes))
    return vocabulary


def _read_made(folder: Folder, origin: Mapping[str, Any]) -> Vocabulary:
    """Reads the vocab.txt that an earlier launch made, and checks its hash.

    Args:
        folder: The folder of the dataset.
        origin: The content of vocab.json.

    Raises:
        ValueError: vocab.txt is not the vocabulary that vocab.json describes.
    """
    where = folder.locate(VOCAB)
    vocabulary = parse_vocab(read_present(folder, VOCAB, _REMEDY), where)
    expected = origin.get(_SHA256, vocabulary.sha256)  # earlier versions wrote no hash
    if vocabulary.sha256 != expected:
        raise ValueError(
            f"{where} is not the vocabulary that {ORIGIN} speaks of: its sha256 is"
            f" {vocabulary.sha256}, expected {expected}; restore it, or {_REMEDY}"
        )
    return vocabulary


def _remove_other_work(settings: BuildSettings, vocabulary: Vocabulary) -> None:
    """Removes shards and token parts of another vocabulary, left by an unfinished build.

    Encoded documents in a folder of their own (`--tokens`) stay, as they may belong to another
    dataset too.
    """
    folder = settings.open_output()
    if folder.exists(MANIFEST) or settings.tokens:
        return
    tokens = settings.open_tokens()
    if not tokens.exists(TOKENS_SETTINGS):
        return
    content = read_object(tokens, TOKENS_SETTINGS, f"delete {tokens.locate()} and run again")
    if content.get("vocab_sha256") != vocabulary.sha256:
        remove_unfinished(folder)
        tokens.remove([name for name in tokens.list() if name != TOKENS_SETTINGS])
        # Last, because after a kill this file is the sign that others may be left.
        tokens.remove([TOKENS_SETTINGS])


def _refuse_other_origin(
    settings: BuildSettings,
    content: Mapping[str, Any],
    origin: Mapping[str, Any],
    files: Sequence[InputFile],
) -> None:
    """Raises ValueError if the dataset's vocabulary was made of something else.

    Args:
        settings: Settings of the build.
        content: The content of vocab.json.
        origin: The result of `_origin` for the settings and the input of this launch.
        files: All files of the input of this launch.
    """
    before = {key: value for key, value in content.items() if key not in (_FILES, _SHA256)}
    if before == origin:
        return
    # A changed hash of the input would say nothing to a person, so changed files are named.
    changes = [describe_changes(before | {"input": 0}, {**origin, "input": 0})]
    if before.get("input") != origin.get("input"):
        changes.append(_describe_files(content.get(_FILES) or {}, _sizes(files)))
    remedy = "give the same settings and input, or another --output"
    output = settings.open_output()
    if not output.exists(MANIFEST):
        also = f" and {settings.tokens}" if settings.tokens else ""
        remedy += (
            "; or begin again, as no dataset is finished there: delete"
            f" {output.locate(ORIGIN)}{also}, and the same command does the rest"
        )
    described = ", ".join(filter(None, changes))
    raise ValueError(f"{settings.output} holds a vocabulary made otherwise: {described}; {remedy}")


def _sizes(files: Sequence[InputFile]) -> dict[str, int]:
    """Returns the sizes of files in bytes by their URLs.

    The result is empty if there are more than _MOST_FILES, so that vocab.json stays small.
    """
    if len(files) > _MOST_FILES:
        return {}
    return {hide(file.url): file.size for file in files}


def _describe_files(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Describes for a message which input files are gone, new or of another size.

    Args:
        before: The sizes of the files of an earlier launch in bytes, by URL; empty if they are not
            known.
        now: The sizes of the files of this launch in bytes, by URL; empty if they are not known.
    """
    if not (before and now):
        return "other input files"
    changes = [f"{url} is gone" for url in before.keys() - now.keys()]
    changes += [f"{url} is new" for url in now.keys() - before.keys()]
    changes += [
        f"{url} had {before[url]:,} bytes and has {now[url]:,}"
        for url in before.keys() & now.keys()
        if before[url] != now[url]
    ]
    return ", ".join(sorted(changes)[:_NUM_NAMED]) + ", ..." * (len(changes) > _NUM_NAMED)


def write_tokenizer(folder: Folder, vocabulary: Vocabulary, rule: WordRule) -> None:
    """Writes tokenizer.json, unless it is there with the same bytes."""
    data = tokenizer_json(vocabulary, rule).encode()
    if not folder.exists(TOKENIZER) or folder.read(TOKENIZER) != data:
        folder.write(TOKENIZER, data)


def _origin(settings: BuildSettings, files: Sequence[InputFile]) -> dict[str, Any]:
    """Returns what decides the vocabulary, which vocab.json stores.

    For a vocabulary that the user gave, this is its hash and the rule that divides text into words.
    For one that is learned, it is a hash of the names and sizes of the input files, and the
    settings for reading and learning. Newer settings are left out if they have their default
    values, so that the vocab.json of an earlier version still matches.
    """
    if settings.vocab:
        vocabulary = read_vocabulary(settings, settings.vocab)
        return {"vocab_sha256": vocabulary.sha256, **settings.word_rule.content()}
    listing = "".join(f"{identify(file.url)} {file.size}\n" for file in files)
    origin: dict[str, Any] = {
        "input": hashlib.blake2b(listing.encode(), digest_size=16).hexdigest(),
        "vocab_size": settings.vocab_size,
        "num_unused": settings.num_unused,
        **settings.word_rule.content(),
        **settings.filter_rule.content(),
    }
    if settings.extend:
        origin["extend_sha256"] = read_vocabulary(settings, settings.extend).sha256
    if settings.vocab_entries != BuildSettings.vocab_entries:
        origin["vocab_entries"] = settings.vocab_entries
    if settings.alphabet_size != BuildSettings.alphabet_size:
        origin["alphabet_size"] = settings.alphabet_size
    readings = [source.reading() for source in settings.corpus]
    for reading in readings:
        reading.pop("language", None)  # decides how sentences are split, which changes no word
    if len(readings) == 1:
        return origin | readings[0]

    factors = count_factors([source.millionths for source in settings.corpus])
    num_files = Counter(file.source for file in files)
    sources = [
        reading | {"files": num_files[number], "counts_times": factor}
        for number, (reading, factor) in enumerate(zip(readings, factors, strict=True))
    ]
    return origin | {"sources": sources}


def reading_rule(settings: BuildSettings) -> ReadingRule:
    """Returns how documents are read under these settings."""
    return ReadingRule(
        text_fields=tuple(source.text_field for source in settings.corpus),
        on_bad_document=settings.on_bad_document,
        max_characters=settings.part_bytes,
        storage_options=settings.filesystem_options(),
    )


def make_vocabulary(
    settings: BuildSettings, words: Sequence[str], counts: Sequence[int]
) -> Vocabulary:
    """Makes a vocabulary from counted words.

    If `vocab_entries` is "words", its entries are the commonest words. Otherwise pieces of words
    are learned, or, if `extend` names a vocabulary, are added to that one.

    Args:
        settings: Settings of the build.
        words: Distinct words.
        counts: How often each word occurs.

    Raises:
        ValueError: vocab_size is too small, or the vocabulary to extend is malformed.
    """
    vocab_size = settings.vocab_size
    num_unused = settings.num_unused
    if settings.vocab_entries == "words":
        return learn_words(words, counts, vocab_size, num_unused)
    if settings.extend is None:
        return learn_vocabulary(words, counts, vocab_size, num_unused, settings.alphabet_size)
    old = read_vocabulary(settings, settings.extend)
    return extend_vocabulary(old, words, counts, vocab_size, num_unused, settings.word_rule)


class _CountedWords(NamedTuple):
    """The result of the vocabulary job.

    Attributes:
        counters: Sums of the counters in the job's records, such as of documents.
        table: All words and their counts, as a Parquet file.
        without_text: URLs of input files that gave no text.
    """

    counters: Mapping[str, int]
    table: bytes
    without_text: list[str]


def _learn(
    settings: BuildSettings, parts: Sequence[Part], folder: Folder, beam_arguments: Sequence[str]
) -> Vocabulary:
    """Counts the words of a sample, and learns a vocabulary from them or extends one.

    It prints how many words there are. Then it prints what an extension has gained, or that the
    input has fewer pieces than vocab_size.

    Args:
        settings: Settings of the build.
        parts: All parts of the input.
        folder: The folder of the dataset, which receives word_counts.parquet.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: The input has no words, or vocab_size is too small.
    """
    counted = _count_words(settings, parts, folder, beam_arguments)
    folder.write(WORD_COUNTS, counted.table)
    words, counts = read_commonest(counted.table)
    num_counted = counted.counters.get("documents_counted", 0)
    num_read = counted.counters.get("documents_read", 0)
    sample = f"{num_counted:,} of {num_read:,} documents"
    if not words:
        urls = ", ".join(counted.without_text[:_NUM_NAMED])
        silent = f"; no text came from {urls}" if urls else ""
        raise ValueError(
            f"no word was found in {sample}{silent}; expected text to learn from, or --vocab FILE"
        )

    action = f"learning {settings.vocab_size:,} pieces"
    if settings.extend:
        action = f"extending {settings.extend}"
    say(f"vocabulary: {action} from {len(words):,} words of {sample}")
    vocabulary = make_vocabulary(settings, words, counts)
    if settings.extend:
        _say_gain(settings, read_vocabulary(settings, settings.extend), vocabulary, words, counts)
    elif len(vocabulary) < settings.vocab_size:
        say(
            f"the input holds {len(vocabulary)} distinct pieces, fewer than vocab_size"
            f" {settings.vocab_size}"
        )
    return vocabulary


def _say_gain(
    settings: BuildSettings,
    old: Vocabulary,
    new: Vocabulary,
    words: Sequence[str],
    counts: Sequence[int],
) -> None:
    """Prints how many pieces an extension of a vocabulary added, and what they save.

    They save tokens: the line has the average number of tokens of a word of the sample, before and
    after.

    Args:
        settings: Settings of the build.
        old: The vocabulary that was extended.
        new: The extended vocabulary.
        words: Words of the sample.
        counts: How often each word occurs.
    """
    pairs = zip(old.tokens, new.tokens, strict=False)
    replaced = sum(old_token != new_token for old_token, new_token in pairs)
    before = tokens_per_word(old, words, counts, settings.word_rule)
    after = tokens_per_word(new, words, counts, settings.word_rule)
    say(
        f"vocabulary: {replaced:,} [unusedN] hold new pieces, {len(new) - len(old):,} follow the"
        f" {len(old):,} lines; a word of the sample takes {after:.3f} tokens, {before:.3f} before"
    )
    if not replaced and len(new) == len(old):
        say(
            f"vocabulary: nothing was added: raise vocab_size {settings.vocab_size} above"
            f" {len(old)} to append"
        )


def _count_words(
    settings: BuildSettings, parts: Sequence[Part], output: Folder, beam_arguments: Sequence[str]
) -> _CountedWords:
    """Runs the vocabulary job, which counts the words in a sample of the input."""
    folder = output / COUNTING
    sample = choose_sample(parts)
    num_bits = {part.key: bits for part, bits in sample.items() if bits}
    factors = count_factors([source.millionths for source in settings.corpus])
    rule = CountingRule(
        reading=reading_rule(settings),
        filter=settings.filter_rule,
        num_bits=num_bits,
        words=settings.word_rule,
        factors=factors,
    )
    run_vocab_job(list(sample), rule, folder, settings.workers, beam_arguments)

    names = require_finished(folder.list(), list(sample), folder.locate())
    records = read_records(folder, names)
    seals = add_word_seals(read_word_seals(record, folder.locate()) for record in records)
    table = join_tables(folder, seals)
    _remove_counting(output)
    without_text = [url for url, _ in find_files_without_text(records, list(sample))]
    return _CountedWords(sum_counters(count_by_source(records)), table, without_text)


def _remove_counting(folder: Folder) -> None:
    """Removes the files of the vocabulary job from the folder of a dataset."""
    folder.remove([f"{COUNTING}/{name}" for name in (folder / COUNTING).list()])
