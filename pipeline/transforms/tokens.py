"""Makes a dataset of the documents of your own Beam pipeline.

`WriteTokens` adds these steps to your pipeline, and `finish_build` then makes the dataset:

    document | ToDocuments | BatchElements | ToLists -> long lists, short lists
    short lists | ToGroups | GroupByKey | JoinLists  -> long lists
    long lists | EncodeDocuments | WriteTokenPart | ListParts | FinishTokens

`pipeline.transforms.gathered_documents` explains the lists. `EncodeDocuments` and
`write_token_part` are steps of the tokens job (`pipeline.jobs.tokens_job`), so the same texts give
the same root hash as a build from files.

What WriteTokenPart returns about a token part has a seal, which FinishTokens checks. The hashes of
all documents are added up before they are put into lists, and compared with the names of the token
parts, which are sums of hashes too. So if a runner loses, repeats or changes elements, the job ends
with an error. Nothing is written before the pipeline runs.
"""

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Unpack

import apache_beam as beam

from pipeline.command_line.hints import hints_of
from pipeline.command_line.names import answer_unknown
from pipeline.command_line.values import convert, plain_node
from pipeline.documents import Document, DroppedDocument
from pipeline.documents.source import Source
from pipeline.jobs.broadcast import RefuseOtherCode, broadcast, describe_broadcast
from pipeline.jobs.tokens_job import EncodeDocuments, TokensRule, write_token_part
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import json_bytes
from pipeline.stages.build import run_shards
from pipeline.stages.build_tokens import (
    Delivered,
    claim_folder,
    open_task_texts,
    read_delivered,
    refuse_other_settings,
    store_settings,
    tokens_rule,
)
from pipeline.stages.build_vocab import ORIGIN, prepare_vocabulary
from pipeline.stages.corpus import DELIVERED, STORE, VOCAB, read_vocabulary
from pipeline.stages.publish import refuse_redacted
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import quote
from pipeline.storage.secret_values import hide
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.token_parts import TokenizedDocument
from pipeline.transforms.bundle_output import log_large_bundles
from pipeline.transforms.gathered_documents import (
    add_hashes,
    add_sizes,
    add_tallies,
    is_long,
    is_short,
    join_lists,
    measure_list,
    size_of_document,
    size_of_given,
    tally_document,
    to_document,
    to_group,
    to_lists,
)
from pipeline.transforms.input import in_one_window, place_of, refuse_second_writer
from pipeline.transforms.token_settings import WITHOUT_MEANING, TokenSettings, list_settings

_CALLED = "WriteTokens"  # in messages about its settings
_RECORD = re.compile(r"(?P<digest>[0-9a-f]{32})-00000-last\.json")
"""The record of a list: its name begins with the sum of the hashes of the list's documents."""
_SEAL_BYTES = 16
_ONE_WRITER = (
    "join the branches, as in `(news, books) | beam.Flatten() | WriteTokens(...)`, where"
    " Document(text, where, source=...) names a document's source"
)
_ADVICE = "the runner loses, repeats or changes what it delivers: run again, or on another runner"


class WrittenTokens(NamedTuple):
    """Says what a pipeline has written by `WriteTokens`, once all of it is there.

    Attributes:
        output: Folder or URL of the dataset, which `finish_build` completes.
        tokens: Folder or URL of the token parts.
        parts: Number of token parts.
        documents_read: Number of documents of the PCollection.
        documents: Number of documents in the token parts. It differs from `documents_read` by the
            rejected documents, and by very long documents, which are cut into several. Copies are
            counted; `finish_build` leaves them out.
        num_tokens: Number of tokens of these documents.
    """

    output: str
    tokens: str
    parts: int
    documents_read: int
    documents: int
    num_tokens: int


class PartRow(NamedTuple):
    """What `write_part` returns about a token part.

    Attributes:
        record: The file name of the part's record.
        documents_read: Number of documents in the list of which the part was made.
        documents: Number of documents in the part.
        num_tokens: Number of tokens of these documents.
        seal: A hash of the other values (`_seal`).
    """

    record: str
    documents_read: int
    documents: int
    num_tokens: int
    seal: str


