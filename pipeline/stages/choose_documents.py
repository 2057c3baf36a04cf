"""Which documents of finished token parts are left out because of what other documents there are.

Those of other datasets and near-duplicates are found after the tokens job and before the index, a
256th of the ids at a time, and written as dropped.ids (pipeline.tokens.dropped_ids).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.jobs.near_duplicates_job import KeyRange, run_near_duplicates_job
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import Dataset
from pipeline.storage.folder import Folder
from pipeline.text.minhash import similarity_of
from pipeline.tokens.dataset_ids import iterate_ids, open_excluded
from pipeline.tokens.dropped_ids import DROPPED, EXCLUDED, NEAR_DUPLICATE, choose_dropped
from pipeline.tokens.grouped_rows import NUM_GROUPS, LocalGroups, Rows, open_groups, write_groups
from pipeline.tokens.limits import VALIDATION_TOKENS
from pipeline.tokens.near_duplicates import FOUND_DTYPE, keep_smallest, similarity_rule
from pipeline.tokens.provenance import EncodedDocuments, find_documents
from pipeline.tokens.token_index import distinct_rows, iterate_index
from pipeline.tokens.token_parts import id_keys, join_id

_NUM_EXAMPLES = 12


class NearDuplicate(NamedTuple):
    """An example: a document that was dropped, one it is like, and their estimated similarity."""

    document: bytes
    other: bytes
    similarity: float


class Found(NamedTuple):
    """Why documents are left out, and the first few near-duplicates by id."""

    reasons: tuple[str, ...]
    near_duplicates: list[NearDuplicate]


def choice_content(settings: BuildSettings) -> dict[str, Any]:
    """Settings, unless they are defaults, by which other documents leave or hold documents out.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: It is the one being built, or is damaged.
    """
    content: dict[str, Any] = {}
    if settings.validation_tokens != VALIDATION_TOKENS:
        content["validation_tokens"] = settings.validation_tokens
    if settings.has_signatures:
        content["near_duplicates"] = settings.near_duplicates
    if settings.exclude_documents_of:
        manifests = [each.manifest for each in _open_excluded(settings)]
        hashes = {each.settings["documents_hash"] for each in manifests}
        content["excluded_documents"] = sorted(hashes)
    return content


def drop_documents(
    settings: BuildSettings, names: Sequence[str], index: LocalGroups, beam_arguments: Sequence[str]
) -> Found:
    """Finds what is left out of the token parts of these names, and writes dropped.ids.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: It is damaged.
    """
    folder = settings.open_tokens()
    examples: list[NearDuplicate] = []
    sources: dict[str, Iterator[npt.NDArray[np.bytes_]]] = {}
    if settings.exclude_documents_of:
        streams = [iterate_ids(each) for each in _open_excluded(settings)]
        sources[EXCLUDED] = map(np.concatenate, zip(*streams, strict=True))
    if settings.near_duplicates is not None:
        rule = similarity_rule(settings.near_duplicates)
        numbers = dict(zip(names, index.bounds[:, -1].tolist(), strict=True))
        ranges = run_near_duplicates_job(numbers, rule, folder, settings.workers, beam_arguments)
        sources[NEAR_DUPLICATE] = _read_found(folder, ranges, examples)
    if sources:
        rows = map(distinct_rows, iterate_index(index))
        write_groups(folder, DROPPED, _choose_groups(rows, sources))
    return Found(tuple(sources), examples)


def describe_near_duplicates(
    folder: Folder, names: Sequence[str], found: Sequence[NearDuplicate]
) -> list[dict[str, str]]:
    """Examples for people: where both documents are in the input, by the folder's index."""
    tokens = EncodedDocuments(folder, {"part_names": list(names)})
    pairs = [(each.document.hex(), each.other.hex(), each.similarity) for each in found]
    places = find_documents(tokens, [each for *pair, _ in pairs for each in pair]) if pairs else {}
    return [
        {
            "reason": NEAR_DUPLICATE,
            "where": places[document][0].place,
            "text": f"some {similarity:.0%} like document {other[:16]}, {places[other][0].place}",
        }
        for document, other, similarity in pairs
    ]


def _choose_groups(
    rows: Iterator[Rows], sources: Mapping[str, Iterator[npt.NDArray[np.bytes_]]]
) -> Iterator[Rows]:
    for own in rows:
        yield choose_dropped(own, {reason: next(groups) for reason, groups in sources.items()})
    for groups in sources.values():  # what a source only knows at its end
        left = next(groups, None)
        assert left is None, f"more than {NUM_GROUPS} groups of ids"


def _open_excluded(settings: BuildSettings) -> list[Dataset]:
    options = settings.filesystem_options()
    own = settings.open_output().path
    datasets = [open_excluded(url, options) for url in settings.exclude_documents_of]
    if any(dataset.folder.path == own for dataset in datasets):
        raise ValueError(
            f"exclude_documents_of: {settings.output} is the dataset being built;"
            " give another --output"
        )
    return datasets


def _read_found(
    folder: Folder, ranges: Sequence[KeyRange], examples: list[NearDuplicate]
) -> Iterator[npt.NDArray[np.bytes_]]:
    """The ids that the job found, in 256 groups; the first of them become examples."""
    with open_groups(folder, [keys.file_name for keys in ranges], FOUND_DTYPE) as files:
        for group in files:
            rows = keep_smallest(group)
            for row in rows[: _NUM_EXAMPLES - len(examples)]:
                ids = join_id(row["high"], row["low"]), join_id(row["other_high"], row["other_low"])
                examples.append(NearDuplicate(*ids, similarity_of(int(row["matches"]))))
            yield id_keys(rows)
