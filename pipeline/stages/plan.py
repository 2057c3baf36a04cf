"""What a build will make (`build --plan true`): a sample of the input is read, encoded and built, and scaled.

The sample is a few MB from places spread over the input. Nothing is written.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.documents import Document
from pipeline.documents.counts import format_mean
from pipeline.documents.files import Meter
from pipeline.documents.formats import is_plain
from pipeline.documents.parts import Part, cut_again
from pipeline.documents.read import read_part
from pipeline.documents.source import UNIT
from pipeline.documents.sources import apply_weights, count_factors
from pipeline.instances.build_bucket import InstanceRule, build_bucket, gather_documents
from pipeline.pages.render import format_bytes
from pipeline.settings import BuildSettings
from pipeline.shards.seal import seal_documents
from pipeline.shards.shard_file import pack_shard
from pipeline.stages.build_tokens import open_task_texts
from pipeline.stages.build_vocab import VOCAB, make_vocabulary, read_vocabulary
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
_PLACE_BYTES = 512 * 2**10
_LONG_PARTS = 8


@dataclass
class Place:
    """A place of the input that is read.

    Attributes:
        part: Where it begins.
        stored_bytes: Bytes of the input that it stands for.
        read_bytes: Those that were read.
        scale: How many times what was read the place stands for.
        cleaned: What was read, cleaned and filtered.
        documents: These encoded.
        seconds: CPU time of reading and encoding them.
    """

    part: Part
    stored_bytes: int
    read_bytes: int = 0
    scale: float = 0.0
    cleaned: DocumentList[Document] = field(init=False)
    documents: list[TokenizedDocument] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class LengthPlan:
    """One length: train instances of a pass, and of one instance its stored bytes and seconds of one process."""

    seq_len: int
    instances: int
    bytes_each: float
    seconds_each: float


@dataclass(frozen=True)
class SourcePlan:
    """One source: documents and tokens, copies included; its share of the tokens that a pass uses, random B's aside."""

    name: str
    weight: float
    documents: int
    tokens: int
    used_share: float


@dataclass(frozen=True)
class BuildPlan:
    """What a build will make.

    Attributes:
        stored_bytes, formats, parts: The input.
        cleaned_bytes, sources: Its text, copies included.
        token_bytes: Bytes of the folder between the jobs.
        buckets: Train shards of a pass and length.
        lengths: One row a length.
        worker_seconds: CPU time of everything but learning a vocabulary.
        dropped: Documents of the sample that are left out, by reason.
        warnings: What is likely not wanted, or not counted.
    """

    stored_bytes: int
    formats: Mapping[str, int]
    parts: int
    cleaned_bytes: int
    sources: tuple[SourcePlan, ...]
    token_bytes: int
    buckets: int
    lengths: tuple[LengthPlan, ...]
    worker_seconds: float
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]


def make_plan(
    settings: BuildSettings,
    parts: Sequence[Part],
    rule_for: Callable[[BuildSettings, Vocabulary, int], InstanceRule],
) -> BuildPlan:
    """Measures a sample of the parts that the tokens job would read, and scales it to all.

    Raises:
        ValueError: Malformed input, or too few documents.
    """
    places = _choose_places(parts)
    for place in places:
        _read_place(settings, place)
    places = _without_silent(places)
    vocabulary = _find_vocabulary(settings, places)
    dropped = _encode_places(settings, places, vocabulary)

    def scaled(measure: Callable[[Sequence[TokenizedDocument]], int]) -> list[int]:
        found = [0.0] * len(settings.corpus)
        for place in places:
            found[place.part.source] += place.scale * measure(place.documents)
        return [round(each) for each in found]

    documents, cleaned_bytes = scaled(len), scaled(lambda own: sum(d.cleaned_bytes for d in own))
    tokens = scaled(lambda own: sum(len(document.tokens) for document in own))
    total = max(1, sum(tokens))
    held_out = wanted_tokens(total, settings.validation_fraction, settings.validation_tokens)
    rules = [rule_for(settings, vocabulary, seq_len) for seq_len in settings.seq_lens]
    lengths = tuple(_plan_length(places, rule, 1 - held_out / total) for rule in rules)
    seconds = sum(place.scale * place.seconds for place in places)
    building = sum(each.instances * each.seconds_each for each in lengths)
    sample = [document for place in places for document in place.documents]
    packed = sum(map(len, (*pack_documents(sample), pack_places(sample))))
    share = sum(len(document.tokens) for document in sample) / total
    return BuildPlan(
        stored_bytes=sum(map(_stored_bytes, parts)),
        formats=Counter(each.format for part in parts for each in part.ranges),
        parts=len(parts),
        cleaned_bytes=sum(cleaned_bytes),
        sources=_plan_sources(settings, documents, tokens),
        token_bytes=round(packed / share) if share else 0,
        buckets=_plan_buckets(settings, documents, cleaned_bytes),
        lengths=lengths,
        worker_seconds=seconds + settings.passes * building,
        dropped=dropped,
        warnings=tuple(_find_warnings(settings, parts)),
    )


