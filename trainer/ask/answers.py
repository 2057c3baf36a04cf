"""Answers questions about a run as records, which are written as a table, JSON lines or a page.

A record is a mapping with plain values. Its `kind` is one of these:

- step: what one step read, followed by its records of kind instance and document;
- instance: one instance of a step, with its tokens and masks;
- document: where a document is from and, if it was asked for, how often steps have read it;
- read: one time that a step read an instance of the document whose record comes before;
- claim: a claim of a certificate, with a verdict (trainer/replay/claims.py);
- blame, half, culprit: what makes the gradient of a step large (trainer/replay/blame_step.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.inspect.show import describe_instance, read_vocabulary
from pipeline.tokens.named_documents import (
    DocumentPlace,
    find_at_place,
    find_ids,
    ids_of_text,
    parse_name,
)
from tokenizer.vocab import Vocabulary
from trainer.ask.asked_run import AskedRun
from trainer.ask.origins import Origins
from trainer.ask.reads import DocumentKey, Read, find_all_reads
from trainer.ask.step_instances import StepContent

Record = Mapping[str, Any]

_ID_DIGITS = 16
"""The number of hex digits of a document's id that instances hold, of 32."""


def answer_steps(
    run: AskedRun, contents: Iterator[StepContent], origins: Origins | None
) -> Iterator[Record]:
    """Yields the records of steps, lazily.

    Each step has its own record, then the records of its instances, and then those of the documents
    in these instances. A document gets no record if an earlier step had it already, or if its
    origin is not known.

    Args:
        run: The run.
        contents: What the steps read.
        origins: Looks up where documents are from; None leaves out the records of documents.
    """
    vocabulary = read_vocabulary(run.mixture[0].dataset)
    named: set[tuple[int, str]] = set()
    for content in contents:
        documents = documents_of(content)
        yield _describe_step(run, content, len({document for _, document in documents}))
        for slot in range(content.block.num_instances):
            yield describe_slot(run, content, slot, vocabulary)
        fresh = sorted(documents - named)
        named |= documents
        if origins is not None:
            yield from describe_origins(run, origins, fresh)


def _describe_step(run: AskedRun, content: StepContent, num_documents: int) -> Record:
    """Returns the record of a step.

    Args:
        run: The run.
        content: What the step read.
        num_documents: The number of different documents in the step's instances.
    """
    anomaly = content.anomaly
    refused = {} if anomaly is None else {"grad_norm": anomaly.grad_norm, "limit": anomaly.limit}
    return {
        "kind": "step",
        "step": content.step,
        "phase": content.phase,
        "seq_len": content.seq_len,
        "position": content.position,
        "instances": content.block.num_instances,
        "documents": num_documents,
        "tokens": content.block.num_tokens,
        "masked": content.block.num_masked,
        "is_used": anomaly is None if run.knows_refused else None,
        "is_undone": content.is_undone,
        **refused,
        "checkpoints_before": [step for step in run.checkpoints if step < content.step],
    }


def describe_slot(run: AskedRun, content: StepContent, slot: int, vocabulary: Vocabulary) -> Record:
    """Returns the record of an instance of a step, with its tokens and masks.

    Args:
        run: The run.
        content: What the step read.
        slot: The number of the instance in the step's global batch, from 0.
        vocabulary: The vocabulary, by which tokens are shown as text.
    """
    block = content.block.slice(slot, slot + 1)
    described = describe_instance(block, vocabulary)
    shard = content.shard[slot]
    return {
        "kind": "instance",
        "step": content.step,
        "slot": slot,
        "dataset": run.mixture[int(content.dataset[slot])].name,
        "epoch": int(content.epoch[slot]),
        "pass": shard.pass_index,
        "shard": shard.name,
        "row": int(content.row[slot]),
        **described,
        "input_ids": block.input_ids.tolist(),
        "segment_a_length": int(block.segment_a_length[0]),
        "masked_lm_positions": block.masked_lm_positions.tolist(),
        "masked_lm_ids": block.masked_lm_ids.tolist(),
    }


def documents_of(content: StepContent) -> set[tuple[int, str]]:
    """Returns the documents of a step's instances.

    Args:
        content: What the step read.

    Returns:
        Pairs of the index of a dataset in the mixture, and a document's id as instances hold it, 16
        hex digits.
    """
    datasets = content.dataset.tolist()
    return {
        (dataset, f"{document:016x}")
        for documents in (content.block.document_a, content.block.document_b)
        for dataset, document in zip(datasets, documents.tolist(), strict=True)
    }


