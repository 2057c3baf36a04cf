"""Estimates what a build will make (`build --plan true`) from some MB of its input.

Nothing is written.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pipeline.documents import Document
from pipeline.documents.counts import format_mean
from pipeline.documents.files import Meter
from pipeline.documents.formats import is_plain, may_be_cut
from pipeline.documents.parts import Part
from pipeline.documents.read import read_part
from pipeline.documents.source import UNIT
from pipeline.documents.sources import apply_weights, count_factors
from pipeline.instances.build_bucket import InstanceRule, build_bucket, gather_documents
from pipeline.machine import this_machine
from pipeline.pages.render import format_bytes
from pipeline.settings import BuildSettings
from pipeline.shards.seal import seal_documents
from pipeline.shards.shard_file import pack_shard
from pipeline.stages.build_tokens import open_task_texts
from pipeline.stages.build_vocab import make_vocabulary
from pipeline.stages.corpus import VOCAB, read_vocabulary
from pipeline.storage.secret_values import hide
from pipeline.text.filters import DocumentFilter
from pipeline.text.task_texts import WindowFinder
from pipeline.tokens.buckets import choose_num_buckets, num_prefixes
from pipeline.tokens.document_lists import (
    DocumentList,
    clean_documents,
    encode_documents,
    filter_documents,
    find_task_texts,
    group_documents,
    split_documents,
)
from pipeline.tokens.held_out import wanted_tokens
from pipeline.tokens.provenance import pack_places
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents
from tokenizer.encode import Encoder
from tokenizer.vocab import Vocabulary
from tokenizer.words import count_words

_NUM_PLACES = 8
_SAMPLE_BYTES = 4 * 2**20  # of a source
_LONG_PARTS = 8  # a file that cannot be cut and is longer than this many parts is warned of

RuleFor = Callable[[BuildSettings, Vocabulary, int], InstanceRule]
"""Returns how instances of one length are made: `pipeline.stages.build_shards.instance_rule`."""


@dataclass(frozen=True)
class PlannedRead:
    """One place in the input at which the sample is read.

    Attributes:
        part: The part whose beginning is read.
        stands_for: The number of bytes of the input, as stored, that this beginning represents.
        num_bytes: How much to read, in bytes if the part is plain text. For other parts it is the
            number of characters that the texts of the documents have.
    """

    part: Part
    stands_for: int
    num_bytes: int


@dataclass
class Place:
    """The documents that were read at one place of the input.

    Attributes:
        source: Number of their source.
        stands_for: The number of bytes of the input, as stored, that these documents represent.
        scale: The number of documents of the input that each document here represents: `stands_for`
            divided by the number of stored bytes that were read, and more if `_drop_empty_places`
            dropped other places of the source. 0 if nothing was read.
        cleaned: The documents, cleaned and filtered.
        documents: The same documents encoded; empty until `_encode_places` fills it.
    """

    source: int
    stands_for: int
    scale: float
    cleaned: DocumentList[Document]
    documents: list[TokenizedDocument] = field(default_factory=list)


@dataclass(frozen=True)
class InputCounts:
    """Estimated size of the whole input, before copies of documents are dropped.

    Attributes:
        documents: For each source, the number of its documents.
        cleaned_bytes: For each source, the bytes of its cleaned text as UTF-8.
        tokens: For each source, the number of its tokens.
    """

    documents: list[int]
    cleaned_bytes: list[int]
    tokens: list[int]


class LengthPlan(NamedTuple):
    """Estimate of the train shards of one length in one pass.

    Attributes:
        seq_len: The length.
        instances: Number of instances.
        num_bytes: Size of the shards.
        seconds: CPU time that it takes to build them.
    """

    seq_len: int
    instances: int
    num_bytes: float
    seconds: float

    def describe(self, buckets: int) -> str:
        """Returns a line for the user about the instances and bytes of this length.

        Args:
            buckets: The number of buckets, which is the number of shards of a pass.
        """
        return (
            f"  L{self.seq_len}: {self.instances:,} train instances a pass,"
            f" {format_bytes(self.num_bytes)}, {self.instances // buckets:,} a shard"
        )


@dataclass(frozen=True)
class BuildEstimate:
    """Everything that a build makes, estimated from a sample of its input.

    Attributes:
        counts: The size of the input.
        token_bytes: Size of the token parts.
        num_buckets: Number of train buckets.
        lengths: The train shards of a pass, for each length.
        shard_bytes: Size of the train shards of all lengths and passes.
        cpu_seconds: CPU time of the build on one core. Learning a vocabulary is not included.
        dropped: Documents that were left out of the sample, by reason, as text for the user. Empty
            if there were none.
    """

    counts: InputCounts
    token_bytes: float
    num_buckets: int
    lengths: list[LengthPlan]
    shard_bytes: float
    cpu_seconds: float
    dropped: str


def describe_plan(
    settings: BuildSettings, num_files: int, parts: Sequence[Part], rule_for: RuleFor
) -> str:
    """Returns what a build will make, as lines for the user. Reads a sample of the input for it.

    Args:
        settings: Settings of the build.
        num_files: Number of files of the input.
        parts: All parts of the input.
        rule_for: Returns how instances of a length are made.

    Raises:
        ValueError: The input is malformed, or holds too few documents.
    """
    estimate = _estimate_build(settings, parts, rule_for)
    lines = [
        *_describe_input(settings, num_files, parts, estimate.counts),
        *_describe_output(settings, len(parts), estimate),
    ]
    if estimate.dropped:
        lines.append(f"left out of the sample: {estimate.dropped}")
    lines += [f"warning: {warning}" for warning in _find_warnings(settings, parts)]
    lines.append("nothing has been written; leave --plan out to build")
    return "\n".join(lines)


def _estimate_build(
    settings: BuildSettings, parts: Sequence[Part], rule_for: RuleFor
) -> BuildEstimate:
    """Takes a sample of the input through all stages of a build, and scales sizes and seconds up.

    Args:
        settings: Settings of the build.
        parts: All parts of the input.
        rule_for: Returns the rule by which instances of one length are made.
    """
    started = time.process_time()
    places = _drop_empty_places([_read_place(settings, read) for read in _choose_reads(parts)])
    sample_seconds = time.process_time() - started

    vocabulary = _find_vocabulary(settings, places)

    started = time.process_time()
    dropped = _encode_places(settings, places, vocabulary)
    sample_seconds += time.process_time() - started

    sample = [document for place in places for document in place.documents]
    sample_tokens = sum(len(document.tokens) for document in sample)
    part_files = (*pack_documents(sample), pack_places(sample))
    counts = _scale_counts(settings, places)
    num_tokens = sum(counts.tokens)
    scale = num_tokens / max(1, sample_tokens)

    held_out = wanted_tokens(num_tokens, settings.validation_fraction, settings.validation_tokens)
    train_share = 1 - held_out / max(1, num_tokens)
    num_buckets = _count_buckets(settings, counts)
    rules = [rule_for(settings, vocabulary, seq_len) for seq_len in settings.seq_lens]
    lengths = [_plan_length(places, rule, train_share) for rule in rules]
    pass_seconds = sum(length.seconds for length in lengths)
    return BuildEstimate(
        counts=counts,
        token_bytes=scale * sum(map(len, part_files)),
        num_buckets=num_buckets,
        lengths=lengths,
        shard_bytes=settings.passes * sum(length.num_bytes for length in lengths),
        cpu_seconds=scale * sample_seconds + settings.passes * pass_seconds,
        dropped=dropped,
    )


def _describe_input(
    settings: BuildSettings, num_files: int, parts: Sequence[Part], counts: InputCounts
) -> Iterator[str]:
    """Yields lines about the files, the documents and each source."""
    formats = Counter(file_range.format for part in parts for file_range in part.ranges)
    ranges = ", ".join(f"{count} {name}" for name, count in sorted(formats.items()))
    stored = format_bytes(sum(map(_stored_bytes, parts)))
    yield f"input: {num_files:,} file(s), {stored} as stored; ranges read: {ranges}"
    yield (
        f"about {sum(counts.documents):,} documents, {format_bytes(sum(counts.cleaned_bytes))} of"
        f" text, {sum(counts.tokens):,} tokens (copies too)"
    )
    yield from _describe_sources(settings, counts)


def _describe_sources(settings: BuildSettings, counts: InputCounts) -> Iterator[str]:
    """Yields a line for each source: its documents, and their share of a pass.

    A single source has no share.
    """
    weighted_tokens = [
        source.millionths * tokens
        for source, tokens in zip(settings.corpus, counts.tokens, strict=True)
    ]
    columns = (settings.corpus, counts.documents, counts.tokens, weighted_tokens)
    for source, num_documents, tokens, weighted in zip(*columns, strict=True):
        line = f"  {source.name}: {format_mean(num_documents, tokens)}"
        if len(settings.corpus) > 1:
            share = weighted / max(1, sum(weighted_tokens))
            line += (
                f", {tokens:,} in all; weight {source.weight:g} makes them {share:.1%} of a pass"
            )
        yield line


def _describe_output(
    settings: BuildSettings, num_parts: int, estimate: BuildEstimate
) -> Iterator[str]:
    """Yields lines about the parts, the shards of each length, the storage and the time."""
    num_buckets = estimate.num_buckets
    yield (
        f"{num_parts:,} part(s) to encode, then {num_buckets} train bucket(s),"
        f" x {settings.passes} pass(es)"
    )
    for length in estimate.lengths:
        yield length.describe(num_buckets)
    yield (
        f"storage: {format_bytes(estimate.token_bytes)} of tokens (may be deleted afterwards),"
        f" {format_bytes(estimate.shard_bytes)} of shards"
    )
    workers, _ = this_machine().limit(settings.workers, num_parts)
    seconds = estimate.cpu_seconds / workers
    hours = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} hours"
    yield (
        f"time: some {hours} with {workers} worker(s) on as many cores as fast as this one;"
        " a vocabulary to learn and the start come on top"
    )


def _choose_reads(parts: Sequence[Part]) -> Iterator[PlannedRead]:
    """Chooses the parts of the input whose beginnings make up the sample, source by source.

    If a source has at most 8 parts, or at most 4 MiB, the sample has the beginning of every part.
    Otherwise it has the beginnings of 8 parts, which are spread evenly over the bytes of the
    source. From a source 4 MiB are read in all.
    """
    for source in sorted({part.source for part in parts}):
        chosen = [part for part in parts if part.source == source]
        sizes = list(map(_stored_bytes, chosen))
        if len(chosen) > _NUM_PLACES and sum(sizes) > _SAMPLE_BYTES:
            step = sum(sizes) / _NUM_PLACES
            middles = step * (np.arange(_NUM_PLACES) + 0.5)
            numbers = np.searchsorted(np.cumsum(sizes), middles, side="right")
            chosen = [chosen[number] for number in numbers]
            sizes = [round(step)] * _NUM_PLACES
        for part, size in zip(chosen, sizes, strict=True):
            yield PlannedRead(part, size, _SAMPLE_BYTES // len(chosen))


def _stored_bytes(part: Part) -> int:
    """Returns the number of bytes of a part as its files store them, compressed or not."""
    return sum(file_range.num_bytes for file_range in part.ranges)


def _cut_part(part: Part, num_bytes: int) -> Part:
    """Returns the first `num_bytes` of a part of plain text, as a part.

    A file that is one document is not cut. So the result may have more bytes.
    """
    ranges = []
    for whole in part.ranges:
        if num_bytes <= 0:
            break
        end = whole.end
        if may_be_cut(whole.format, whole.url):
            end = min(end, whole.start + num_bytes)
        ranges.append(replace(whole, end=end))
        num_bytes -= ranges[-1].num_bytes
    return replace(part, ranges=tuple(ranges))


def _read_place(settings: BuildSettings, read: PlannedRead) -> Place:
    """Reads, cleans and filters the documents at one place of the input.

    From a part of plain text, `read.num_bytes` bytes are read. Other parts are read until the texts
    of their documents have that many characters. Then reading goes on until the documents are used
    up that the decompressor or reader had already taken from storage, so that the number of stored
    bytes that were read fits the documents.
    """
    source = settings.corpus[read.part.source]
    is_all_plain = all(is_plain(whole.format, whole.url) for whole in read.part.ranges)
    part = _cut_part(read.part, read.num_bytes) if is_all_plain else read.part
    meter = Meter()
    skipped: dict[str, int] = {}
    stream = read_part(
        replace(part, ranges=tuple(replace(metered, meter=meter) for metered in part.ranges)),
        text_field=source.text_field,
        on_bad_document=settings.on_bad_document,
        skipped=skipped,
        storage_options=settings.filesystem_options(),
    )

    documents: list[Document] = []
    num_characters = 0
    num_bytes = 0  # taken from storage when the last document was read
    for document in stream:
        is_enough = num_characters >= read.num_bytes and meter.num_bytes != num_bytes
        if is_enough and not is_all_plain:
            break
        documents.append(document)
        num_characters += len(document.text)
        num_bytes = meter.num_bytes
    if is_all_plain:
        num_bytes = _stored_bytes(part)

    gathered = next(group_documents(part, documents, skipped, sys.maxsize))
    cleaned = filter_documents(
        clean_documents(gathered, keeps_words=settings.word_rule.keeps_words),
        DocumentFilter(settings.filter_rule),
    )
    scale = read.stands_for / num_bytes if num_bytes else 0
    return Place(part.source, read.stands_for, scale, cleaned)


def _drop_empty_places(places: Sequence[Place]) -> list[Place]:
    """Returns the places where something was read.

    The scale of these is raised, so that they also stand for the places of the same source where
    nothing was read. The `Place` objects are changed.
    """
    read = [place for place in places if place.scale]
    for place in read:
        same_source = [other for other in places if other.source == place.source]
        total = sum(other.stands_for for other in same_source)
        covered = sum(other.stands_for for other in same_source if other.scale)
        place.scale *= total / covered
    return read


def _find_vocabulary(settings: BuildSettings, places: Sequence[Place]) -> Vocabulary:
    """Returns the vocabulary of the settings or of the output, or learns one from the sample."""
    if settings.vocab:
        return read_vocabulary(settings, settings.vocab)
    if settings.open_output().exists(VOCAB):
        return read_vocabulary(settings, f"{settings.output}/{VOCAB}")

    factors = count_factors([source.millionths for source in settings.corpus])
    counts: Counter[str] = Counter()
    for place in places:
        texts = (document.text for document in place.cleaned.documents)
        words = count_words(texts, settings.word_rule)
        factor = factors[place.source]
        counts.update({word: factor * count for word, count in words.items()})
    return make_vocabulary(settings, list(counts), list(counts.values()))


def _encode_places(settings: BuildSettings, places: Sequence[Place], vocabulary: Vocabulary) -> str:
    """Encodes the documents of all places and stores them in `Place.documents`.

    Returns:
        How many documents were dropped for each reason, as text; empty if none were.
    """
    encoder = Encoder(vocabulary, settings.word_rule)
    texts = open_task_texts(settings)
    finder = WindowFinder(texts, encoder) if texts else None
    languages = [source.language for source in settings.corpus]
    counters: Counter[str] = Counter()
    for place in places:
        split = split_documents(
            place.cleaned, languages, keeps_words=settings.word_rule.keeps_words
        )
        encoded = encode_documents(split, encoder)
        if finder:
            encoded = find_task_texts(encoded, finder, drops=settings.task_overlap == "drop")
        place.documents = encoded.documents
        counters.update(encoded.counters)

    return ", ".join(
        f"{count:,} {name.removeprefix('dropped_')}"
        for name, count in sorted(counters.items())
        if name.startswith("dropped_") and count
    )


def _scale_counts(settings: BuildSettings, places: Sequence[Place]) -> InputCounts:
    """Returns the size of the input that the documents of all places represent."""
    totals = np.zeros((len(settings.corpus), 3))  # documents, bytes of text, tokens
    for place in places:
        for document in place.documents:
            sizes = np.array((1, document.cleaned_bytes, len(document.tokens)))
            totals[place.source] += place.scale * sizes
    documents, cleaned_bytes, tokens = np.rint(totals).astype(int).T.tolist()
    return InputCounts(documents, cleaned_bytes, tokens)


def _count_buckets(settings: BuildSettings, counts: InputCounts) -> int:
    """Returns the estimated number of train buckets.

    It is computed as in a build, but the number of documents is taken to be the same for each
    prefix of ids.
    """
    prefixes = num_prefixes(sum(counts.cleaned_bytes))
    bounds = -(-np.arange(prefixes + 1) * sum(counts.documents) // prefixes)
    documents_by_prefix = np.diff(bounds)
    used_bytes, used_documents = apply_weights(
        settings.weights, counts.documents, counts.cleaned_bytes
    )
    return choose_num_buckets(
        documents_by_prefix, used_bytes, settings.num_buckets, "num_buckets", used_documents
    )


def _plan_length(places: Sequence[Place], rule: InstanceRule, train_share: float) -> LengthPlan:
    """Builds one shard of all documents of the sample, and scales its numbers up to a pass.

    The shard uses every document once. An instance then counts as many times as the scale of its
    place, times the weight of its source. The place and the source are those of the document of A.

    Args:
        places: The encoded documents.
        rule: How instances of the length are made.
        train_share: Share of the documents that is not held out for validation.
    """
    started = time.process_time()
    documents = gather_documents([document for place in places for document in place.documents])
    blocks = list(build_bucket(documents, replace(rule, weights=()), 0, "plan"))
    seal = seal_documents(documents.ids, len(documents.tokens))
    tar, shard, _ = pack_shard(blocks, "train", rule.seq_len, 0, "plan", rule.masking.mask_id, seal)
    seconds = time.process_time() - started

    # How many instances of a pass one instance here represents, by the first bytes of document A.
    worth: dict[int, float] = {}
    for place in places:
        weight = rule.weights[place.source] / UNIT if rule.weights else 1
        for document in place.documents:  # a copy belongs to the source listed first
            worth.setdefault(int.from_bytes(document.id[:8], "big"), place.scale * weight)
    total = sum(worth[key] for block in blocks for key in block.document_a.tolist())
    instances = round(train_share * total)
    scale = instances / max(1, shard.instances)
    return LengthPlan(rule.seq_len, instances, scale * len(tar), scale * seconds)


def _find_warnings(settings: BuildSettings, parts: Sequence[Part]) -> Iterator[str]:
    """Yields warnings about input that slows the build down, and about limits of the estimate."""
    long_parts = [part for part in parts if part.text_bytes > _LONG_PARTS * settings.part_bytes]
    if long_parts:
        longest = max(long_parts, key=lambda part: part.text_bytes)
        yield (
            f"{hide(longest.ranges[0].url)} cannot be cut: one worker reads its"
            f" {format_bytes(longest.text_bytes)} of text; {len(long_parts)} file(s) are more than"
            f" {_LONG_PARTS} parts long, cut such into files of"
            f" {format_bytes(settings.part_bytes)} of text"
        )
    if settings.near_duplicates is not None:
        yield "near-duplicates cannot be told from a sample: counted as if all stayed"
    if settings.exclude_documents_of:
        excluded = ", ".join(settings.exclude_documents_of)
        yield f"documents of {excluded} are counted as if they stayed"