def format_plan(plan: BuildPlan, files: int, workers: int, passes: int) -> str:
    """The plan as lines for a person."""
    formats = ", ".join(f"{count} {name}" for name, count in sorted(plan.formats.items()))
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(plan.dropped.items()))
    documents, tokens = (
        sum(getattr(each, name) for each in plan.sources) for name in ("documents", "tokens")
    )
    shard_bytes = passes * sum(each.instances * each.bytes_each for each in plan.lengths)
    seconds = plan.worker_seconds / workers
    hours = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} hours"
    rows = [
        f"input: {files:,} file(s), {format_bytes(plan.stored_bytes)} as stored; ranges read: {formats}",
        f"about {documents:,} documents, {format_bytes(plan.cleaned_bytes)} of text, {tokens:,} tokens (copies too)",
        *(f"  {_format_source(each, len(plan.sources))}" for each in plan.sources),
        f"{plan.parts:,} part(s) to encode, then {plan.buckets} train bucket(s), x {passes} pass(es)",
        *(f"  {_format_length(each, plan.buckets)}" for each in plan.lengths),
        f"storage: {format_bytes(plan.token_bytes)} of tokens (may be deleted afterwards),"
        f" {format_bytes(shard_bytes)} of shards",
        f"time: some {hours} with {workers} worker(s) on as many cores as fast as this one;"
        " a vocabulary to learn and the start come on top",
        *([f"left out of the sample: {dropped}"] if dropped else []),
        *(f"warning: {each}" for each in plan.warnings),
        "nothing has been written; leave --plan out to build",
    ]
    return "\n".join(rows)


def _format_source(source: SourcePlan, num_sources: int) -> str:
    shown = f"{source.name}: {format_mean(source.documents, source.tokens)}"
    if num_sources == 1:
        return shown
    return f"{shown}, {source.tokens:,} in all; weight {source.weight:g} makes them {source.used_share:.1%} of a pass"


def _format_length(length: LengthPlan, buckets: int) -> str:
    size = format_bytes(length.instances * length.bytes_each)
    each = length.instances // buckets
    return (
        f"L{length.seq_len}: {length.instances:,} train instances a pass, {size}, {each:,} a shard"
    )


