"""The tokens stage encodes the parts of the input that are not finished, then indexes all of them.

tokens.json is written last. Later stages read only the token parts that it names.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.documents.parts import Part
from pipeline.documents.task_files import hash_task_files, read_task_files
from pipeline.jobs.broadcast import Broadcast, broadcast
from pipeline.jobs.tokens_job import TokensRule, run_tokens_job
from pipeline.settings import BuildSettings, describe_changes
from pipeline.shards.records import json_bytes
from pipeline.stages.build_vocab import TOKENS_SETTINGS as SETTINGS
from pipeline.stages.build_vocab import reading_rule
from pipeline.stages.choose_documents import (
    choice_content,
    describe_near_duplicates,
    drop_documents,
)
from pipeline.stages.corpus import DELIVERED, STORE
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import expected_fields, parse_object, read_object
from pipeline.storage.locks import LOCK
from pipeline.storage.names import require_plain
from pipeline.storage.terminal import say
from pipeline.text.task_texts import (
    LEAST_WORDS,
    TASK_WORDS,
    TaskTexts,
    WindowFinder,
    prepare_texts,
    refuse_file_without_windows,
)
from pipeline.tokens.document_lists import LISTED, TASK_TEXT
from pipeline.tokens.dropped_ids import DROPPED
from pipeline.tokens.held_out import SourceTotals
from pipeline.tokens.provenance import OVERLAPS
from pipeline.tokens.token_index import INDEX, Totals, build_index, open_index
from pipeline.tokens.token_parts import LAYOUT
from pipeline.tokens.token_records import (
    choose_examples,
    count_by_source,
    find_files_without_text,
    find_unknown_words,
    read_records,
    record_stem,
    require_finished,
    sum_counters,
)
from tokenizer.encode import Encoder
from tokenizer.vocab import Vocabulary
from tokenizer.words import count_words

REJECTED = "rejected"
"""The folder in the output with all dropped documents, if they are kept."""
FILES_WITHOUT_TEXT = "files_without_text"
"""The counter of input files that gave no text."""
_NUM_NAMED = 20
_DELETE = "delete this folder and run the same command again"
_INDEX_AGAIN = "delete this file and run the same command again, which keeps the token parts"
_TASK_SETTINGS = ("task_files", "task_overlap", "task_words")


@dataclass(frozen=True)
class Delivered:
    """The content of parts.json: the documents that a user's Beam pipeline wrote by `WriteTokens`.

    Attributes:
        documents: The number of documents that the pipeline wrote; copies count too.
        digest: Sum of the hashes of all these documents, modulo 2**128, in hexadecimal. It does not
            depend on their order, nor on how they were distributed over token parts.
        records: Names of the records of the token parts that have the documents, sorted.
    """

    documents: int
    digest: str
    records: Sequence[str]


def read_delivered(folder: Folder) -> Delivered:
    """Reads parts.json.

    Raises:
        FileNotFoundError: No pipeline with `WriteTokens` has finished in this folder.
        ValueError: The file is damaged, or of an earlier version.
    """
    where = folder.locate(DELIVERED)
    remedy = f"delete {folder.locate()} and run the pipeline with WriteTokens again"
    fields = parse_object(folder.read(DELIVERED), where, remedy)
    with expected_fields(where, remedy):
        delivered = Delivered(**fields)
        require_plain(delivered.records, where)
    return delivered


@dataclass(frozen=True)
class TokenStore:
    """The content of tokens.json: the encoded documents of one input.

    Attributes:
        settings: The settings that decided the content of the documents.
        parts_key: Hash of the keys of the parts of the input, and of `choice`. If it is another
            one, the token parts are indexed anew.
        part_names: Names of the token parts.
        counters: Numbers of documents that were read, dropped by reason, and cut, and of the
            sentences and tokens of all kept documents.
        totals: Counts of the distinct documents.
        source_counters: The counters of each source, by the source's number.
        dropped_examples: A few dropped documents for each reason.
        choice: The settings that decided which documents are left out because they are like other
            documents, or are in other datasets, and how many are held out for validation.
        without_text: The first input files that gave no text.
        unknown_words: Some of the words that hold an [UNK], the commonest first.
    """

    settings: Mapping[str, Any]
    parts_key: str
    part_names: tuple[str, ...]
    counters: Mapping[str, int]
    totals: Totals
    source_counters: Sequence[Mapping[str, int]]
    dropped_examples: Sequence[Mapping[str, str]] = ()
    choice: Mapping[str, Any] = field(default_factory=dict)
    without_text: Sequence[str] = ()
    unknown_words: Sequence[str] = ()

    @property
    def has_dropped(self) -> bool:
        """Whether there is a file dropped.ids with the ids of documents to leave out.

        If not, all documents of the token parts are used.
        """
        return bool(self.totals.dropped)

    @property
    def num_overlaps(self) -> int:
        """Returns how many documents share text with the task files, dropped or only listed."""
        return sum(self.counters.get(name, 0) for name in (f"dropped_{TASK_TEXT}", LISTED))

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings because of which documents were left out; they enter the settings hash.

        They are those in `choice`. If documents with text of the task files were dropped, the
        settings of task files are added.
        """
        if self.settings.get("task_overlap") != "drop":
            return {**self.choice}
        return {**self.choice} | {key: self.settings[key] for key in _TASK_SETTINGS}