def describe_origins(
    run: AskedRun, origins: Origins, documents: Sequence[tuple[int, str]]
) -> Iterator[Record]:
    """Yields a record for each document whose origin is known.

    Args:
        run: The run.
        origins: Looks up where documents are from.
        documents: The index of each document's dataset in the mixture, and its id in hex digits.
    """
    for dataset, source in enumerate(run.mixture):
        ids = [document for of_dataset, document in documents if of_dataset == dataset]
        for origin in origins.find(dataset, ids).values():
            yield {"kind": "document", "dataset": source.name, **asdict(origin)}


@dataclass(frozen=True)
class NamedDocument:
    """A document that was asked for, in one dataset of the mixture.

    Attributes:
        name: The text by which the question named the document.
        dataset: The index of the dataset in the mixture.
        id: The first 16 to 32 hex digits of the document's id.
        is_known: Whether the dataset is known to have the document. A dataset without a list of its
            documents may have it or not, which is known once its instances were searched.
    """

    name: str
    dataset: int
    id: str
    is_known: bool


def name_documents(
    run: AskedRun, names: Sequence[str], texts: Sequence[str], origins: Origins
) -> list[NamedDocument]:
    """Returns the documents that a person named, in each dataset that has them.

    Args:
        run: The run.
        names: Names of documents. Each is the beginning of an id, or SOURCE:PLACE: the name of a
            source, and the document's place in it, such as FILE:LINE.
        texts: Paths of local files. Each holds the whole text of one document.
        origins: Gives the encoded documents of the datasets, which know the places.

    Raises:
        FileNotFoundError: A file of `texts` is missing.
        ValueError: A name is malformed, no dataset has the document, or a place cannot be looked up
            because the encoded documents of a dataset were deleted.
    """
    documents: list[NamedDocument] = []
    for name in names:
        parsed = parse_name(name)
        if isinstance(parsed, DocumentPlace):
            found = list(_at_place(run, name, parsed, origins))
        else:
            found = [
                document
                for dataset in range(len(run.mixture))
                for document in _with_id(run, name, dataset, parsed)
            ]
        documents += _require(run, name, found)
    for name in texts:
        text = Path(name).read_bytes()
        documents += _require(run, name, list(_of_text(run, name, text)))
    return documents


def _with_id(run: AskedRun, name: str, dataset: int, id_start: str) -> Iterator[NamedDocument]:
    """Yields the documents of one dataset whose ids begin with some digits.

    If the dataset has no list of its documents, one document is yielded whose `is_known` is False.

    Args:
        run: The run.
        name: The text by which the user named the document. It becomes the `name` of what is
            yielded.
        dataset: The index of the dataset in the mixture.
        id_start: The first 16 to 32 hex digits of the id.
    """
    ids = find_ids(run.mixture[dataset].dataset, id_start)
    if ids is None:
        yield NamedDocument(name, dataset, id_start, is_known=False)
        return
    yield from (NamedDocument(name, dataset, document, is_known=True) for document in ids)


def _at_place(
    run: AskedRun, name: str, place: DocumentPlace, origins: Origins
) -> Iterator[NamedDocument]:
    """Yields the documents at a place of a source, in every dataset that has this source.

    The encoded documents also have documents that the build dropped later, such as near-duplicates.
    A dataset does not have them, so they are not yielded.

    Raises:
        ValueError: No dataset has a source of that name; or a dataset has it, but its encoded
            documents, which know the places, were deleted.
    """
    names: list[str] = []
    for dataset, source in enumerate(run.mixture):
        of_dataset = [str(each["name"]) for each in source.dataset.manifest.sources]
        names += of_dataset
        if place.source not in of_dataset:
            continue
        tokens = origins.tokens(dataset)
        if tokens is None:
            raise ValueError(
                f"{name}: where the documents of {source.dataset.url} are from is not known any"
                " more, because its encoded documents (tokens/) are gone; give the document's id,"
                " or --text with a file of its text"
            )
        for document in find_at_place(source.dataset, tokens, place):
            yield from _with_id(run, name, dataset, document)
    if place.source not in names:
        raise ValueError(
            f"{name}: no dataset of {run.name} has a source {place.source!r}; they have"
            f" {', '.join(dict.fromkeys(names)) or 'none'}"
        )