def _choose_places(parts: Sequence[Part]) -> list[Place]:
    """All parts of a source that is small; of another eight places, as far from each other in its bytes."""
    places: list[Place] = []
    for source in sorted({part.source for part in parts}):
        own = [part for part in parts if part.source == source]
        ends = np.cumsum(list(map(_stored_bytes, own)))
        if ends[-1] <= _NUM_PLACES * _PLACE_BYTES:
            places += [Place(part, _stored_bytes(part)) for part in own]
            continue
        step = int(ends[-1]) // _NUM_PLACES
        for wanted in range(step // 2, int(ends[-1]), step):
            part = _pick(own, wanted)
            if _is_plain(part):
                start = wanted - sum(map(_stored_bytes, own[: own.index(part)]))
                part = _pick(_pieces(part), start)
            places.append(Place(part, step))
    return places


def _pick(parts: Sequence[Part], byte: int) -> Part:
    """The one that holds a byte, counted through all of them."""
    ends = np.cumsum(list(map(_stored_bytes, parts)))
    return parts[min(int(np.searchsorted(ends, byte, side="right")), len(parts) - 1)]


def _pieces(part: Part) -> list[Part]:
    """A part cut into half a MB each."""
    starts = {each.url: range(each.start, each.end) for each in part.ranges}
    pieces = cut_again([part], _PLACE_BYTES)
    own = [piece for piece in pieces if piece.ranges[0].start in starts[piece.ranges[0].url]]
    return own or [part]


def _is_plain(part: Part) -> bool:
    return all(is_plain(each.format, each.url) for each in part.ranges)


def _stored_bytes(part: Part) -> int:
    return sum(each.num_bytes for each in part.ranges)


def _read_place(settings: BuildSettings, place: Place) -> None:
    """Reads a plain part to its end, of another half a MB and what its decompressor gives with that."""
    source, meter, skipped = settings.corpus[place.part.source], Meter(), dict[str, int]()
    start, most = time.process_time(), sys.maxsize if _is_plain(place.part) else _PLACE_BYTES
    documents = read_part(
        replace(place.part, ranges=tuple(replace(each, meter=meter) for each in place.part.ranges)),
        text_field=source.text_field,
        on_bad_document=settings.on_bad_document,
        skipped=skipped,
        storage_options=settings.filesystem_options(),
    )
    found: list[Document] = []
    size = num_bytes = 0
    for document in documents:
        if size >= most and meter.num_bytes != num_bytes:
            break
        found.append(document)
        size, num_bytes = size + len(document.text), meter.num_bytes
    if most == sys.maxsize:
        num_bytes = _stored_bytes(place.part)
    read = next(group_documents(place.part, found, skipped, sys.maxsize))
    place.cleaned = filter_documents(clean_documents(read), DocumentFilter(settings.filter_rule))
    place.read_bytes = num_bytes
    place.seconds = time.process_time() - start


def _without_silent(places: Sequence[Place]) -> list[Place]:
    """The places where anything was read, which stand for the others of their source too."""
    stored = Counter[int]()
    told = Counter[int]()
    for place in places:
        stored[place.part.source] += place.stored_bytes
        told[place.part.source] += place.stored_bytes * bool(place.read_bytes)
    read = [place for place in places if place.read_bytes]
    for place in read:
        share = stored[place.part.source] / told[place.part.source]
        place.scale = share * place.stored_bytes / place.read_bytes
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
        found = count_words(texts, settings.lower_case)
        counts.update({word: n * factors[place.part.source] for word, n in found.items()})
    return make_vocabulary(settings, list(counts), list(counts.values()))


def _encode_places(
    settings: BuildSettings, places: Sequence[Place], vocabulary: Vocabulary
) -> dict[str, int]:
    """Encodes what was read; which documents were dropped, by reason."""
    encoder, texts = Encoder(vocabulary, settings.lower_case), open_task_texts(settings)
    finder = WindowFinder(texts, encoder) if texts else None
    languages, drops = (
        [source.language for source in settings.corpus],
        settings.task_overlap == "drop",
    )
    counters: Counter[str] = Counter()
    for place in places:
        start = time.process_time()
        found = encode_documents(split_documents(place.cleaned, languages), encoder)
        found = find_task_texts(found, finder, drops=drops) if finder else found
        place.documents = found.documents
        counters.update(found.counters)
        place.seconds += time.process_time() - start
    drops_of = {name: n for name, n in counters.items() if name.startswith("dropped_") and n}
    return {name.removeprefix("dropped_"): n for name, n in drops_of.items()}


def _plan_sources(
    settings: BuildSettings, documents: Sequence[int], tokens: Sequence[int]
) -> tuple[SourcePlan, ...]:
    used = [source.millionths * own for source, own in zip(settings.corpus, tokens, strict=True)]
    return tuple(
        SourcePlan(source.name, source.weight, num, own, own_used / max(1, sum(used)))
        for source, num, own, own_used in zip(settings.corpus, documents, tokens, used, strict=True)
    )


def _plan_buckets(
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
        weight = rule.weights[place.part.source] / UNIT if rule.weights else 1
        for document in place.documents:  # a copy belongs to the source listed first
            worth.setdefault(int.from_bytes(document.id[:8], "big"), place.scale * weight)
    total = sum(worth[key] for block in blocks for key in block.document_a.tolist())
    each = max(1, shard.instances)
    return LengthPlan(rule.seq_len, round(train_share * total), len(tar) / each, seconds / each)


def _find_warnings(settings: BuildSettings, parts: Sequence[Part]) -> Iterator[str]:
    long = [part for part in parts if part.text_bytes > _LONG_PARTS * settings.part_bytes]
    if long:
        part = max(long, key=lambda part: part.text_bytes)
        yield (
            f"{hide(part.ranges[0].url)} cannot be cut: one worker reads its {format_bytes(part.text_bytes)} of text;"
            f" {len(long)} file(s) are more than {_LONG_PARTS} parts"
            f" long, cut such into files of {format_bytes(settings.part_bytes)} of text"
        )
    if settings.near_duplicates is not None:
        yield "near-duplicates cannot be told from a sample: counted as if all stayed"
    if settings.exclude_documents_of:
        yield f"documents of {', '.join(settings.exclude_documents_of)} are counted as if they stayed"