def make_tokens(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    parts: Sequence[Part],
    beam_arguments: Sequence[str],
) -> TokenStore:
    """Encodes every part of the input that is not finished yet, and indexes all token parts.

    Returns the content of the tokens.json that it writes. If an earlier launch has written it for
    the same input and settings, it is only read.

    Args:
        settings: Settings of the build.
        vocabulary: The vocabulary to encode with.
        parts: All parts of the input.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: The folder holds tokens of other settings or of a user's Beam pipeline, the
            input is malformed, or all of it is dropped.
    """
    folder = claim_tokens(settings, vocabulary)
    if folder.exists(DELIVERED):
        raise ValueError(
            f"{folder.locate(DELIVERED)}: a Beam pipeline has written its documents there, which"
            " this build would remove; run `python -m pipeline shards` to finish that dataset, or"
            " give another --output"
        )
    key = _parts_key([part.key for part in parts], choice_content(settings))
    store = _find_store(folder, key)
    if store:
        return store
    rule = tokens_rule(settings, vocabulary)
    run_tokens_job(parts, rule, folder, settings.workers, beam_arguments)
    records = require_finished(folder.list(), parts, folder.locate())
    return _index_parts(settings, vocabulary, parts, records, key, beam_arguments)


def index_delivered(
    settings: BuildSettings, vocabulary: Vocabulary, beam_arguments: Sequence[str]
) -> TokenStore:
    """Indexes the token parts that `WriteTokens` has written, unless they are indexed already.

    Returns the content of tokens.json.

    Args:
        settings: Settings of the build.
        vocabulary: The vocabulary that the documents were encoded with.
        beam_arguments: The user's arguments for Beam.

    Raises:
        FileNotFoundError: No pipeline has finished writing there.
        ValueError: parts.json is damaged, the folder holds tokens of other settings, or all
            documents were dropped.
    """
    folder = claim_tokens(settings, vocabulary)
    records = read_delivered(folder).records
    key = _parts_key(records, choice_content(settings))
    store = _find_store(folder, key)
    return store or _index_parts(settings, vocabulary, (), records, key, beam_arguments)


def _find_store(folder: Folder, key: str) -> TokenStore | None:
    """Reads the tokens.json that an earlier launch wrote for the same input and choice.

    A tokens.json with another `parts_key` is removed.

    Args:
        folder: The folder of token parts.
        key: The `parts_key` that the store must have.

    Returns:
        The store, or None if there is none with this key.
    """
    if folder.exists(STORE):
        store = read_store(folder)
        if store.parts_key == key:
            _remove_other_files(folder, store)  # a launch may have been killed before it did so
            return store
        folder.remove([STORE])
    return None


