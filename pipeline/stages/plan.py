"""What a build will make (`build --plan true`), judged by some MB of its input; writes nothing."""

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
_LONG_PARTS = 8

RuleFor = Callable[[BuildSettings, Vocabulary, int], InstanceRule]


@dataclass
class Place:
    """The beginning of a part: its texts, then its documents; the input has `scale` times it."""

    source: int
    stands_for: int  # stored bytes of the input
    scale: float
    cleaned: DocumentList[Document]
    documents: list[TokenizedDocument] = field(default_factory=list)


class LengthPlan(NamedTuple):
    """One length: train instances of a pass, their stored bytes and CPU seconds."""

    seq_len: int
    instances: int
    num_bytes: float
    seconds: float

    def describe(self, buckets: int) -> str:
        """A line for a person."""
        return (
            f"  L{self.seq_len}: {self.instances:,} train instances a pass,"
            f" {format_bytes(self.num_bytes)}, {self.instances // buckets:,} a shard"
        )


def describe_plan(
    settings: BuildSettings, num_files: int, parts: Sequence[Part], rule_for: RuleFor
) -> str:
    """Lines for a person: what a sample of the parts comes to, scaled to all.

    Raises:
        ValueError: Malformed input, or too few documents.
    """
    start = time.process_time()
    places = _without_silent([_read_place(settings, *each) for each in _choose_places(parts)])
    seconds = time.process_time() - start
    vocabulary = _find_vocabulary(settings, places)
    start = time.process_time()
    dropped = _encode_places(settings, places, vocabulary)
    seconds += time.process_time() - start
    sample = [document for place in places for document in place.documents]
    documents, cleaned_bytes, tokens = _scale_counts(settings, places)
    scale = sum(tokens) / max(1, sum(len(document.tokens) for document in sample))
    token_bytes = scale * sum(map(len, (*pack_documents(sample), pack_places(sample))))
    held_out = wanted_tokens(sum(tokens), settings.validation_fraction, settings.validation_tokens)
    train_share = 1 - held_out / max(1, sum(tokens))
    buckets = _count_buckets(settings, documents, cleaned_bytes)
    rules = [rule_for(settings, vocabulary, seq_len) for seq_len in settings.seq_lens]
    lengths = [_plan_length(places, rule, train_share) for rule in rules]
    shard_bytes = settings.passes * sum(each.num_bytes for each in lengths)
    seconds = scale * seconds + settings.passes * sum(each.seconds for each in lengths)
    formats = Counter(each.format for part in parts for each in part.ranges)
    stored = format_bytes(sum(map(_stored_bytes, parts)))
    workers, _ = this_machine().limit(settings.workers, len(parts))
    seconds /= workers
    hours = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} hours"
    rows = [
        f"input: {num_files:,} file(s), {stored} as stored; ranges read: "
        + ", ".join(f"{count} {name}" for name, count in sorted(formats.items())),
        f"about {sum(documents):,} documents, {format_bytes(sum(cleaned_bytes))} of text,"
        f" {sum(tokens):,} tokens (copies too)",
        *_describe_sources(settings, documents, tokens),
        f"{len(parts):,} part(s) to encode, then {buckets} train bucket(s),"
        f" x {settings.passes} pass(es)",
        *(each.describe(buckets) for each in lengths),
        f"storage: {format_bytes(token_bytes)} of tokens (may be deleted afterwards),"
        f" {format_bytes(shard_bytes)} of shards",
        f"time: some {hours} with {workers} worker(s) on as many cores as fast as this one;"
        " a vocabulary to learn and the start come on top",
        *([f"left out of the sample: {dropped}"] if dropped else []),
        *(f"warning: {each}" for each in _find_warnings(settings, parts)),
        "nothing has been written; leave --plan out to build",
    ]
    return "\n".join(rows)


def _describe_sources(
    settings: BuildSettings, documents: Sequence[int], tokens: Sequence[int]
) -> Iterator[str]:
    used = [source.millionths * own for source, own in zip(settings.corpus, tokens, strict=True)]
    columns = (settings.corpus, documents, tokens, used)
    for source, num_documents, own, own_used in zip(*columns, strict=True):
        shown = f"  {source.name}: {format_mean(num_documents, own)}"
        if len(used) > 1:
            share = own_used / max(1, sum(used))
            shown += f", {own:,} in all; weight {source.weight:g} makes them {share:.1%} of a pass"
        yield shown


def _choose_places(parts: Sequence[Part]) -> Iterator[tuple[Part, int, int]]:
    """Parts to begin, the stored bytes that each stands for, and how much of it to read.

    They are all parts of a small source; of another eight, far from each other in its bytes.
    """
    for source in sorted({part.source for part in parts}):
        own = [part for part in parts if part.source == source]
        sizes = list(map(_stored_bytes, own))
        if len(own) > _NUM_PLACES and sum(sizes) > _SAMPLE_BYTES:
            step = sum(sizes) / _NUM_PLACES
            middles = step * (np.arange(_NUM_PLACES) + 0.5)
            found = np.searchsorted(np.cumsum(sizes), middles, side="right")
            own, sizes = [own[place] for place in found], [round(step)] * _NUM_PLACES
        for part, size in zip(own, sizes, strict=True):
            yield part, size, _SAMPLE_BYTES // len(own)


def _stored_bytes(part: Part) -> int:
    return sum(each.num_bytes for each in part.ranges)


def _beginning(part: Part, most: int) -> Part:
    """The first bytes of a part, and the rest of a file that is one document."""
    ranges = []
    for each in part.ranges:
        if most <= 0:
            break
        end = min(each.end, each.start + most) if may_be_cut(each.format, each.url) else each.end
        ranges.append(replace(each, end=end))
        most -= ranges[-1].num_bytes
    return replace(part, ranges=tuple(ranges))


