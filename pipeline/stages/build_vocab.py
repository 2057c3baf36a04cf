"""The vocabulary stage: takes a vocabulary, or learns one from a sample of the input's documents.

The words of the sample stay in word_counts.parquet. vocab.json beside vocab.txt says what the
vocabulary was made of, so that running again reuses it and other input is refused.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
from tokenizer.extend import extend_vocabulary, tokens_a_word
from tokenizer.learn import learn_vocabulary, learn_words
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.word_rule import WordRule

TOKENIZER = "tokenizer.json"
ORIGIN = "vocab.json"
_NUM_NAMED = 8
TOKENS_SETTINGS = "settings.json"
"""In the folder of encoded documents: what decides their content."""
_FILES = "files"  # of vocab.json: says what changed, and decides nothing
_SHA256 = "vocab_txt_sha256"  # of vocab.json: of the vocabulary that was made
_REMEDY = f"delete {ORIGIN} beside it and run the same command again, which makes the vocabulary"
_MOST_FILES = 10_000
_COUNTING = "_words"  # what the job leaves while it runs


def prepare_vocabulary(
    settings: BuildSettings,
    files: Sequence[InputFile],
    parts: Sequence[Part],
    beam_arguments: Sequence[str],
) -> Vocabulary:
    """Reuses the dataset's vocabulary, or makes it with tokenizer.json and vocab.json.

    Raises:
        ValueError: The dataset has a vocabulary of another origin, --vocab is not a BERT
            vocabulary, the input is malformed or without words, or vocab_size does not hold its
            alphabet.
    """
    folder = settings.open_output()
    origin = _origin(settings, files)
    if folder.exists(ORIGIN):
        found = read_object(folder, ORIGIN, _REMEDY)
        _refuse_other_origin(settings, found, origin, files)
        return _read_own(folder, found)
    _remove_counting(folder)  # a killed build may have left some
    if settings.vocab:
        vocabulary = read_vocabulary(settings, settings.vocab)
        check_vocabulary(vocabulary, settings.word_rule, settings.vocab)
    else:
        vocabulary = _learn(settings, parts, folder, beam_arguments)
    _remove_other_work(settings, vocabulary)
    folder.write(VOCAB, vocabulary.to_text().encode())
    write_tokenizer(folder, vocabulary, settings.word_rule)
    told = {_FILES: _sizes(files), _SHA256: vocabulary.sha256}
    folder.write(ORIGIN, json_bytes(origin | told))
    return vocabulary


def _read_own(folder: Folder, origin: Mapping[str, Any]) -> Vocabulary:
    """Reads the output's vocab.txt, and compares it with the hash in vocab.json.

    Raises:
        ValueError: It is another vocabulary.
    """
    where = folder.locate(VOCAB)
    vocabulary = parse_vocab(read_present(folder, VOCAB, _REMEDY), where)
    expected = origin.get(_SHA256, vocabulary.sha256)  # earlier versions did not say it
    if vocabulary.sha256 != expected:
        raise ValueError(
            f"{where} is not the vocabulary that {ORIGIN} speaks of: its sha256 is"
            f" {vocabulary.sha256}, expected {expected}; restore it, or {_REMEDY}"
        )
    return vocabulary


def _remove_other_work(settings: BuildSettings, vocabulary: Vocabulary) -> None:
    """Removes the files of an unfinished build with another vocabulary from the output.

    Encoded documents in another folder (`--tokens`) stay, as they may belong to another dataset
    too.
    """
    folder = settings.open_output()
    if folder.exists(MANIFEST) or settings.tokens:
        return
    tokens = settings.open_tokens()
    if not tokens.exists(TOKENS_SETTINGS):
        return
    found = read_object(tokens, TOKENS_SETTINGS, f"delete {tokens.locate()} and run again")
    if found.get("vocab_sha256") != vocabulary.sha256:
        remove_unfinished(folder)
        tokens.remove([name for name in tokens.list() if name != TOKENS_SETTINGS])
        tokens.remove([TOKENS_SETTINGS])  # last, so that a kill loses no count of what is there


def _refuse_other_origin(
    settings: BuildSettings,
    found: Mapping[str, Any],
    origin: Mapping[str, Any],
    files: Sequence[InputFile],
) -> None:
    known = {key: value for key, value in found.items() if key not in (_FILES, _SHA256)}
    if known == origin:
        return
    changed = [describe_changes(known | {"input": 0}, {**origin, "input": 0})]
    if known.get("input") != origin.get("input"):
        changed.append(_describe_files(found.get(_FILES) or {}, _sizes(files)))
    remedy = "give the same settings and input, or another --output"
    output = settings.open_output()
    if not output.exists(MANIFEST):
        also = f" and {settings.tokens}" if settings.tokens else ""
        remedy += (
            "; or begin again, as no dataset is finished there: delete"
            f" {output.locate(ORIGIN)}{also}, and the same command does the rest"
        )
    said = ", ".join(filter(None, changed))
    raise ValueError(f"{settings.output} holds a vocabulary made otherwise: {said}; {remedy}")


def _sizes(files: Sequence[InputFile]) -> dict[str, int]:
    """Bytes of the files by their URLs, for messages; none where they are too many."""
    return {hide(file.url): file.size for file in files} if len(files) <= _MOST_FILES else {}


def _describe_files(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    if not (before and now):
        return "other input files"
    said = [f"{url} is gone" for url in before.keys() - now.keys()]
    said += [f"{url} is new" for url in now.keys() - before.keys()]
    said += [
        f"{url} had {before[url]:,} bytes and has {now[url]:,}"
        for url in before.keys() & now.keys()
        if before[url] != now[url]
    ]
    return ", ".join(sorted(said)[:_NUM_NAMED]) + ", ..." * (len(said) > _NUM_NAMED)


def write_tokenizer(folder: Folder, vocabulary: Vocabulary, rule: WordRule) -> None:
    """Writes tokenizer.json, unless the very bytes are there."""
    data = tokenizer_json(vocabulary, rule).encode()
    if not folder.exists(TOKENIZER) or folder.read(TOKENIZER) != data:
        folder.write(TOKENIZER, data)


def _origin(settings: BuildSettings, files: Sequence[InputFile]) -> dict[str, Any]:
    """What decides the vocabulary: the given file, or the input and how it is learned."""
    if settings.vocab:
        given = read_vocabulary(settings, settings.vocab)
        return {"vocab_sha256": given.sha256, **settings.word_rule.content()}
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
    reading = [source.reading() for source in settings.corpus]
    for each in reading:
        each.pop("language", None)  # which only splits sentences
    if len(reading) == 1:
        return origin | reading[0]
    factors = count_factors([source.millionths for source in settings.corpus])
    numbers = Counter(file.source for file in files)
    rows = zip(reading, factors, strict=True)
    return origin | {
        "sources": [
            row | {"files": numbers[number], "counts_times": factor}
            for number, (row, factor) in enumerate(rows)
        ]
    }


def reading_rule(settings: BuildSettings) -> ReadingRule:
    """How documents are read by these settings."""
    text_fields = tuple(source.text_field for source in settings.corpus)
    options = settings.filesystem_options()
    return ReadingRule(text_fields, settings.on_bad_document, settings.part_bytes, options)


def make_vocabulary(
    settings: BuildSettings, words: Sequence[str], counts: Sequence[int]
) -> Vocabulary:
    """Learns a vocabulary from counted words, or extends the one that is given."""
    size = settings.vocab_size, settings.num_unused
    if settings.vocab_entries == "words":
        return learn_words(words, counts, *size)
    if settings.extend is None:
        return learn_vocabulary(words, counts, *size, settings.alphabet_size)
    old = read_vocabulary(settings, settings.extend)
    return extend_vocabulary(old, words, counts, *size, settings.word_rule)


def _learn(
    settings: BuildSettings, parts: Sequence[Part], folder: Folder, beam_arguments: Sequence[str]
) -> Vocabulary:
    counters, table, silent = _count_words(settings, parts, folder, beam_arguments)
    folder.write(WORD_COUNTS, table)
    words, counts = read_commonest(table)
    counted, read = (counters.get(f"documents_{name}", 0) for name in ("counted", "read"))
    sampled = f"{counted:,} of {read:,} documents"
    if not words:
        said = f"; no text came from {', '.join(silent[:_NUM_NAMED])}" if silent else ""
        raise ValueError(
            f"no word was found in {sampled}{said}; expected text to learn from, or --vocab FILE"
        )
    asked = f"learning {settings.vocab_size:,} pieces"
    if settings.extend:
        asked = f"extending {settings.extend}"
    say(f"vocabulary: {asked} from {len(words):,} words of {sampled}")
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
    replaced = sum(before != after for before, after in zip(old.tokens, new.tokens, strict=False))
    before, after = (tokens_a_word(each, words, counts, settings.word_rule) for each in (old, new))
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
) -> tuple[Mapping[str, int], bytes, list[str]]:
    """What was read and counted, the table of all words, and files without text."""
    folder = output / _COUNTING
    sample = choose_sample(parts)
    num_bits = {part.key: bits for part, bits in sample.items() if bits}
    factors = count_factors([source.millionths for source in settings.corpus])
    reading, filters = reading_rule(settings), settings.filter_rule
    rule = CountingRule(reading, filters, num_bits, settings.word_rule, factors)
    run_vocab_job(list(sample), rule, folder, settings.workers, beam_arguments)
    records = require_finished(folder.list(), list(sample), folder.locate())
    told = read_records(folder, records)
    seals = add_word_seals(read_word_seals(each, folder.locate()) for each in told)
    table = join_tables(folder, seals)
    _remove_counting(output)
    silent = [url for url, _ in find_files_without_text(told, list(sample))]
    return sum_counters(count_by_source(told)), table, silent


def _remove_counting(folder: Folder) -> None:
    folder.remove([f"{_COUNTING}/{name}" for name in (folder / _COUNTING).list()])