def _index_parts(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    parts: Sequence[Part],
    records: Sequence[str],
    key: str,
    beam_arguments: Sequence[str],
) -> TokenStore:
    """Chooses documents among finished token parts, indexes the parts, and writes tokens.json.

    Files that belong to none of the parts are removed.

    Args:
        settings: Settings of the build.
        vocabulary: The vocabulary that the documents were encoded with.
        parts: The parts of the input; none for documents that a Beam pipeline has written.
        records: Names of the records of all token parts.
        key: The store's `parts_key`.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: All documents were dropped.
    """
    folder = settings.open_tokens()
    content = store_settings(settings, vocabulary.sha256)
    names = sorted(record_stem(record) for record in records)
    num_sources = len(settings.corpus)
    with open_index(folder, names) as index:
        dropped = drop_documents(settings, names, index, beam_arguments)
        totals = build_index(index, num_sources, dropped.reasons, settings.validation_tokens)

    contents = read_records(folder, records)
    without_text = find_files_without_text(contents, parts)
    by_source = count_by_source(contents)
    for source, number in Counter(source for _, source in without_text).items():
        by_source[source][FILES_WITHOUT_TEXT] = number
    _refuse_empty(sum_counters(by_source), totals)
    examples = choose_examples(contents)
    examples += describe_near_duplicates(folder, names, dropped.near_duplicates)
    store = TokenStore(
        settings=content,
        parts_key=key,
        part_names=tuple(names),
        counters=sum_counters(by_source),
        totals=totals,
        source_counters=[by_source.get(source, {}) for source in range(num_sources)],
        dropped_examples=examples,
        choice=choice_content(settings),
        without_text=[url for url, _ in without_text[:_NUM_NAMED]],
        unknown_words=find_unknown_words(contents),
    )
    folder.write(STORE, json_bytes(asdict(store)))
    _remove_other_files(folder, store)
    rejected = settings.open_output() / REJECTED
    stems = {f"{name}.jsonl" for name in names}
    rejected.remove([name for name in rejected.list() if name not in stems])
    return store


def read_store(folder: Folder) -> TokenStore:
    """Reads tokens.json.

    Raises:
        FileNotFoundError: The tokens job has not finished there.
        ValueError: The file is damaged, is of an earlier version, or names files outside of the
            folder.
    """
    try:
        data = folder.read(STORE)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{folder.locate()} holds no {STORE}: run `python -m pipeline tokens` first"
        ) from error
    where = folder.locate(STORE)
    fields = parse_object(data, where, _INDEX_AGAIN)
    with expected_fields(where, _INDEX_AGAIN):
        layout = fields["settings"].get("layout")
        if layout != LAYOUT:
            raise ValueError(
                f"{folder.locate()} holds token parts of layout {layout}, this program reads"
                f" {LAYOUT}: they are of an earlier version; delete the folder and build again"
            )
        require_plain(fields["part_names"], where)
        totals = fields.pop("totals")
        sources = tuple(SourceTotals(**source) for source in totals.pop("sources"))
        return TokenStore(
            totals=Totals(**totals, sources=sources),
            part_names=tuple(fields.pop("part_names")),
            **fields,
        )


def store_settings(settings: BuildSettings, vocab_sha256: str) -> dict[str, Any]:
    """Returns the content of settings.json in a folder of token parts.

    It has every setting that decides the content of the token parts, and the version of their
    layout. Token parts may only be continued by a build with the same content. The names of task
    files are replaced by a hash of their bytes. Settings that are not used are left out, so that
    the content does not change when a later version of this program adds a setting.

    Args:
        settings: Settings of the build.
        vocab_sha256: Hash of the vocabulary.
    """
    content = settings.tokens_content(vocab_sha256) | {"layout": LAYOUT}
    if settings.has_signatures:
        content["signatures"] = True
    if settings.task_files:
        file_hash = hash_task_files(settings.task_files, settings.filesystem_options())
        values = (file_hash, settings.task_overlap, TASK_WORDS)
        content |= dict(zip(_TASK_SETTINGS, values, strict=True))
    return content


def open_task_texts(settings: BuildSettings) -> TaskTexts | None:
    """Reads the texts of the task files; returns None if the settings name no task files.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: A file is not of the format that its name says, or no text in it is long enough.
    """
    if not settings.task_files:
        return None
    rule = settings.word_rule
    texts: list[tuple[str, str]] = []
    files: list[tuple[str, int]] = []
    for url, file_texts in read_task_files(settings.task_files, settings.filesystem_options()):
        rows = list(file_texts)
        # Punctuation and [UNK] do not count as words of a task text, which only a vocabulary can
        # tell. Here they do count, so that before a vocabulary is there only sure faults are found.
        if all(count_words([text], rule).total() < LEAST_WORDS for _, text in rows):
            refuse_file_without_windows(url)
        texts += rows
        files.append((url, len(rows)))
    return prepare_texts(texts, TASK_WORDS, keeps_words=rule.keeps_words, files=files)