def _read_place(settings: BuildSettings, part: Part, stands_for: int, most: int) -> Place:
    """Reads so many bytes of plain text; of another part what its decompressor gives with them."""
    source, meter, skipped = settings.corpus[part.source], Meter(), dict[str, int]()
    all_plain = all(is_plain(each.format, each.url) for each in part.ranges)
    part = _beginning(part, most) if all_plain else part
    documents = read_part(
        replace(part, ranges=tuple(replace(each, meter=meter) for each in part.ranges)),
        text_field=source.text_field,
        on_bad_document=settings.on_bad_document,
        skipped=skipped,
        storage_options=settings.filesystem_options(),
    )
    found: list[Document] = []
    size = num_bytes = 0
    for document in documents:
        if size >= most and meter.num_bytes != num_bytes and not all_plain:
            break
        found.append(document)
        size, num_bytes = size + len(document.text), meter.num_bytes
    num_bytes = _stored_bytes(part) if all_plain else num_bytes
    read = next(group_documents(part, found, skipped, sys.maxsize))
    cleaned = filter_documents(
        clean_documents(read, keeps_words=settings.word_rule.keeps_words),
        DocumentFilter(settings.filter_rule),
    )
    return Place(part.source, stands_for, num_bytes and stands_for / num_bytes, cleaned)


def _without_silent(places: Sequence[Place]) -> list[Place]:
    """The places where anything was read, which stand for the others of their source too."""
    read = [place for place in places if place.scale]
    for place in read:
        own = [each for each in places if each.source == place.source]
        told = sum(each.stands_for for each in own if each.scale)
        place.scale *= sum(each.stands_for for each in own) / told
    return read


def _find_vocabulary(settings: BuildSettings, places: Sequence[Place]) -> Vocabulary:
    if settings.vocab:
        return read_vocabulary(settings, settings.vocab)
    if settings.open_output().exists(VOCAB):
        return read_vocabulary(settings, f"{settings.output}/{VOCAB}")
    factors = count_factors([source.millionths for source in settings.corpus])
    counts: Counter[str] = Counter()
    for place in places:
        texts = (document.text for document in place.cleaned.documents)
        found = count_words(texts, settings.word_rule)
        counts.update({word: n * factors[place.source] for word, n in found.items()})
    return make_vocabulary(settings, list(counts), list(counts.values()))


def _encode_places(settings: BuildSettings, places: Sequence[Place], vocabulary: Vocabulary) -> str:
    """Encodes what was read; which documents were dropped, by reason."""
    encoder, texts = Encoder(vocabulary, settings.word_rule), open_task_texts(settings)
    finder = WindowFinder(texts, encoder) if texts else None
    languages = [source.language for source in settings.corpus]
    counters: Counter[str] = Counter()
    for place in places:
        split = split_documents(
            place.cleaned, languages, keeps_words=settings.word_rule.keeps_words
        )
        found = encode_documents(split, encoder)
        if finder:
            found = find_task_texts(found, finder, drops=settings.task_overlap == "drop")
        place.documents = found.documents
        counters.update(found.counters)
    dropped = {name: n for name, n in counters.items() if name.startswith("dropped_") and n}
    return ", ".join(
        f"{n:,} {name.removeprefix('dropped_')}" for name, n in sorted(dropped.items())
    )


def _scale_counts(settings: BuildSettings, places: Sequence[Place]) -> tuple[list[int], ...]:
    """Documents, bytes of cleaned text and tokens of each source, copies included."""
    totals = np.zeros((len(settings.corpus), 3))
    for place in places:
        for each in place.documents:
            totals[place.source] += place.scale * np.array(
                (1, each.cleaned_bytes, len(each.tokens))
            )
    return tuple(np.rint(totals).astype(int).T.tolist())


def _count_buckets(
    settings: BuildSettings, documents: Sequence[int], num_bytes: Sequence[int]
) -> int:
    prefixes = num_prefixes(sum(num_bytes))
    spread = np.diff(-(-np.arange(prefixes + 1) * sum(documents) // prefixes))
    used_bytes, used = apply_weights(settings.weights, documents, num_bytes)
    return choose_num_buckets(spread, used_bytes, settings.num_buckets, "num_buckets", used)


def _plan_length(places: Sequence[Place], rule: InstanceRule, train_share: float) -> LengthPlan:
    """Counts every document once; weights then multiply what each source gave."""
    start = time.process_time()
    documents = gather_documents([each for place in places for each in place.documents])
    blocks = list(build_bucket(documents, replace(rule, weights=()), 0, "plan"))
    seal = seal_documents(documents.ids, len(documents.tokens))
    tar, shard, _ = pack_shard(blocks, "train", rule.seq_len, 0, "plan", rule.masking.mask_id, seal)
    seconds = time.process_time() - start
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
    long = [part for part in parts if part.text_bytes > _LONG_PARTS * settings.part_bytes]
    if long:
        part = max(long, key=lambda part: part.text_bytes)
        yield (
            f"{hide(part.ranges[0].url)} cannot be cut: one worker reads its"
            f" {format_bytes(part.text_bytes)} of text; {len(long)} file(s) are more than"
            f" {_LONG_PARTS} parts long, cut such into files of"
            f" {format_bytes(settings.part_bytes)} of text"
        )
    if settings.near_duplicates is not None:
        yield "near-duplicates cannot be told from a sample: counted as if all stayed"
    if settings.exclude_documents_of:
        excluded = ", ".join(settings.exclude_documents_of)
        yield f"documents of {excluded} are counted as if they stayed"
