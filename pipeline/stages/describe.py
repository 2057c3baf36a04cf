"""Makes the manifest of a finished build: its settings, and what was read, dropped and kept."""

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
    """Returns the manifest of a dataset, without `tables_sha256`.

    `publish_dataset` adds the hashes when it has written the tables.

    Args:
        settings: Settings of the build.
        vocabulary: The vocabulary that the documents were encoded with.
        store: The encoded documents.
        held_out: The validation documents.
        shards: All shards; none for the manifest of a build that begins.
        seal: Seal of all documents.
    """
    totals = store.totals
    content = settings.content(vocabulary.sha256, totals.documents_hash, store.deciding)
    tokenizer = tokenizer_json(vocabulary, settings.word_rule).encode()
    special_tokens = ("pad", "unk", "cls", "sep", "mask")
    sources = zip(
        settings.corpus, store.source_counters, totals.sources, held_out.sources, strict=True
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        software=software_versions(),
        settings=content,
        settings_hash=canonical_hash(content),
        vocab_sha256=vocabulary.sha256,
        tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        vocab_size=len(vocabulary),
        special_ids={name: getattr(vocabulary, f"{name}_id") for name in special_tokens},
        groups=group_totals(shards),
        counters=dict(store.counters) | _count_distinct(totals),
        root_hash=root_hash(shards),
        seal=seal,
        sources=tuple(itertools.starmap(_describe_source, sources)),
    )


def software_versions() -> dict[str, str]:
    """Returns the versions of the programs that decide the bytes of a dataset, by name."""
    versions = {name: importlib.metadata.version(name) for name in ("beambert", "numpy", "pyarrow")}
    return versions | {"python": platform.python_version()}


def count_documents(settings: BuildSettings, store: TokenStore) -> dict[str, dict[str, int]]:
    """Returns the counters of each source, by its name: documents read, dropped by reason, kept."""
    rows = zip(settings.corpus, store.source_counters, store.totals.sources, strict=True)
    return {
        source.name: dict(counters) | _count_distinct(totals) for source, counters, totals in rows
    }


def _describe_source(
    source: Source, counters: Mapping[str, int], totals: SourceTotals, validation: HeldOutSource
) -> dict[str, Any]:
    """Returns a source as the manifest describes it.

    Args:
        source: The source.
        counters: The counters in the records of token parts, summed over its documents.
        totals: Counts of its distinct documents.
        validation: The documents of the source that are held out for validation.
    """
    return {
        "name": source.name,
        "language": source.language,
        "weight": source.millionths / UNIT,
        "counters": dict(counters) | _count_distinct(totals),
        "validation": asdict(validation),
    }


def _count_distinct(totals: Totals | SourceTotals) -> dict[str, int]:
    """Returns counts of distinct documents under the names of a manifest's counters.

    Args:
        totals: The counts of all sources together, or of one source.
    """
    return {f"dropped_{reason}": count for reason, count in totals.dropped.items()} | {
        "dropped_duplicate": totals.duplicates,
        "documents": totals.documents,
        "cleaned_bytes": totals.cleaned_bytes,
        "distinct_tokens": totals.tokens,
    }