def tokens_rule(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    send: Callable[[object, Folder], Broadcast] = broadcast,
) -> TokensRule:
    """Returns how documents are read and encoded under these settings.

    Args:
        settings: The settings of the build.
        vocabulary: The vocabulary that documents are encoded with.
        send: Packs the texts of the task files for the workers: `broadcast`, which writes a file
            if they are large, or `describe_broadcast`, which never writes one.

    Raises:
        ValueError: No text of the task files is long enough.
    """
    texts = open_task_texts(settings)
    if texts:
        finder = WindowFinder(texts, Encoder(vocabulary, settings.word_rule))
        for url, number in finder.num_windows.items():
            say(f"task files: {url} gave {number:,} windows of words to look for")
    keeps_dropped = settings.on_bad_document == "keep"
    return TokensRule(
        reading_rule(settings),
        settings.filter_rule,
        tuple(source.language for source in settings.corpus),
        settings.has_signatures,
        vocabulary.to_text().encode(),
        settings.word_rule,
        send(texts, settings.open_tokens()) if texts else None,
        settings.task_overlap == "drop",
        settings.open_output() / REJECTED if keeps_dropped else None,
    )


def _refuse_empty(counters: Mapping[str, int], totals: Totals) -> None:
    """Raises ValueError if every document was dropped.

    Args:
        counters: What the records count, all sources together.
        totals: Counts of the distinct documents.
    """
    dropped = {
        name.removeprefix("dropped_"): count
        for name, count in counters.items()
        if name.startswith("dropped_")
    }
    dropped |= totals.dropped
    if totals.documents == 0 and any(dropped.values()):
        counted = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count)
        raise ValueError(
            f"all {counters['documents_read']:,} documents of the input were dropped: {counted};"
            " loosen the filters, or give other text"
        )


def _parts_key(keys: Sequence[str], choice: Mapping[str, Any]) -> str:
    """Returns the hash that `TokenStore.parts_key` describes.

    Args:
        keys: The keys of all parts of the input, or the names of the records of `Delivered`. Their
            order does not matter.
        choice: The settings as in `TokenStore.choice`.
    """
    lines = sorted(keys)
    lines += [json.dumps(choice, sort_keys=True)] if choice else []
    return hashlib.blake2b("".join(lines).encode(), digest_size=16).hexdigest()


def claim_tokens(settings: BuildSettings, vocabulary: Vocabulary) -> Folder:
    """Returns the folder of token parts, after claiming it for the settings of this build.

    Its settings.json is written if it is not there. A folder can only have token parts of one set
    of settings.

    Raises:
        ValueError: The folder holds tokens of other settings.
    """
    folder = settings.open_tokens()
    claim_folder(folder, store_settings(settings, vocabulary.sha256))
    return folder


def claim_folder(folder: Folder, content: Mapping[str, Any]) -> None:
    """Claims a folder of token parts: writes its settings.json, or checks the one that is there.

    Args:
        folder: The folder.
        content: What `store_settings` returned.

    Raises:
        ValueError: The folder holds tokens of other settings.
    """
    refuse_other_settings(folder, content)
    if not folder.exists(SETTINGS):
        folder.write(SETTINGS, json_bytes(content))


def refuse_other_settings(folder: Folder, content: Mapping[str, Any]) -> None:
    """Compares settings.json, if it is there, with this content; writes nothing.

    Args:
        folder: The folder of token parts.
        content: What `store_settings` returned.

    Raises:
        ValueError: The folder holds tokens of other settings.
    """
    if not folder.exists(SETTINGS):
        return
    changed = describe_changes(read_object(folder, SETTINGS, _DELETE), content)
    if changed:
        raise ValueError(
            f"{folder.locate()} holds tokens of other settings: {changed}; give the same ones, or"
            " another folder"
        )


def _remove_other_files(folder: Folder, store: TokenStore) -> None:
    """Removes files that do not belong to the store.

    Such files are left by an earlier input, the search for near-duplicates, or interrupted tasks.
    """
    endings = (".tokens", ".index", ".places", ".signatures", OVERLAPS, ".json", "-last.json")
    names = {STORE, SETTINGS, INDEX, DELIVERED, LOCK}
    if store.has_dropped:
        names.add(DROPPED)
    names |= {f"{stem}{ending}" for stem in store.part_names for ending in endings}
    folder.remove([name for name in folder.list() if name not in names])
