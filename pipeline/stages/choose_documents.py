"""Chooses the documents that are left out because of other documents, and writes dropped.ids.

A document is left out if it is a near-duplicate of another one, or if it is also in a dataset whose
documents the user excludes. These documents are found when all token parts are finished, before the
parts are indexed. Ids are divided into 256 groups by their first byte, and one group is handled at
a time, so that memory does not have to hold all ids.
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
from pipeline.tokens.dataset_ids import iterate_ids, open_with_ids
from pipeline.tokens.dropped_ids import DROPPED, EXCLUDED, NEAR_DUPLICATE, choose_dropped
from pipeline.tokens.grouped_rows import NUM_GROUPS, LocalGroups, Rows, open_groups, write_groups
from pipeline.tokens.limits import VALIDATION_TOKENS
from pipeline.tokens.near_duplicates import FOUND_DTYPE, keep_smallest, similarity_rule
from pipeline.tokens.provenance import EncodedDocuments, find_documents
from pipeline.tokens.token_index import distinct_rows, iterate_index
from pipeline.tokens.token_parts import id_keys, join_id

_NUM_EXAMPLES = 12


class NearDuplicate(NamedTuple):
    """An example of a document that was dropped as a near-duplicate.

    Attributes:
        document: Its id.
        other: Id of the document that it is like.
        similarity: Their estimated Jaccard similarity, from 0 to 1.
    """

    document: bytes
    other: bytes
    similarity: float


class Found(NamedTuple):
    """The result of looking for documents to leave out.

    Attributes:
        reasons: The reasons that were looked for, as in `dropped_ids.REASONS`. A reason is there
            even if no document was found for it.
        near_duplicates: The near-duplicates with the smallest ids, at most 12.
    """

    reasons: tuple[str, ...]
    near_duplicates: list[NearDuplicate]


def choice_content(settings: BuildSettings) -> dict[str, Any]:
    """Returns the settings that decide which documents are left out or held out (`TokenStore`).

    They are near_duplicates, the datasets whose documents are excluded, and validation_tokens. The
    datasets are identified by the hashes of their documents, not by their URLs. A setting that has
    its default value is not in the result.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: A dataset to exclude is the one being built, or is damaged.
    """
    content: dict[str, Any] = {}
    if settings.validation_tokens != VALIDATION_TOKENS:
        content["validation_tokens"] = settings.validation_tokens
    if settings.has_signatures:
        content["near_duplicates"] = settings.near_duplicates
    if settings.exclude_documents_of:
        excluded = _open_excluded(settings)
        hashes = {dataset.manifest.settings["documents_hash"] for dataset in excluded}
        content["excluded_documents"] = sorted(hashes)
    return content


def drop_documents(
    settings: BuildSettings, names: Sequence[str], index: LocalGroups, beam_arguments: Sequence[str]
) -> Found:
    """Finds the documents of token parts that are to be left out, and writes dropped.ids.

    The file is not written if the settings give no reason to leave documents out.

    Args:
        settings: Settings of the build.
        names: Names of the token parts.
        index: The index of these parts, in the same order.
        beam_arguments: The user's arguments for Beam.

    Raises:
        FileNotFoundError: A dataset to exclude is not finished, or does not say which documents it
            holds.
        ValueError: A dataset to exclude is damaged.
    """
    folder = settings.open_tokens()
    examples: list[NearDuplicate] = []
    ids_by_reason: dict[str, Iterator[npt.NDArray[np.bytes_]]] = {}  # lazily, in 256 groups
    if settings.exclude_documents_of:
        streams = [iterate_ids(dataset) for dataset in _open_excluded(settings)]
        ids_by_reason[EXCLUDED] = map(np.concatenate, zip(*streams, strict=True))
    if settings.near_duplicates is not None:
        rule = similarity_rule(settings.near_duplicates)
        num_documents = dict(zip(names, index.bounds[:, -1].tolist(), strict=True))
        ranges = run_near_duplicates_job(
            num_documents, rule, folder, settings.workers, beam_arguments
        )
        ids_by_reason[NEAR_DUPLICATE] = _read_found(folder, ranges, examples)
    if ids_by_reason:
        rows = map(distinct_rows, iterate_index(index))
        write_groups(folder, DROPPED, _choose_groups(rows, ids_by_reason))
    return Found(tuple(ids_by_reason), examples)


def describe_near_duplicates(
    folder: Folder, names: Sequence[str], found: Sequence[NearDuplicate]
) -> list[dict[str, str]]:
    """Describes near-duplicates, with their places in the input, as examples for the report.

    Args:
        folder: The folder of the token parts. The index of the parts must have been written.
        names: Names of the token parts.
        found: The near-duplicates.

    Returns:
        One dict for each near-duplicate, with the keys of all examples of dropped documents:
        "reason", "where" (its place in the input), and "text" (which document it is like).
    """
    if not found:
        return []
    tokens = EncodedDocuments(folder, {"part_names": list(names)})
    ids: list[str] = []
    for pair in found:
        ids += [pair.document.hex(), pair.other.hex()]
    places = find_documents(tokens, ids)

    examples = []
    for pair in found:
        other = pair.other.hex()
        other_place = places[other][0].place
        examples.append(
            {
                "reason": NEAR_DUPLICATE,
                "where": places[pair.document.hex()][0].place,
                "text": f"some {pair.similarity:.0%} like document {other[:16]}, {other_place}",
            }
        )
    return examples


def _choose_groups(
    rows: Iterator[Rows], ids_by_reason: Mapping[str, Iterator[npt.NDArray[np.bytes_]]]
) -> Iterator[Rows]:
    """Yields the rows of dropped.ids, in 256 groups by the first byte of the id.

    Both arguments are read lazily, one group at a time.

    Args:
        rows: For each group, its distinct documents.
        ids_by_reason: For each reason, the ids to drop in each group.
    """
    for documents in rows:
        dropped_ids = {reason: next(groups) for reason, groups in ids_by_reason.items()}
        yield choose_dropped(documents, dropped_ids)
    # Asking for one more group lets `iterate_ids` check what it has read.
    for groups in ids_by_reason.values():
        group = next(groups, None)
        assert group is None, f"more than {NUM_GROUPS} groups of ids"


def _open_excluded(settings: BuildSettings) -> list[Dataset]:
    """Opens the datasets whose documents are left out.

    Raises:
        FileNotFoundError: A dataset is not finished, or does not say which documents it holds.
        ValueError: A dataset is the one being built, or is damaged.
    """
    options = settings.filesystem_options()
    output = settings.open_output().path
    datasets = [open_with_ids(url, options) for url in settings.exclude_documents_of]
    if any(dataset.folder.path == output for dataset in datasets):
        raise ValueError(
            f"exclude_documents_of: {settings.output} is the dataset being built;"
            " give another --output"
        )
    return datasets


def _read_found(
    folder: Folder, ranges: Sequence[KeyRange], examples: list[NearDuplicate]
) -> Iterator[npt.NDArray[np.bytes_]]:
    """Yields the ids of the near-duplicates that the near-duplicates job found, lazily.

    Args:
        folder: The folder of the token parts.
        ranges: The ranges of keys that the job searched, with the names of the files of results.
        examples: A list to which the first near-duplicates are added, at most 12 in all.

    Yields:
        The ids of a group. There are 256 groups, by the first byte of the id.
    """
    with open_groups(folder, [keys.file_name for keys in ranges], FOUND_DTYPE) as files:
        for group in files:
            rows = keep_smallest(group)
            for row in rows[: _NUM_EXAMPLES - len(examples)]:
                document = join_id(row["high"], row["low"])
                other = join_id(row["other_high"], row["other_low"])
                similarity = similarity_of(int(row["matches"]))
                examples.append(NearDuplicate(document, other, similarity))
            yield id_keys(rows)
