"""Defines the settings of `python -m pipeline build`, and which of them change a dataset's content.

The commands vocab, tokens and shards, which do one stage of a build each, take the same settings.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from pipeline.documents.source import UNIT, Source, TextFormat, Wrapping, check_sources
from pipeline.machine import num_cores
from pipeline.tokens.limits import VALIDATION_TOKENS
from tokenizer.word_rule import WordRule

if TYPE_CHECKING:
    from pipeline.storage.folder import Folder
    from pipeline.text.filters import FilterRule

OF_A_SOURCE = ("format", "text_field", "wrapping", "language")
"""Settings that each source has for itself if there are several."""

_OF_INSTANCES = (
    "seed", "short_seq_prob", "masked_lm_prob", "max_predictions", "whole_word_masking",
    "validation_fraction", "num_buckets",
)  # fmt: skip
_UNSAID: dict[str, Any] = {
    "instances": "segment-pairs", "nsp_balance": "reference",
    "validation_tokens": VALIDATION_TOKENS,
}  # fmt: skip
"""Settings that a manifest has only if they differ from these values."""


@dataclass(frozen=True)
class BuildSettings:
    """Settings of `build`, which makes a vocabulary, encoded documents and shards from raw text.

    Input:
        input: Files, folders or quoted globs of text, at any fsspec URL. They are one source, named
            "input".
        sources: Several sources in place of --input, as a list in the --config file
            (docs/input.md).
        format: The layout of the input. By default each file's extension and first bytes decide.
        text_field: The field of a JSONL object, or the column of a Parquet file, that holds the
            text.
        wrapping: What ends a paragraph of plain text: every line end (none), a blank line
            (blank-lines), or a short line (hard). With auto the lines of each document decide.
        on_bad_document: What is done about malformed input: stop ends the build, skip leaves it out
            and counts it, keep also writes every document that is left out under OUTPUT/rejected.
        language: The code of the text's language, by which sentences are split.

    Filters (docs/input.md):
        min_characters: Documents with fewer characters of cleaned text are dropped.
        max_characters: Documents with more characters of cleaned text are dropped.
        languages: Only documents in these languages stay. Without any, all stay.
        filter: Your own functions as module:function, each called with a document's text. A
            function returns None to keep the document, or a word that names the reason to drop it.
        allow_code: Whether a filter that a --config file names may run. Only the flag allows it.
        near_duplicates: Documents that are at least this similar to another one are dropped; 0.8 is
            a usual value, null keeps all.
        exclude_documents_of: Finished datasets, as folders or URLs. Documents that are in one of
            them are dropped.
        task_files: Files of tasks that a model is tested on. Documents that share 13 words in a row
            with one of them are listed in task_overlaps.parquet.
        task_overlap: Whether documents that share words with task_files are dropped, or only
            listed.

    Vocabulary:
        vocab: A vocab.txt to use, or a model that has one, such as bert-base-uncased. Without one a
            vocabulary is learned from the input.
        extend: A vocab.txt to which pieces are added, those that save the most tokens
            (docs/training.md).
        vocab_size: How many entries a learned vocabulary has.
        num_unused: How many entries of a learned vocabulary are [unusedN], for your own words.
        alphabet_size: How many characters a learned vocabulary has, the commonest ones. Words with
            another character are [UNK]. Chinese needs some 8,000.
        lower_case: Whether text is lower-cased and loses its accents, or stays as it is.
        words: How text is cut into words: bert cuts at blanks and punctuation. whitespace cuts at
            blanks alone, changes no character, and takes every line as a sentence (docs/tokens.md).
        vocab_entries: What a learned vocabulary holds: pieces, of which a rare word is made; or
            whole words alone, so that a rare one is [UNK].

    Instances:
        instances: What an instance holds: two segments, of which the second follows the first or is
            random, as in BERT (segment-pairs); as many sentences of one document as fit, as in
            RoBERTa (doc-sentences); or one of them, as in BabyBERTa (single-sentence). The last
            two are for models that are trained with --objective mlm.
        seq_lens: Sequence lengths to build, the most tokens of an instance. A later build may add
            more.
        passes: How often the whole corpus is masked. Epoch e reads pass e modulo passes. A later
            build may add more.
        seed: Random seed of all draws.
        short_seq_prob: Share of the documents whose instances have a random shorter length.
        masked_lm_prob: Share of an instance's tokens that are masked.
        max_predictions: The most masked positions of an instance; null means seq_len x
            masked_lm_prob, rounded up.
        whole_word_masking: Whether all pieces of a word are masked together.
        nsp_balance: How many second segments are random: some 56 %, as in Google's program
            (reference), or half (exact).
        num_buckets: Number of train shards per pass, a power of two; null means as few as hold at
            most 128 MiB of text each.

    Soundness:
        max_unknown: The build stops before it makes shards if more than this share of the tokens is
            [UNK].
        max_random_next: The build fails if more than this share of the second segments is random,
            because sentences were then not found. Give 1 if you train without next-sentence
            prediction.

    Validation split (docs/input.md):
        validation_fraction: Share of the tokens of each source that is held out. At least 20,000
            tokens are held out, or 5 % of all tokens if that is less. 0 holds out none.
        validation_tokens: The most tokens held out; 10,000 instances of 512 take 6 million.

    Plan:
        plan: Whether to print only what the build would make, estimated from a sample.

    Running:
        output: Folder or URL of the dataset. The same command again continues a build that was
            interrupted.
        tokens: Folder or URL of the encoded documents; null means OUTPUT/tokens.
        workers: Local worker processes; by default one per core, but no more than the tasks and the
            memory allow. Arguments after -- on the command line choose another Beam runner.
        part_bytes: The most input in bytes that one task reads. It changes speed and memory, never
            content.
        exchange: How the documents of a bucket are collected: files reads them from the token
            parts, shuffle uses Beam's GroupByKey, and auto uses GroupByKey on Dataflow alone. It
            never changes content.
        storage_options: Options of the filesystems, as JSON or @FILE. The usual environment
            variables count too.
    """

    output: str
    input: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    format: TextFormat = "auto"
    text_field: str = "text"
    wrapping: Wrapping = "auto"
    on_bad_document: Literal["stop", "skip", "keep"] = "stop"
    language: str = "en"
    min_characters: int = 0
    max_characters: int | None = None
    languages: list[str] = field(default_factory=list)
    filter: list[str] = field(default_factory=list, metadata={"is_code": True})
    allow_code: bool = False
    near_duplicates: float | None = None
    exclude_documents_of: list[str] = field(default_factory=list)
    task_files: list[str] = field(default_factory=list)
    task_overlap: Literal["drop", "list"] = "drop"
    vocab: str | None = None
    extend: str | None = None
    vocab_size: int = 30_522
    num_unused: int = 0
    alphabet_size: int = 1000
    lower_case: bool = True
    words: Literal["bert", "whitespace"] = "bert"
    vocab_entries: Literal["pieces", "words"] = "pieces"
    instances: Literal["segment-pairs", "doc-sentences", "single-sentence"] = "segment-pairs"
    seq_lens: list[int] = field(default_factory=lambda: [128])
    passes: int = 5
    seed: int = 12345
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int | None = None
    whole_word_masking: bool = False
    nsp_balance: Literal["reference", "exact"] = "reference"
    max_unknown: float = 0.5
    max_random_next: float = 0.9
    validation_fraction: float = 0.005
    validation_tokens: int = VALIDATION_TOKENS
    num_buckets: int | None = None
    tokens: str | None = None
    part_bytes: int = 32 * 2**20
    plan: bool = False
    exchange: Literal["auto", "files", "shuffle"] = "auto"
    workers: int = field(default_factory=num_cores)
    storage_options: str | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_sources()

    def _check_ranges(self) -> None:
        """Raises ValueError if a setting is outside of its range."""
        from pipeline.tokens.buckets import MAX_BUCKETS

        lengths = self.seq_lens or [0]
        least_most = max(1, self.min_characters)
        powers = [None, *(1 << bits for bits in range(MAX_BUCKETS.bit_length()))]

        def allows(value: float | None, least: float, most: float = math.inf) -> bool:
            return value is None or least <= value <= most

        checks = {
            "seq_lens": (
                8 <= min(lengths) <= max(lengths) <= 65_535,
                "one or more lengths, each 8 to 65535",
            ),
            "passes": (1 <= self.passes <= 100, "1 to 100"),
            "short_seq_prob": (0 <= self.short_seq_prob <= 1, "0 to 1"),
            "masked_lm_prob": (0 < self.masked_lm_prob < 1, "above 0 and below 1"),
            "max_unknown": (0 <= self.max_unknown <= 1, "0 to 1"),
            "max_random_next": (0 <= self.max_random_next <= 1, "0 to 1"),
            "validation_fraction": (0 <= self.validation_fraction < 1, "0 or more and below 1"),
            "validation_tokens": (self.validation_tokens >= 1, "1 or more"),
            "max_predictions": (allows(self.max_predictions, 1), "1 or more, or null"),
            "part_bytes": (self.part_bytes >= 1024, "1024 or more"),
            "num_buckets": (
                self.num_buckets in powers,
                f"a power of two from 1 to {MAX_BUCKETS}, or null",
            ),
            "workers": (self.workers >= 1, "1 or more"),
            "vocab_size": (self.vocab_size >= 100, "100 or more"),
            "num_unused": (self.num_unused >= 0, "0 or more"),
            "min_characters": (self.min_characters >= 0, "0 or more"),
            "max_characters": (
                allows(self.max_characters, least_most),
                f"{least_most} or more, or null",
            ),
            "near_duplicates": (allows(self.near_duplicates, 0.5, 1), "0.5 to 1, or null"),
            "alphabet_size": (self.alphabet_size >= 1, "1 or more"),
        }
        for name, (holds, allowed) in checks.items():
            if not holds:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {allowed}")

    def _check_sources(self) -> None:
        """Checks the sources, and settings that exclude each other, such as `vocab` and `extend`.

        Raises:
            ValueError: A source has wrong settings, or two settings contradict each other.
        """
        from pipeline.text.language_codes import check_language

        for source in self.corpus:
            check_language(source.language)

        if self.vocab and self.extend:
            cure = "vocab takes a vocabulary as it is, extend adds to one"
            raise ValueError(f"both vocab and extend are given; {cure}")
        if self.extend and self.vocab_entries == "words":
            raise ValueError(
                "vocab_entries is words and extend is given, which adds pieces of words; give one"
                " of them"
            )
        if self.instances != "segment-pairs" and self.nsp_balance != "reference":
            raise ValueError(
                f"nsp_balance is {self.nsp_balance}, and instances of one segment"
                f" ({self.instances}) have no random second segments; leave nsp_balance out"
            )
        _ = self.word_rule  # raises ValueError if lower_case contradicts words

        if not self.sources:
            return
        if self.input:
            names = ", ".join(source.name for source in self.sources)
            raise ValueError(
                f"both input ({', '.join(self.input)}) and sources ({names}) are given; give"
                " --input for a single source, or make it one of the sources in the --config file"
            )
        values = {name: getattr(self, name) for name in OF_A_SOURCE}
        misplaced = [name for name in values if values[name] != getattr(BuildSettings, name)]
        if misplaced:
            names = ", ".join(misplaced)
            raise ValueError(f"{names}: with sources this belongs to each of them; write it there")
        check_sources(self.sources)

    @property
    def tokens_folder(self) -> str:
        """Folder or URL to which the tokens job writes the encoded documents.

        The shards job reads them from there.
        """
        return self.tokens or f"{self.output.rstrip('/')}/tokens"

    def filesystem_options(self) -> Mapping[str, Any] | None:
        """Returns the parsed `storage_options`: arguments for fsspec filesystems, or None.

        Raises:
            ValueError: The setting is not a JSON object.
        """
        from pipeline.storage.folder import parse_storage_options

        return parse_storage_options(self.storage_options)

    def open_output(self) -> "Folder":
        """Returns the folder of the dataset."""
        from pipeline.storage.folder import Folder

        return Folder(self.output, self.filesystem_options())

    def open_tokens(self) -> "Folder":
        """Returns the folder of the encoded documents."""
        from pipeline.storage.folder import Folder

        return Folder(self.tokens_folder, self.filesystem_options())

    @property
    def corpus(self) -> tuple[Source, ...]:
        """All sources, in the order of their numbers, which are from 0.

        They are `sources` or, if that is empty, a single source named "input", which has the files
        of --input.
        """
        reading = {name: getattr(self, name) for name in OF_A_SOURCE}
        sources = tuple(self.sources) or (Source("input", self.input, **reading),)
        if not self.word_rule.keeps_words:
            return sources
        # Every line is a sentence, so lines must not be joined to paragraphs by their lengths.
        return tuple(
            replace(source, wrapping="none") if source.wrapping == "auto" else source
            for source in sources
        )

    @property
    def weights(self) -> tuple[int, ...]:
        """The weight of each source in millionths, in the order of the sources.

        The tuple is empty if all weights are 1, so that a pass uses every document once.
        """
        weights = tuple(source.millionths for source in self.corpus)
        return weights if set(weights) != {UNIT} else ()

    @property
    def word_rule(self) -> WordRule:
        """The rule by which text is cut into words.

        Raises:
            ValueError: `lower_case` contradicts `words`.
        """
        return WordRule(self.lower_case, self.words)

    @property
    def filter_rule(self) -> "FilterRule":
        """The rule that decides for each document alone whether it is dropped.

        It has the settings of lengths and languages, and the user's own filters.
        """
        from pipeline.text.filters import FilterRule

        return FilterRule(
            min_characters=self.min_characters,
            max_characters=self.max_characters,
            languages=tuple(self.languages),
            functions=tuple(self.filter),
        )

    @property
    def has_signatures(self) -> bool:
        """Whether the tokens job writes signatures of documents, which show near-duplicates.

        It does if near-duplicates are to be dropped.
        """
        return self.near_duplicates is not None

    def tokens_content(self, vocab_sha256: str) -> dict[str, Any]:
        """Returns the settings that decide what the tokens job writes, by their names.

        The modules of the user's own filters are imported, because the result holds the
        `__version__` of each.

        Args:
            vocab_sha256: The SHA-256 hash of vocab.txt, in hex.
        """
        from pipeline.text.sentences import RULES

        content: dict[str, Any] = {"vocab_sha256": vocab_sha256, **self.word_rule.content()}
        content |= {"sentence_rules": RULES} | self.filter_rule.content()
        if len(self.corpus) == 1:
            return content | self.corpus[0].reading()
        sources = [{"name": source.name} | source.reading() for source in self.corpus]
        return content | {"sources": sources}

    def content(
        self, vocab_sha256: str, documents_hash: str, choice: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns the settings that decide which instances a pass has, by their names.

        A manifest holds them, and its `settings_hash` is their hash. Sequence lengths and the
        number of passes are left out, because a later build may add lengths and passes to the
        dataset.

        Args:
            vocab_sha256: The SHA-256 hash of vocab.txt, in hex.
            documents_hash: The hash of the documents that are kept.
            choice: Further settings, which decide what documents are dropped because of other
                documents, such as near-duplicates (`pipeline.stages.choose_documents`). None if
                no documents are dropped for such a reason.
        """
        from pipeline.tokens.buckets import VALIDATION_RULES

        content = self.tokens_content(vocab_sha256)
        for name in ("instances", "nsp_balance"):
            if getattr(self, name) != _UNSAID[name]:
                content[name] = getattr(self, name)
        if len(self.corpus) > 1 or self.weights:
            content["sources"] = [
                {"name": source.name, "weight": source.millionths / UNIT, **source.reading()}
                for source in self.corpus
            ]
        if self.validation_fraction > 0:
            content["validation_rules"] = VALIDATION_RULES
        instances = {name: getattr(self, name) for name in _OF_INSTANCES}
        return content | dict(choice or {}) | {"documents_hash": documents_hash} | instances


def describe_changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describes for a message which settings differ between two builds, and their values.

    Args:
        found: The settings of the earlier build, as `content` returned them.
        wanted: The settings of this build.

    Returns:
        Text such as "seed was 1 and is now 2", or an empty text if nothing differs.
    """
    before = {**_UNSAID, **found}
    now = {**_UNSAID, **wanted}
    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    return ", ".join(f"{key} was {before.get(key)} and is now {now.get(key)}" for key in keys)
