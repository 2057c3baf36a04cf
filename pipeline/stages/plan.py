"""What a build will make and cost, said before it runs (`build --plan true`): measured on a sample of the input itself.

A few MB from places spread over the input are read, encoded and built in this process, and scaled.
Nothing is written.
"""

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.documents.counts import format_mean
from pipeline.documents.parts import InputFile, Part
from pipeline.documents.sources import UNIT, Source, apply_weights
from pipeline.instances.build_bucket import InstanceRule, build_bucket, gather_documents
from pipeline.settings import BuildSettings
from pipeline.shards.block import block_instances
from pipeline.shards.seal import seal_documents
from pipeline.shards.shard_file import pack_shard
from pipeline.stages.plan_sample import Sample, take_sample
from pipeline.storage.secret_values import hide
from pipeline.tokens.buckets import choose_num_buckets, num_prefixes
from pipeline.tokens.held_out import wanted_tokens
from pipeline.tokens.provenance import pack_places
from pipeline.tokens.token_parts import pack_documents
from tokenizer.vocab import Vocabulary

_LONG_PARTS = 8
# By python -m scripts.bench.plan: CPU-seconds of the launcher with its first import of Beam, and of
# the start of a worker process in a job; and what the workers of three corpora took for each second
# of a plan's sample.
_LAUNCHER_SECONDS, _WORKER_START_SECONDS, _OVERHEAD = 2.4, 1.1, 1.18
_JOBS = 2
_MAX_LANES = 256  # docs/order.md: how many places the trainer reads at once


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
        files, stored_bytes, formats, parts: The input.
        documents, cleaned_bytes, tokens: Totals of the whole corpus, copies included.
        sources: One row a source.
        token_bytes: Bytes of the folder between the jobs.
        buckets: Train shards of a pass and length.
        lengths: One row a length.
        tasks: Shards that workers build, of all lengths and passes.
        worker_bytes: Memory of one worker.
        worker_seconds: CPU time of the workers' work, for everything but learning a vocabulary;
            their start aside.
        dropped: Documents of the sample that are left out, by reason.
        warnings: What is likely not wanted, or not counted.
    """

    files: int
    stored_bytes: int
    formats: Mapping[str, int]
    parts: int
    documents: int
    cleaned_bytes: int
    tokens: int
    sources: tuple[SourcePlan, ...]
    token_bytes: int
    buckets: int
    lengths: tuple[LengthPlan, ...]
    tasks: int
    worker_bytes: int
    worker_seconds: float
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]

    def reads(self, *, shuffles: bool) -> int:
        """Reading requests to the stores: the input, each part's index twice, and the documents of each bucket."""
        of_buckets = (
            self.parts if shuffles else self.tasks * min(self.parts, self.documents // self.buckets)
        )
        return 3 * self.parts + of_buckets

    @property
    def writes(self) -> int:
        """Writing requests to the stores: four a part, and a shard with its record, which is removed."""
        return 4 * self.parts + 3 * self.tasks

    def shard_bytes(self, passes: int) -> float:
        """Bytes of the train shards of all lengths and passes."""
        return passes * sum(each.instances * each.bytes_each for each in self.lengths)

    def cpu_seconds(self, workers: int) -> float:
        """CPU time of the whole build; one local worker is the launcher itself."""
        started = workers if workers > 1 else 0
        return _LAUNCHER_SECONDS + _JOBS * started * _WORKER_START_SECONDS + self.worker_seconds

    def seconds(self, workers: int) -> float:
        """Time by the clock, where every worker has a core of its own."""
        starts = _JOBS * _WORKER_START_SECONDS if workers > 1 else 0
        return _LAUNCHER_SECONDS + starts + self.worker_seconds / workers


def make_plan(
    settings: BuildSettings,
    files: Sequence[InputFile],
    parts: Sequence[Part],
    rule_for: Callable[[BuildSettings, Vocabulary, int], InstanceRule],
) -> BuildPlan:
    """Measures a sample and scales it to the whole input.

    Args:
        settings: The settings of the build.
        files: The input's.
        parts: The parts that the tokens job would read.
        rule_for: How instances of a length are made.

    Raises:
        ValueError: Malformed input, or too few documents.
    """
    sample = take_sample(settings, files, parts)
    scales = [
        sum(file.size for file in files if file.source == number) / max(1, stored_bytes)
        for number, stored_bytes in enumerate(sample.stored_bytes)
    ]
    documents_of = sample.scaled(scales, len)
    bytes_of = sample.scaled(scales, lambda own: sum(document.cleaned_bytes for document in own))
    documents, cleaned_bytes = sum(documents_of), sum(bytes_of)
    tokens_of = sample.scaled(scales, lambda own: sum(len(document.tokens) for document in own))
    tokens = sum(tokens_of)
    prefixes = num_prefixes(cleaned_bytes)
    spread = np.diff(-(-np.arange(prefixes + 1) * documents // prefixes))
    used_bytes, used = apply_weights(settings.weights, documents_of, bytes_of)
    buckets = choose_num_buckets(spread, used_bytes, settings.num_buckets, "num_buckets", used)
    held_out = wanted_tokens(
        tokens, settings.validation_fraction, settings.validation_tokens
    ) / max(1, tokens)
    lengths = tuple(
        _plan_length(
            sample,
            rule_for(settings, sample.vocabulary, seq_len),
            [each * (1 - held_out) for each in scales],
        )
        for seq_len in settings.seq_lens
    )
    token_bytes = sum(
        sample.scaled(scales, lambda own: sum(map(len, (*pack_documents(own), pack_places(own)))))
    )
    shard_bytes = max(length.instances * length.bytes_each for length in lengths) / buckets
    encoding = sum(scale * seconds for scale, seconds in zip(scales, sample.seconds, strict=True))
    building = settings.passes * sum(each.instances * each.seconds_each for each in lengths)
    # A resident process with everything imported, a part as text, sentences and tokens, or a bucket
    # and its shard.
    worker_bytes = _peak_bytes() + max(
        6 * settings.part_bytes, round(token_bytes / buckets + 2 * shard_bytes)
    )
    return BuildPlan(
        files=len(files),
        stored_bytes=sum(file.size for file in files),
        formats=Counter(each.format for part in parts for each in part.ranges),
        parts=len(parts),
        documents=documents,
        cleaned_bytes=cleaned_bytes,
        tokens=tokens,
        sources=_plan_sources(settings.corpus, documents_of, tokens_of),
        token_bytes=token_bytes,
        buckets=buckets,
        lengths=lengths,
        tasks=buckets * settings.passes * len(lengths),
        worker_bytes=worker_bytes,
        worker_seconds=_OVERHEAD * (encoding + building),
        dropped=sample.dropped,
        warnings=(
            *_files_of_one_worker(settings, parts, sample),
            *_warnings(lengths, buckets),
            *_passes_read(settings, lengths),
            *_not_counted(settings),
        ),
    )


def format_plan(plan: BuildPlan, workers: int, passes: int) -> str:
    """The plan as lines for a person."""
    formats = ", ".join(f"{count} {name}" for name, count in sorted(plan.formats.items()))
    instances = (
        f"  L{each.seq_len}: {each.instances:,} train instances a pass, {_size(each.instances * each.bytes_each)},"
        f" {each.instances // plan.buckets:,} a shard"
        for each in plan.lengths
    )
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in plan.dropped.items())
    sources = (f"  {_format_source(each, len(plan.sources))}" for each in plan.sources)
    rows = [
        f"input: {plan.files:,} file(s), {_size(plan.stored_bytes)} as stored; ranges read: {formats}",
        f"about {plan.documents:,} documents, {_size(plan.cleaned_bytes)} of text, {plan.tokens:,} tokens (copies too)",
        *sources,
        f"{plan.parts:,} part(s) to encode, then {plan.buckets} train bucket(s), x {passes} pass(es)",
        *instances,
        f"storage: {_size(plan.token_bytes)} of tokens (may be deleted afterwards),"
        f" {_size(plan.shard_bytes(passes))} of shards",
        f"requests: some {plan.reads(shuffles=False) + plan.writes:,};"
        f" memory of a worker: some {_size(plan.worker_bytes)}",
        f"time: some {_hours(plan.seconds(workers))} with {workers} worker(s) on as many cores as fast as this one,"
        f" {_hours(plan.cpu_seconds(workers))} of CPU; a vocabulary to learn comes on top",
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


def _plan_sources(
    sources: Sequence[Source], documents: Sequence[int], tokens: Sequence[int]
) -> tuple[SourcePlan, ...]:
    used = [source.millionths * own for source, own in zip(sources, tokens, strict=True)]
    return tuple(
        SourcePlan(
            source.name, source.weight, own_documents, own_tokens, own_used / max(1, sum(used))
        )
        for source, own_documents, own_tokens, own_used in zip(
            sources, documents, tokens, used, strict=True
        )
    )


def _plan_length(sample: Sample, rule: InstanceRule, scales: Sequence[float]) -> LengthPlan:
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
    source_of = {
        int.from_bytes(key[:8], "big"): source
        for key, source in zip(documents.ids, documents.sources, strict=True)
    }
    instances = Counter(source_of[key] for block in blocks for key in block.document_a.tolist())
    weights = rule.weights or (UNIT,) * len(scales)
    total = sum(
        scale * weight / UNIT * instances[number]
        for number, (scale, weight) in enumerate(zip(scales, weights, strict=True))
    )
    each = max(1, shard.instances)
    return LengthPlan(rule.seq_len, round(total), len(tar) / each, seconds / each)


def _files_of_one_worker(
    settings: BuildSettings, parts: Sequence[Part], sample: Sample
) -> Iterator[str]:
    """Files that cannot be cut and are long: a worker takes one from its beginning to its end."""
    long = [part for part in parts if part.text_bytes > _LONG_PARTS * settings.part_bytes]
    if long:
        part = max(long, key=lambda part: part.text_bytes)
        stored_bytes = sum(each.num_bytes for each in part.ranges)
        seconds = (
            sample.seconds[part.source] / max(1, sample.stored_bytes[part.source]) * stored_bytes
        )
        yield (
            f"{hide(part.ranges[0].url)} cannot be cut: one worker reads its {_size(part.text_bytes)} of text, some"
            f" {_hours(seconds)}; {len(long)} file(s) are more than {_LONG_PARTS} parts long, cut such into files of"
            f" {_size(settings.part_bytes)} of text"
        )


def _warnings(lengths: Sequence[LengthPlan], buckets: int) -> list[str]:
    found = []
    for each in lengths:
        blocks = each.instances // block_instances(each.seq_len)
        lanes = max(1, min(_MAX_LANES, blocks // 8))
        if lanes < _MAX_LANES:
            found.append(
                f"L{each.seq_len}: training reads {lanes} place(s) at once; more ranks than that read twice"
            )
        if blocks < buckets:
            found.append(
                f"L{each.seq_len}: {buckets} shards share {blocks} full block(s); fewer num_buckets suffice"
            )
    return found


def _passes_read(settings: BuildSettings, lengths: Sequence[LengthPlan]) -> Iterator[str]:
    """What the training makes of the passes: those that it never reaches, or reads more than once."""
    for read, each in zip(settings.training_instances, lengths, strict=False):
        needed = -(-read // max(1, each.instances))
        if needed < settings.passes:
            yield f"L{each.seq_len}: training on {read:,} instances reads {needed} of {settings.passes} passes, no more"
        elif needed > settings.passes:
            times = read / (max(1, each.instances) * settings.passes)
            yield (
                f"L{each.seq_len}: training on {read:,} instances reads each pass {times:.1f} times; more passes"
                " show other masks"
            )


def _not_counted(settings: BuildSettings) -> Iterator[str]:
    if settings.near_duplicates is not None:
        yield "near-duplicates cannot be told from a sample: counted as if all stayed"
    if settings.exclude_documents_of:
        yield f"documents of {', '.join(settings.exclude_documents_of)} are counted as if they stayed"


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def _hours(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:,.1f} hours"
