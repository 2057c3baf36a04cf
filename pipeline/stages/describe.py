"""manifest.json of a finished build: its settings, and what was read, dropped and kept, in all and of each source."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

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
    content = settings.content(vocabulary.sha256, store.totals.documents_hash, store.deciding)
    special = {
        name: getattr(vocabulary, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask")
    }
    totals = store.totals
    counters = dict(store.counters) | _count_distinct(totals)
    software = {
        "beambert": importlib.metadata.version("beambert"),
        "python": platform.python_version(),
    }
    software |= {"numpy": np.__version__, "pyarrow": pa.__version__}
    return Manifest(
        format_version=FORMAT_VERSION,
        software=software,
        settings=content,
        settings_hash=canonical_hash(content),
        vocab_sha256=vocabulary.sha256,
        tokenizer_sha256=hashlib.sha256(
            tokenizer_json(vocabulary, settings.lower_case).encode()
        ).hexdigest(),
        vocab_size=len(vocabulary),
        special_ids=special,
        groups=group_totals(shards),
        counters=counters,
        root_hash=root_hash(shards),
        seal=seal,
        sources=tuple(
            describe_source(*each)
            for each in zip(
                settings.corpus,
                store.source_counters,
                totals.sources,
                held_out.sources,
                strict=True,
            )
        ),
    )


def count_documents(settings: BuildSettings, store: TokenStore) -> dict[str, dict[str, int]]:
    """The counters of each source, by its name."""
    rows = zip(settings.corpus, store.source_counters, store.totals.sources, strict=True)
    return {
        source.name: dict(counters) | _count_distinct(totals) for source, counters, totals in rows
    }


def describe_source(
    source: Source, counters: Mapping[str, int], totals: SourceTotals, validation: HeldOutSource
) -> dict[str, Any]:
    """A source as the manifest has it: its name, what became of its documents, and what it holds out."""
    named = {"name": source.name, "language": source.language, "weight": source.millionths / UNIT}
    return named | {
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