class WriteTokens(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[str | Document],
        dict[str, beam.PCollection[WrittenTokens | DroppedDocument]],
    ]
):
    """Writes the documents of a PCollection as token parts, which `finish_build` completes.

    Documents are cleaned, filtered, split into sentences and encoded, as `python -m pipeline build`
    does with the documents of files. The same texts give a dataset with the same root hash.

    The input is a bounded PCollection of `str` or `Document`. If there are several `sources`, every
    element must be a `Document` that names its source.

    The output is a dict of two PCollections:

    - `"written"`: a single `WrittenTokens`, which says where the token parts are, and how many
      documents and tokens they have. It is there once all of them are complete, so a later step of
      the pipeline can wait for it.
    - `"rejected"`: a `DroppedDocument` (`reason`, `where`, `text`) for each document that is left
      out because of its text. Copies are not among these: `finish_build` leaves them out.

    All documents of one dataset must go through one `WriteTokens` of one pipeline. Join several
    PCollections by `beam.Flatten()`. The same pipeline may run again, to the same result.

    Raises:
        FileNotFoundError: When the transform is applied, the vocabulary or a task file does not
            exist.
        ValueError: When the transform is applied, the output holds a dataset of other settings,
            another transform writes there, or the PCollection is unbounded. While the pipeline
            runs, an element is no document or its source is unknown, the output holds documents of
            another pipeline, or the runner lost or repeated documents.

    Examples:
        ```python
        import apache_beam as beam

        from pipeline import WriteTokens, finish_build

        settings = {"seq_lens": [128], "min_characters": 20}

        with beam.Pipeline() as pipeline:
            texts = pipeline | beam.io.ReadFromText("documents.txt")  # one document per line
            written = texts | WriteTokens("my-data", "vocab.txt", **settings)
            written["written"] | "Print" >> beam.Map(print)
            written["rejected"] | "Print rejected" >> beam.Map(print)

        dataset = finish_build("my-data", "vocab.txt", **settings)
        ```
    """

    @list_settings
    def __init__(
        self,
        output: str | os.PathLike[str],
        vocab: str | os.PathLike[str],
        **settings: Unpack[TokenSettings],
    ) -> None:
        """Takes the settings of a build.

        Args:
            output: Folder or URL of the dataset.
            vocab: A vocab.txt, the folder of a model that has one, or a model of the Hub.
            **settings: Other settings of `python -m pipeline build` (docs/commands.md), such as
                `min_characters=20`. `sources` is a list of `Source`, with the names that
                `Document.source` may have. `help(WriteTokens)` lists them all.

        Raises:
            ValueError: A setting is unknown, or has a value of a wrong type.
        """
        super().__init__()
        self._settings = _make_settings(output, vocab, settings)

    def display_data(self) -> dict[str, Any]:
        """Returns the settings that a runner shows for this transform."""
        return {"output": hide(self._settings.output), "vocab": hide(str(self._settings.vocab))}

    def written_places(self) -> set[str]:
        """Returns the folder of the dataset and the folder of the token parts."""
        return {place_of(self._settings.open_output()), place_of(self._settings.open_tokens())}

    def expand(self, documents: beam.PCollection[str | Document]) -> Any:
        """Adds the steps to the pipeline of the documents; returns the dict of outputs.

        Reads the vocabulary and what is in the output already, and writes nothing.

        Raises:
            FileNotFoundError: The vocabulary or a task file does not exist.
            ValueError: The PCollection is unbounded, another transform of the pipeline writes to
                the same output, or the output holds a dataset of other settings.
        """
        settings = self._settings
        pipeline = documents.pipeline
        refuse_second_writer(pipeline, self, _ONE_WRITER)
        claim = make_claim(settings)
        claimed = beam.pvalue.AsSingleton(
            pipeline
            | "Claim" >> beam.Create([None])
            | RefuseOtherCode()
            | "ClaimOutput" >> beam.Map(claim_output, claim)
        )
        names = [source.name for source in settings.corpus]
        # The steps after this one wait for the claim too. Only small elements pass between them.
        convert = beam.Map(to_document, names, claimed).with_output_types(Document)
        # ToDocuments reads a side input, so all documents are sent to the runner before it.
        given = log_large_bundles(in_one_window(documents, self), size_of_given)
        converted = given | "ToDocuments" >> convert
        tally = (
            converted
            | "TallyDocuments" >> beam.Map(tally_document)
            | "AddTallies" >> beam.CombineGlobally(add_tallies)
        )
        encoded = (
            converted
            | GatherDocuments(names, settings.part_bytes)
            | "RefuseOtherCode of lists" >> RefuseOtherCode()
            | EncodeDocuments(claim.rule)
        )
        list_rejected = beam.FlatMap(lambda documents: documents.dropped)
        rejected = encoded | "Rejected" >> list_rejected.with_output_types(DroppedDocument)
        written = (
            encoded
            | "WriteTokenPart" >> beam.Map(write_part, settings.open_tokens(), claim.rule)
            | "ListParts" >> beam.combiners.ToList()
            | "FinishTokens"
            >> beam.Map(
                finish_tokens,
                beam.pvalue.AsSingleton(tally),
                settings.open_tokens(),
                hide(settings.output),
                claimed,
            )
        )
        return {"written": written, "rejected": rejected}


