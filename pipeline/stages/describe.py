"""manifest.json of a finished build: its settings, and what was read, dropped and kept."""

import hashlib
import importlib.metadata
import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.documents.source import UNIT, Source
from pipeline.settings import BuildSettings
from pipeline.shards.manifest import FORMAT_VERSION, group_totals, root_hash
from pipeline.shards.records import Manifest, Shard, canonical_hash
from pipeline.shards.seal import Seal
from pipeline.stages.build_tokens import TokenStore
from pipeline.tokens.held_out import HeldOut, HeldOutSource, SourceTotals
from pipeline.tokens.token_index import Totals
from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary


def describe_dataset(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    store: TokenStore,
    held_out: HeldOut,
    shards: Sequence[Shard],
    seal: Seal,
) -> Manifest:
    """The manifest of a dataset of all these shards, and of documents that this is the seal of."""
    totals = store.totals
    content = settings.content(vocabulary.sha256, totals.documents_hash, store.deciding)
    tokenizer = tokenizer_json(vocabulary, settings.word_rule).encode()
    special = ("pad", "unk", "cls", "sep", "mask")
    software = {name: importlib.metadata.version(name) for name in ("beambert", "numpy", "pyarrow")}
    columns = (settings.corpus, store.source_counters, totals.sources, held_out.sources)
    return Manifest(
        format_version=FORMAT_VERSION,
        software=software | {"python": platform.python_version()},
        settings=content,
        settings_hash=canonical_hash(content),
        vocab_sha256=vocabulary.sha256,
        tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        vocab_size=len(vocabulary),
        special_ids={name: getattr(vocabulary, f"{name}_id") for name in special},
        groups=group_totals(shards),
        counters=dict(store.counters) | _count_distinct(totals),
        root_hash=root_hash(shards),
        seal=seal,
        sources=tuple(itertools.starmap(_describe_source, zip(*columns, strict=True))),
    )


def count_documents(settings: BuildSettings, store: TokenStore) -> dict[str, dict[str, int]]:
    """The counters of each source, by its name."""
    rows = zip(settings.corpus, store.source_counters, store.totals.sources, strict=True)
    return {
        source.name: dict(counters) | _count_distinct(totals) for source, counters, totals in rows
    }


def _describe_source(
    source: Source, counters: Mapping[str, int], totals: SourceTotals, validation: HeldOutSource
) -> dict[str, Any]:
    return {
        "name": source.name,
        "language": source.language,
        "weight": source.millionths / UNIT,
        "counters": dict(counters) | _count_distinct(totals),
        "validation": asdict(validation),
    }


def _count_distinct(totals: Totals | SourceTotals) -> dict[str, int]:
    return {f"dropped_{reason}": count for reason, count in totals.dropped.items()} | {
        "dropped_duplicate": totals.duplicates,
        "documents": totals.documents,
        "cleaned_bytes": totals.cleaned_bytes,
        "distinct_tokens": totals.tokens,
    }
