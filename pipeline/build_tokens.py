"""The tokens stage: runs the tokens job over the parts that are not finished, then indexes all of them.

tokens.json is written last; it names the parts that belong to the input, and only those are ever read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import apache_beam as beam

from pipeline.documents.parts import Part
from pipeline.run_beam import pipeline_options, run_graph
from pipeline.settings import BuildSettings, describe_changes
from pipeline.shards.manifest import json_bytes
from pipeline.shards.storage import list_files, open_filesystem, read_file, remove_files, write_atomic
from pipeline.token_index import SourceTotals, Totals, build_index
from pipeline.token_parts import LAYOUT
from pipeline.tokens_job import (
    CleanDocuments,
    EncodeDocuments,
    ReadDocuments,
    SplitSentences,
    WriteTokenParts,
    finished_parts,
    read_counters,
    read_examples,
    record_stem,
    sum_counters,
)
from tokenizer.vocab import Vocabulary

STORE = "tokens.json"
SETTINGS = "settings.json"
INDEX = "index.parquet"


@dataclass(frozen=True)
class TokenStore:
    """tokens.json: the encoded documents of one input.

    Attributes:
        settings: What decided their content.
        parts_key: Hash of the parts of the input.
        part_names: Names of the token parts.
        counters: Documents read, dropped by reason, cut; sentences, tokens and unknown tokens of all kept ones.
        totals: Distinct documents.
        source_counters: The counters of each source, by its number.
        dropped_examples: A few dropped documents of each reason; they decide nothing.
    """

    settings: Mapping[str, Any]
    parts_key: str
    part_names: tuple[str, ...]
    counters: Mapping[str, int]
    totals: Totals
    source_counters: Sequence[Mapping[str, int]]
    dropped_examples: Sequence[Mapping[str, str]] = ()


def make_tokens(
    settings: BuildSettings, vocabulary: Vocabulary, parts: Sequence[Part], beam_arguments: Sequence[str]
) -> TokenStore:
    """Encodes every part that is not finished yet and returns the store of all of them.

    Raises:
        ValueError: The folder holds tokens of other settings, or the input is malformed.
    """
    filesystem, folder = open_filesystem(settings.tokens_folder, settings.filesystem_options())
    content = store_settings(settings, vocabulary.sha256)
    _claim_folder(filesystem, folder, settings.tokens_folder, content)
    key = hashlib.blake2b("".join(sorted(part.key for part in parts)).encode(), digest_size=16).hexdigest()
    if filesystem.exists(f"{folder}/{STORE}"):
        store = read_store(filesystem, folder)
        if store.parts_key == key:
            _remove_other_parts(filesystem, folder, store.part_names)  # a kill may have come before it
            return store
    _run_job(settings, vocabulary, parts, beam_arguments)
    records = [record for found in finished_parts(list_files(filesystem, folder), parts).values() for record in found]
    names = sorted(record_stem(record) for record in records)
    num_sources = len(settings.corpus)
    totals, index = build_index(filesystem, folder, names, num_sources)
    write_atomic(filesystem, f"{folder}/{INDEX}", index)
    by_source = read_counters(filesystem, folder, records)
    examples = read_examples(filesystem, folder, records)
    rows = [by_source.get(source, {}) for source in range(num_sources)]
    store = TokenStore(content, key, tuple(names), sum_counters(by_source), totals, rows, examples)
    write_atomic(filesystem, f"{folder}/{STORE}", json_bytes(asdict(store)))
    _remove_other_parts(filesystem, folder, names)
    return store


def read_store(filesystem: Any, folder: str) -> TokenStore:
    """Reads tokens.json.

    Raises:
        FileNotFoundError: The tokens job has not finished there.
        ValueError: Its parts have another layout.
    """
    try:
        fields = json.loads(read_file(filesystem, f"{folder}/{STORE}"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} holds no {STORE}: run `python -m pipeline tokens` first") from error
    if fields["settings"].get("layout") != LAYOUT:
        raise ValueError(f"{folder} holds token parts of an earlier version; delete the folder and build again")
    totals = fields.pop("totals")
    sources = tuple(SourceTotals(**each) for each in totals.pop("sources"))
    return TokenStore(totals=Totals(**totals, sources=sources), part_names=tuple(fields.pop("part_names")), **fields)


def store_settings(settings: BuildSettings, vocab_sha256: str) -> dict[str, Any]:
    """What a folder of token parts says of itself: what decides their content, and how they are laid out."""
    return settings.tokens_content(vocab_sha256) | {"layout": LAYOUT}


def _claim_folder(filesystem: Any, folder: str, url: str, content: Mapping[str, Any]) -> None:
    """Writes settings.json, or compares it: a folder of token parts belongs to one set of settings."""
    path = f"{folder}/{SETTINGS}"
    if not filesystem.exists(path):
        write_atomic(filesystem, path, json_bytes(content))
        return
    found = json.loads(read_file(filesystem, path))
    if changed := describe_changes(found, content):
        raise ValueError(f"{url} holds tokens of other settings: {changed}; give the same ones, or another folder")


def _run_job(
    settings: BuildSettings, vocabulary: Vocabulary, parts: Sequence[Part], beam_arguments: Sequence[str]
) -> None:
    filesystem, folder = open_filesystem(settings.tokens_folder, settings.filesystem_options())
    finished = finished_parts(list_files(filesystem, folder), parts)
    # Largest first: runners deal parts out in turn, so the workers end together.
    missing = sorted((part for part in parts if part.key not in finished), key=lambda part: -part.text_bytes)
    if not missing:
        return

    def build(pipeline: beam.Pipeline) -> None:
        add_tokens_graph(pipeline, settings, vocabulary, missing)

    def count() -> int:
        return len(finished_parts(list_files(filesystem, folder), missing))

    run_graph("tokens", build, pipeline_options(settings.workers, beam_arguments), len(missing), count)


def add_tokens_graph(
    pipeline: beam.Pipeline, settings: BuildSettings, vocabulary: Vocabulary, parts: Sequence[Part]
) -> None:
    """The whole tokens job: parts of the input to token parts."""
    options = settings.filesystem_options()
    _ = (
        pipeline
        | "Parts" >> beam.Create(parts, reshuffle=True)
        | ReadDocuments(
            [source.text_field for source in settings.corpus], settings.on_bad_document, settings.part_bytes, options
        )
        | CleanDocuments()
        | SplitSentences([source.language for source in settings.corpus])
        | EncodeDocuments(vocabulary.to_text().encode(), settings.lower_case)
        | WriteTokenParts(settings.tokens_folder, options)
    )


def _remove_other_parts(filesystem: Any, folder: str, stems: Sequence[str]) -> None:
    """Removes parts of an earlier input or cut, and what an interrupted task left."""
    endings = (".tokens", ".index", ".places", ".json", "-last.json")
    kept = {STORE, SETTINGS, INDEX} | {f"{stem}{ending}" for stem in stems for ending in endings}
    remove_files(filesystem, folder, [name for name in list_files(filesystem, folder) if name not in kept])