class GatherDocuments(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[Document], beam.PCollection[DocumentList[Document]]
    ]
):
    """Gathers documents into lists, each of which becomes one token part.

    `pipeline.transforms.gathered_documents` explains how.
    """

    def __init__(self, sources: Sequence[str], part_bytes: int) -> None:
        """Keeps the arguments.

        Args:
            sources: Names of all sources, in the order of their numbers.
            part_bytes: The most text of a list.
        """
        super().__init__()
        self._sources = sources
        self._part_bytes = part_bytes

    def expand(
        self, documents: beam.PCollection[Document]
    ) -> beam.PCollection[DocumentList[Document]]:
        """Adds the steps that put documents into lists, and that join short lists."""
        size = self._part_bytes
        batch = beam.BatchElements(size, size, element_size_fn=size_of_document)
        lists = documents | batch | "ToLists" >> _to_lists(to_lists, self._sources, size)
        short = lists | "ShortLists" >> beam.Filter(is_short, size)
        sizes = beam.pvalue.AsSingleton(
            short
            | "MeasureLists" >> beam.Map(measure_list)
            | "AddSizes" >> beam.CombineGlobally(add_sizes)
        )
        to_groups = beam.Map(to_group, sizes, len(self._sources), size)
        joined = (
            short
            | "ToGroups" >> to_groups.with_output_types(tuple[int, DocumentList[Document]])
            | beam.GroupByKey()
            | "JoinLists" >> _to_lists(join_lists, self._sources, size)
        )
        long = lists | "LongLists" >> beam.Filter(is_long, size)
        return (long, joined) | beam.Flatten()


def _to_lists(function: Any, *arguments: Any) -> beam.ParDo:
    """Returns a step that yields what `function` yields: lists of documents."""
    return beam.FlatMap(function, *arguments).with_output_types(DocumentList)


def finish_build(
    output: str | os.PathLike[str],
    vocab: str | os.PathLike[str],
    *,
    beam_arguments: Sequence[str] = (),
    **settings: Unpack[TokenSettings],
) -> Dataset:
    """Makes a dataset of the token parts that `WriteTokens` has written.

    Copies of documents are left out, pairs and masks are made, and shards are written. What is
    finished already is not made again, so an interrupted call can be repeated. `python -m pipeline
    shards` does the same.

    Args:
        output: Folder or URL of the dataset.
        vocab: The vocabulary that `WriteTokens` was given.
        beam_arguments: Arguments of Beam for the jobs, such as `["--runner=FlinkRunner"]`. Without
            any they run in local worker processes.
        **settings: The settings that `WriteTokens` was given, and settings of the instances, such
            as `seq_lens=[128]` and `passes=2`. `help(WriteTokens)` lists them all.

    Returns:
        The finished dataset, opened.

    Raises:
        FileNotFoundError: No pipeline has finished writing there.
        FileExistsError: Another build writes there.
        ValueError: The settings differ from those of `WriteTokens`, or from those of a dataset that
            is there, or there are too few documents.

    Examples:
        ```python
        from pipeline import finish_build

        dataset = finish_build("my-data", "vocab.txt", seq_lens=[128], passes=2)
        print(dataset.manifest.root_hash)
        ```
    """
    return run_shards(_make_settings(output, vocab, settings), beam_arguments)