def _of_text(run: AskedRun, name: str, text: bytes) -> Iterator[NamedDocument]:
    """Yields the documents of all datasets that have the text of a file.

    Args:
        run: The run.
        name: The path of the file.
        text: The content of the file.

    Raises:
        ValueError: The file is not UTF-8, or is empty.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}; give a file of plain text") from error
    for dataset, source in enumerate(run.mixture):
        for document in sorted(ids_of_text(source.dataset, decoded, name)):
            yield from _with_id(run, name, dataset, document)


def _require(run: AskedRun, name: str, found: Sequence[NamedDocument]) -> Sequence[NamedDocument]:
    """Returns the documents that were found, or raises a ValueError if there is none.

    Args:
        run: The run.
        name: The name by which a person asked for them, for the message.
        found: The documents.
    """
    if not found:
        raise ValueError(_unknown(run, name))
    return found


def _unknown(run: AskedRun, name: str) -> str:
    """Returns the message about a document that no dataset has."""
    urls = ", ".join(source.dataset.url for source in run.mixture)
    return f"{name}: no dataset of {run.name} has this document ({urls})"


def answer_documents(
    run: AskedRun,
    documents: Sequence[NamedDocument],
    origins: Origins | None,
    cache_dir: str | None,
    say: Callable[[str], object],
) -> Iterator[Record]:
    """Yields the record of each document, followed by one record for each time it was read.

    Args:
        run: The run.
        documents: The documents, from `name_documents`.
        origins: Looks up where documents are from; None leaves that out.
        cache_dir: The folder for the index from documents to instances, which is built if it is not
            there; None for the default.
        say: Called with messages about the progress of building the index.

    Raises:
        ValueError: One of the documents is in no dataset.
    """
    ids: dict[int, list[int]] = {}
    for document in documents:
        ids.setdefault(document.dataset, []).append(_key(document)[1])
    reads, num_instances = find_all_reads(run, ids, cache_dir, say)
    for name in dict.fromkeys(document.name for document in documents):
        of_name = [document for document in documents if document.name == name]
        held = [each for each in of_name if each.is_known or num_instances[_key(each)]]
        if not held:
            raise ValueError(_unknown(run, name))
        for document in held:
            of_document = reads.get(_key(document), [])
            yield _describe_document(
                run, document, of_document, num_instances[_key(document)], origins
            )
            yield from (_describe_read(run, read) for read in of_document)


def _key(document: NamedDocument) -> DocumentKey:
    """Returns the key by which a document is found in instances, which hold only part of its id."""
    return document.dataset, int(document.id[:_ID_DIGITS], 16)


def _describe_document(
    run: AskedRun,
    document: NamedDocument,
    reads: Sequence[Read],
    num_instances: int,
    origins: Origins | None,
) -> Record:
    """Returns the record of a document that was asked for.

    Args:
        run: The run.
        document: The document.
        reads: All reads of the document.
        num_instances: The number of train instances that hold the document.
        origins: Looks up where the document is from; None leaves that out.
    """
    steps = [read.step for read in reads if read.step is not None]
    first = min(steps, default=None)
    found = origins.find(document.dataset, [document.id]) if origins else {}
    origin = found.get(document.id)
    return {
        "kind": "document",
        "asked": document.name,
        "dataset": run.mixture[document.dataset].name,
        "id": document.id,
        **(asdict(origin) if origin else {}),
        "instances": num_instances,
        "is_left_out": run.left_out is not None and _key(document)[1] in run.left_out.documents,
        "reads": len(steps),
        "steps": len(set(steps)),
        "as_a": sum(read.is_a for read in reads if read.step is not None),
        "as_random_b": sum(not read.is_a for read in reads if read.step is not None),
        "reads_before": sum(read.step is None for read in reads),
        "trunk": run.trunk[0] if run.trunk else None,
        "first_step": first,
        "last_step": max(steps, default=None),
        "checkpoints_before": [step for step in run.checkpoints if first is None or step < first],
    }


def _describe_read(run: AskedRun, read: Read) -> Record:
    """Returns the record of a read."""
    return {
        "kind": "read",
        **asdict(read),
        "document": f"{read.document:016x}",
        "is_used": run.is_used(read.step),
    }
