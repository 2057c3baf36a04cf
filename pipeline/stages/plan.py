"""What a build will make, said before it runs (`build --plan true`): measured on a sample of the input itself.

A few MB from places spread over the input are read, encoded and built in this process, and scaled.
Nothing is written.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from pipeline.documents.counts import format_mean
from pipeline.documents.parts import Part
from pipeline.documents.source import UNIT
from pipeline.documents.sources import apply_weights
from pipeline.inspect.validation import measure_validation
from pipeline.instances.build_bucket import InstanceRule, build_bucket, gather_documents
from pipeline.pages.render import format_bytes
from pipeline.settings import BuildSettings
from pipeline.shards.seal import seal_documents
from pipeline.shards.shard_file import pack_shard
from pipeline.stages.describe import describe_source
from pipeline.stages.plan_sample import Sample, kind_of, take_sample
from pipeline.storage.secret_values import hide
from pipeline.tokens.buckets import choose_num_buckets, num_prefixes
from pipeline.tokens.held_out import SourceTotals, choose_held_out, wanted_tokens
from pipeline.tokens.provenance import pack_places
from pipeline.tokens.token_parts import pack_documents
from tokenizer.vocab import Vocabulary

_LONG_PARTS = 8
# CPU-seconds of the launcher with its first import of Beam, and of the start of a worker process in
# both jobs; and what workers take for each second of a plan's sample.
_LAUNCHER_SECONDS, _WORKER_START_SECONDS, _OVERHEAD = 2.4, 2.2, 1.18


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
        cleaned_bytes: Bytes of the text of the whole corpus, copies included.
        sources: One row a source.
        token_bytes: Bytes of the folder between the jobs.
        buckets: Train shards of a pass and length.
        lengths: One row a length.
        worker_seconds: CPU time of the workers' work, for everything but learning a vocabulary;
            their start aside.
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

    @property
    def documents(self) -> int:
        """Documents of all sources, copies included."""
        return sum(source.documents for source in self.sources)

    @property
    def tokens(self) -> int:
        """Tokens of all sources, copies included."""
        return sum(source.tokens for source in self.sources)

    def seconds(self, workers: int) -> float:
        """Time by the clock, where every worker has a core of its own; one worker is the launcher itself."""
        starts = _WORKER_START_SECONDS if workers > 1 else 0
        return _LAUNCHER_SECONDS + starts + self.worker_seconds / workers


def make_plan(
    settings: BuildSettings,
    parts: Sequence[Part],
    rule_for: Callable[[BuildSettings, Vocabulary, int], InstanceRule],
) -> BuildPlan:
    """Measures a sample and scales it to the whole input.

    Args:
        settings: The settings of the build.
        parts: The parts that the tokens job would read.
        rule_for: How instances of a length are made.

    Raises:
        ValueError: Malformed input, or too few documents.
    """
    sample = take_sample(settings, parts)
    bytes_of = sample.scaled(lambda own: sum(document.cleaned_bytes for document in own))
    sources = _plan_sources(settings, sample)
    tokens = sum(source.tokens for source in sources)
    most_held_out = settings.validation_tokens
    held_out = wanted_tokens(tokens, settings.validation_fraction, most_held_out) / max(1, tokens)
    lengths = tuple(
        _plan_length(sample, rule_for(settings, sample.vocabulary, seq_len), 1 - held_out)
        for seq_len in settings.seq_lens
    )
    encoding = sum(each.scale * each.seconds for each in sample.kinds.values())
    building = settings.passes * sum(each.instances * each.seconds_each for each in lengths)
    return BuildPlan(
        stored_bytes=sum(each.total_bytes for each in sample.kinds.values()),
        formats=Counter(each.format for part in parts for each in part.ranges),
        parts=len(parts),
        cleaned_bytes=sum(bytes_of),
        sources=sources,
        token_bytes=sum(
            sample.scaled(lambda own: sum(map(len, (*pack_documents(own), pack_places(own)))))
        ),
        buckets=_plan_buckets(settings, [source.documents for source in sources], bytes_of),
        lengths=lengths,
        worker_seconds=_OVERHEAD * (encoding + building),
        dropped=sample.dropped,
        warnings=(
            *_find_long_files(settings, parts, sample),
            *_find_validation(settings, sample),
            *_not_counted(settings),
        ),
    )


def format_plan(plan: BuildPlan, files: int, workers: int, passes: int) -> str:
    """The plan as lines for a person."""
    formats = ", ".join(f"{count} {name}" for name, count in sorted(plan.formats.items()))
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in plan.dropped.items())
    shard_bytes = passes * sum(each.instances * each.bytes_each for each in plan.lengths)
    rows = [
        f"input: {files:,} file(s), {format_bytes(plan.stored_bytes)} as stored; ranges read: {formats}",
        f"about {plan.documents:,} documents, {format_bytes(plan.cleaned_bytes)} of text,"
        f" {plan.tokens:,} tokens (copies too)",
        *(f"  {_format_source(each, len(plan.sources))}" for each in plan.sources),
        f"{plan.parts:,} part(s) to encode, then {plan.buckets} train bucket(s), x {passes} pass(es)",
        *(f"  {_format_length(each, plan.buckets)}" for each in plan.lengths),
        f"storage: {format_bytes(plan.token_bytes)} of tokens (may be deleted afterwards),"
        f" {format_bytes(shard_bytes)} of shards",
        f"time: some {_hours(plan.seconds(workers))} with {workers} worker(s) on as many cores as fast as this one;"
        " a vocabulary to learn comes on top",
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
    return (
        f"L{length.seq_len}: {length.instances:,} train instances a pass, {size},"
        f" {length.instances // buckets:,} a shard"
    )


def _plan_sources(settings: BuildSettings, sample: Sample) -> tuple[SourcePlan, ...]:
    documents = sample.scaled(len)
    tokens = sample.scaled(lambda own: sum(len(document.tokens) for document in own))
    used = [source.millionths * own for source, own in zip(settings.corpus, tokens, strict=True)]
    rows = zip(settings.corpus, documents, tokens, used, strict=True)
    return tuple(
        SourcePlan(source.name, source.weight, own, own_tokens, own_used / max(1, sum(used)))
        for source, own, own_tokens, own_used in rows
    )


def _plan_buckets(
    settings: BuildSettings, documents: Sequence[int], num_bytes: Sequence[int]
) -> int:
    prefixes = num_prefixes(sum(num_bytes))
    spread = np.diff(-(-np.arange(prefixes + 1) * sum(documents) // prefixes))
    used_bytes, used = apply_weights(settings.weights, documents, num_bytes)
    return choose_num_buckets(spread, used_bytes, settings.num_buckets, "num_buckets", used)


def _plan_length(sample: Sample, rule: InstanceRule, train_share: float) -> LengthPlan:
    """Counts every document once; weights then multiply what each source gave."""
    seconds = 0.0
    for _ in range(
        2
    ):  # the first takes half as long again, as what it imports and allocates is new
        start = time.process_time()
        documents = gather_documents(sample.documents)
        blocks = list(build_bucket(documents, replace(rule, weights=()), 0, "plan"))
        seal = seal_documents(documents.ids, len(documents.tokens))
        tar, shard, _ = pack_shard(
            blocks, "train", rule.seq_len, 0, "plan", rule.masking.mask_id, seal
        )
        seconds = time.process_time() - start
    weights = rule.weights or (UNIT,) * sample.num_sources
    worth: dict[int, float] = {}
    for kind, sampled in sample.kinds.items():
        each_worth = sampled.scale * weights[kind.source] / UNIT
        for document in sampled.documents:  # a copy belongs to the source listed first
            worth.setdefault(int.from_bytes(document.id[:8], "big"), each_worth)
    total = sum(worth[key] for block in blocks for key in block.document_a.tolist())
    each = max(1, shard.instances)
    return LengthPlan(rule.seq_len, round(train_share * total), len(tar) / each, seconds / each)


def _find_long_files(
    settings: BuildSettings, parts: Sequence[Part], sample: Sample
) -> Iterator[str]:
    """Files that cannot be cut and are long: a worker takes one from its beginning to its end."""
    long = [part for part in parts if part.text_bytes > _LONG_PARTS * settings.part_bytes]
    if long:
        part = max(long, key=lambda part: part.text_bytes)
        stored_bytes = sum(each.num_bytes for each in part.ranges)
        sampled = sample.kinds[kind_of(part.ranges[0], part.source)]
        seconds = sampled.seconds / max(1, sampled.stored_bytes) * stored_bytes
        yield (
            f"{hide(part.ranges[0].url)} cannot be cut: one worker reads its {format_bytes(part.text_bytes)} of text,"
            f" some {_hours(seconds)}; {len(long)} file(s) are more than {_LONG_PARTS} parts"
            f" long, cut such into files of {format_bytes(settings.part_bytes)} of text"
        )


def _find_validation(settings: BuildSettings, sample: Sample) -> Sequence[str]:
    """What a person should know of the validation split, where the sample is the whole input."""
    if any(kind.stored_bytes < kind.total_bytes for kind in sample.kinds.values()):
        return ()
    # A copy counts for the first source.
    distinct = {document.id: document for document in reversed(sample.documents)}
    totals = []
    for number in range(len(settings.corpus)):
        own = sorted(
            (document.id.hex(), len(document.tokens))
            for document in distinct.values()
            if document.source == number
        )
        ids, tokens = [each for each, _ in own], [each for _, each in own]
        totals.append(
            SourceTotals(len(own), tokens=sum(tokens), lowest_ids=ids, lowest_tokens=tokens)
        )
    held_out = choose_held_out(totals, settings.validation_fraction, settings.validation_tokens)
    rows = zip(settings.corpus, totals, held_out.sources, strict=True)
    sources = [describe_source(source, {}, own, given) for source, own, given in rows]
    measured = measure_validation(sources, asdict(settings))
    return measured["warnings"] if measured else ()


def _not_counted(settings: BuildSettings) -> Iterator[str]:
    if settings.near_duplicates is not None:
        yield "near-duplicates cannot be told from a sample: counted as if all stayed"
    if settings.exclude_documents_of:
        yield f"documents of {', '.join(settings.exclude_documents_of)} are counted as if they stayed"


def _hours(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} hours"