def _make_settings(
    output: str | os.PathLike[str], vocab: str | os.PathLike[str], settings: Mapping[str, Any]
) -> BuildSettings:
    """Returns the settings of a build, with values checked as those of a settings file are.

    Args:
        output: Folder or URL of the dataset.
        vocab: The vocabulary.
        settings: Other settings by their names. `sources` is a list of `Source`. Their `input` may
            be empty, because the documents are in a PCollection.

    Raises:
        ValueError: A setting is unknown, or a value is of another type than the setting's.
    """
    sources = []
    for source in settings.get("sources", ()):
        if not isinstance(source, Source):
            expected = "expected pipeline.documents.source.Source(name=..., input=[])"
            raise ValueError(f"{_CALLED}: sources: found {quote(source)}, {expected}")  # noqa: TRY004
        sources.append(replace(source, input=source.input or ["-"]))
    converted: dict[str, Any] = {"sources": sources}
    hints = hints_of(BuildSettings)
    for name, value in {"output": output, "vocab": vocab, **settings}.items():
        if name in WITHOUT_MEANING:
            raise ValueError(f"{_CALLED}: {name} is no setting of it: {WITHOUT_MEANING[name]}")
        if name not in hints:
            raise ValueError(answer_unknown(name, BuildSettings, "", f"{_CALLED}: "))
        if name != "sources":
            node = plain_node(_to_plain(value), _CALLED)
            converted[name] = convert(node, hints[name], name)
    if converted["vocab"] is None:
        raise ValueError(f"{_CALLED}: vocab: found None, expected a vocab.txt or a model with one")
    return BuildSettings(**converted)


