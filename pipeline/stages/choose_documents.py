"""Which documents of a finished folder of token parts are left out because of what other documents there are.

Those of other datasets and near-duplicates are found here, after the tokens job and before the
index, and written as one sorted file of ids (pipeline.tokens.dropped_ids). Both look at ids and
signatures only, a 256th of the ids at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class NearDuplicate:
    """An example: the id of a document that was dropped, of one it is like, and their estimated similarity."""

    document: bytes
    other: bytes
    similarity: float


@dataclass
class Found:
    """What is known of the documents that are left out.

    Attributes:
        reasons: Those looked for; none where both filters are off, and then there is no
            dropped.ids.
        near_duplicates: The first few that were dropped, by id.
    """

    reasons: tuple[str, ...] = ()
    near_duplicates: list[NearDuplicate] = field(default_factory=list)


def choice_content(settings: BuildSettings) -> dict[str, Any]:
    """Settings, unless they are defaults, by which the corpus as a whole leaves documents out or holds them out.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: It is the one being built, or is damaged.
    """
    content: dict[str, Any] = {}
    if settings.validation_tokens != VALIDATION_TOKENS:
        content["validation_tokens"] = settings.validation_tokens
    if settings.near_duplicates is not None:
        content["near_duplicates"] = settings.near_duplicates
    if settings.exclude_documents_of:
        datasets = _open_excluded(settings)
        content["excluded_documents"] = sorted(
            {each.manifest.settings["documents_hash"] for each in datasets}
        )
    return content


def drop_documents(
    settings: BuildSettings, names: Sequence[str], index: LocalGroups, beam_arguments: Sequence[str]
) -> Found:
    """Finds what is left out among the documents of some token parts, and writes dropped.ids.

    Args:
        settings: The settings of the build.
        names: The names of the token parts.
        index: The index of these parts, fetched.
        beam_arguments: The user's arguments for Beam.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: It is damaged.
    """
    folder = settings.open_tokens()
    found = Found()
    sources: dict[str, Iterator[npt.NDArray[np.bytes_]]] = {}
    if settings.exclude_documents_of:
        sources[EXCLUDED] = _join_groups([iterate_ids(each) for each in _open_excluded(settings)])
    if settings.near_duplicates is not None:
        rule = similarity_rule(settings.near_duplicates)
        ranges = run_near_duplicates_job(names, rule, folder, settings.workers, beam_arguments)
        sources[NEAR_DUPLICATE] = _read_found(folder, ranges, found)
    if sources:
        found.reasons = tuple(sources)
        rows = map(distinct_rows, iterate_index(index))
        write_groups(folder, DROPPED, _choose_groups(rows, sources))
    return found


def describe_near_duplicates(
    folder: Folder, names: Sequence[str], found: Sequence[NearDuplicate]
) -> list[dict[str, str]]:
    """Examples for people, once the index of the folder is there: where both documents are in the input."""
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
        for _ in groups:
            raise AssertionError(f"more than {NUM_GROUPS} groups of ids")


def _open_excluded(settings: BuildSettings) -> list[Dataset]:
    options = settings.filesystem_options()
    own = settings.open_output().path
    datasets = [open_excluded(url, options) for url in settings.exclude_documents_of]
    if any(dataset.folder.path == own for dataset in datasets):
        raise ValueError(
            f"exclude_documents_of: {settings.output} is the dataset being built; give another --output"
        )
    return datasets


def _join_groups(
    streams: Sequence[Iterator[npt.NDArray[np.bytes_]]],
) -> Iterator[npt.NDArray[np.bytes_]]:
    for groups in zip(*streams, strict=True):
        yield np.concatenate(groups)


def _read_found(
    folder: Folder, ranges: Sequence[KeyRange], found: Found
) -> Iterator[npt.NDArray[np.bytes_]]:
    """The ids that the job found, in 256 groups; the first of them become examples."""
    with open_groups(folder, [keys.file_name for keys in ranges], FOUND_DTYPE) as files:
        for group in files:
            rows = keep_smallest(group)
            for row in rows[: _NUM_EXAMPLES - len(found.near_duplicates)]:
                ids = join_id(row["high"], row["low"]), join_id(row["other_high"], row["other_low"])
                found.near_duplicates.append(
                    NearDuplicate(*ids, similarity_of(int(row["matches"])))
                )
            yield id_keys(rows)