def _to_plain(value: Any) -> Any:
    """Converts a value of Python to what a settings file would hold in its place.

    A path becomes text, and a tuple becomes a list. A mapping becomes a text of JSON, because the
    setting `storage_options` is such a text.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Claim:
    """What a pipeline writes into its output first, so that no other build can use the output.

    Attributes:
        settings: The settings of `WriteTokens`.
        vocab: Bytes of vocab.txt, read when the pipeline was made.
        content: The content of settings.json in the folder of token parts.
        rule: How documents are encoded.
    """

    settings: BuildSettings
    vocab: bytes
    content: Mapping[str, Any]
    rule: TokensRule


def make_claim(settings: BuildSettings) -> Claim:
    """Reads everything that decides the content of the token parts; writes nothing.

    Raises:
        FileNotFoundError: The vocabulary or a task file does not exist.
        ValueError: The output already holds a dataset, a vocabulary or token parts that were made
            in another way, or a redacted dataset.
    """
    assert settings.vocab is not None, "WriteTokens learns no vocabulary"
    refuse_redacted(settings.open_output())
    vocabulary = read_vocabulary(settings, settings.vocab)
    content = store_settings(settings, vocabulary.sha256)
    folder = settings.open_tokens()
    is_begun = settings.open_output().exists(ORIGIN)
    if is_begun:
        prepare_vocabulary(settings, (), (), ())  # compares what is there
    # Otherwise parts of another vocabulary are no fault: they are removed when the pipeline runs.
    if is_begun or settings.tokens:
        refuse_other_settings(folder, content)
    _refuse_other_build(folder)
    rule = tokens_rule(settings, vocabulary, describe_broadcast)
    return Claim(settings, vocabulary.to_text().encode(), content, rule)


def _refuse_other_build(folder: Folder) -> None:
    """Raises ValueError if a folder of token parts holds the documents of a build from files."""
    if folder.exists(STORE) and not folder.exists(DELIVERED):
        raise ValueError(
            f"{folder.locate()} holds the documents of a build from files; give another output, or"
            " delete that folder"
        )


def claim_output(_: None, claim: Claim) -> None:
    """Writes the vocabulary and the settings into the output, unless they are there already.

    Task texts that are too large for the description of the job are written as well. No token part
    is written before this step has ended.

    Args:
        _: The single element of the PCollection that starts this step.
        claim: What to write.

    Raises:
        ValueError: The output was changed by another program after `make_claim`.
    """
    settings = claim.settings
    folder = settings.open_tokens()
    output = settings.open_output()
    _refuse_other_build(folder)
    if not output.exists(ORIGIN):
        output.write(VOCAB, claim.vocab)
    # Workers may not see the file that the settings name, but they see the output.
    prepare_vocabulary(replace(settings, vocab=output.locate(VOCAB)), (), (), ())
    claim_folder(folder, claim.content)
    task_texts = claim.rule.task_texts
    if task_texts and not task_texts.data:  # too large for the job's description
        broadcast(open_task_texts(settings), folder)


def write_part(
    documents: DocumentList[TokenizedDocument], folder: Folder, rule: TokensRule
) -> PartRow:
    """Writes a list of documents as one token part (`write_token_part`); returns what it has.

    Args:
        documents: A list of encoded documents.
        folder: Receives the files.
        rule: Says whether signatures and dropped documents are written.
    """
    record = write_token_part(documents, folder, rule)
    numbers = (
        documents.counters["documents_read"],
        len(documents.documents),
        sum(len(document.tokens) for document in documents.documents),
    )
    return PartRow(record, *numbers, _seal(record, *numbers))


def _seal(*values: object) -> str:
    """Returns a hash of the values of a row, by which a row that a runner changed is noticed."""
    return hashlib.blake2b(repr(values).encode(), digest_size=_SEAL_BYTES).hexdigest()


def finish_tokens(
    rows: Sequence[PartRow],
    tally: tuple[int, str],
    folder: Folder,
    output: str,
    _: None = None,
) -> WrittenTokens:
    """Checks that all token parts were written, and writes parts.json, which lists them.

    Two lists with the same documents have the same name and share one part. That loses nothing,
    because a build keeps only one copy of a document.

    Args:
        rows: What `write_part` returned, one row for each list.
        tally: The number of documents that the pipeline gave, and the sum of their hashes.
        folder: The folder of the token parts.
        output: Folder or URL of the dataset, for the result.
        _: The result of `claim_output`. It is not used, but makes the runner wait for that step
            even if there are no documents.

    Raises:
        ValueError: The parts do not hold every document exactly once, a row was changed by the
            runner, a part is not there, or the folder holds the documents of another pipeline.
    """
    number, digest = tally
    _refuse_changed_rows(rows)
    written = sum(row.documents_read for row in rows)
    matches = [_RECORD.fullmatch(row.record) for row in rows]
    hashes = add_hashes(int(match["digest"], 16) for match in matches if match)
    if (written, hashes) != (number, digest):
        what = "others in their place" if written == number else "each once"
        raise ValueError(
            f"{folder.url}: token parts of {written:,} documents were written, expected"
            f" {number:,}, {what}; {_ADVICE}"
        )
    by_record = {row.record: row for row in rows}
    names = sorted(by_record)
    lost = sorted(by_record.keys() - folder.list().keys()) if names else []
    if lost:
        raise ValueError(f"{folder.locate(lost[0])} is not there as it was written; run again")
    delivered = Delivered(number, digest, names)
    _refuse_other_documents(folder, delivered)
    data = json_bytes(asdict(delivered))
    if not folder.exists(DELIVERED) or folder.read(DELIVERED) != data:
        folder.remove([STORE])
        folder.write(DELIVERED, data)
    return WrittenTokens(
        output,
        hide(folder.url),
        parts=len(names),
        documents_read=number,
        documents=sum(row.documents for row in by_record.values()),
        num_tokens=sum(row.num_tokens for row in by_record.values()),
    )


def _refuse_changed_rows(rows: Sequence[PartRow]) -> None:
    """Raises ValueError if a row is not one that `write_part` returned."""
    for row in rows:
        *values, seal = row
        if seal != _seal(*values):
            raise ValueError(
                f"the runner delivered {reprlib.repr(tuple(row))} as what was written of a token"
                f" part, which is not what its seal says; {_ADVICE}"
            )


def _refuse_other_documents(folder: Folder, delivered: Delivered) -> None:
    """Raises ValueError if parts.json lists other documents than this pipeline has delivered."""
    if not folder.exists(DELIVERED):
        return
    before = read_delivered(folder)
    if (before.documents, before.digest) != (delivered.documents, delivered.digest):
        raise ValueError(
            f"{folder.locate(DELIVERED)}: another pipeline has written {before.documents:,}"
            f" documents there, which are kept; this one gave {delivered.documents:,} others."
            f" Write all documents of a dataset by one pipeline ({_ONE_WRITER}), give another"
            f" output, or delete {folder.locate()} to begin again"
        )
