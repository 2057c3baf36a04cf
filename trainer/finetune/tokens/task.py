"""The task ner: entities by the tag of each word's first piece (BERT paper, section 5.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.documents.text_files import read_text
from tokenizer.vocab import IdArray
from trainer.conll.read import Columns, Sentence, add_column, read_conll
from trainer.conll.tags import OUTSIDE, Scheme, find_entities, label_names, type_of, write_tags
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.task import EncodedSet, Item, Outputs, ReadSet, Split, TokenSequence
from trainer.finetune.text import TextEncoder
from trainer.finetune.tokens.entities import (
    format_table,
    score_entities,
    score_strict_entities,
    tag_accuracy,
)
from trainer.finetune.tokens.windows import Window, cut_windows
from trainer.model.task_heads import IGNORED

Tags = tuple[str, ...]
"""A prediction: the tag of each word of a sentence."""

MAX_CONTEXT = 32
"""The most pieces that neighbouring windows of a sentence share on each side."""


@dataclass(frozen=True)
class WordItem(Item):
    """A window of a sentence.

    Attributes:
        window: Which words are read and predicted.
        first_pieces: Where in the sequence the predicted words begin.
    """

    window: Window
    first_pieces: NDArray[np.int64]


@dataclass(frozen=True)
class TokenTask:
    """A `Task` whose examples are sentences and whose predictions are the tags of their words.

    Attributes:
        settings: Columns, scheme and windows.
        kind: The kind of head, as `Task` says.
        main_metric: F1 of all entities.
    """

    settings: TokenSettings
    kind: str = "tokens"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Sentences of a CoNLL file; those of a test file have no tags."""
        columns = Columns(
            self.settings.token_column, None if split == "test" else self.settings.tag_column
        )
        return ReadSet(read_conll(read_text(path), path, columns, self.settings.scheme))

    def find_labels(self, examples: Sequence[Sentence]) -> tuple[str, ...]:
        """All tags of the types in the training sentences; those of IOB1 files as IOB2.

        Raises:
            ValueError: Files of several schemes, or without any entity.
        """
        schemes = {_model_scheme(sentence): sentence.path for sentence in examples}
        if len(schemes) > 1:
            found = " and ".join(f"{path} is {scheme}" for scheme, path in schemes.items())
            raise ValueError(f"training files are of several schemes, {found}; write them in one")
        types = {type_of(tag) for sentence in examples for tag in sentence.tags if tag != OUTSIDE}
        if not types:
            raise ValueError(f"{examples[0].path}: every tag is O, so there is no entity to learn")
        return label_names(types, next(iter(schemes)))

    def encode(
        self,
        examples: Sequence[Sentence],
        labels: tuple[str, ...],
        encoder: TextEncoder,
        split: Split,
    ) -> EncodedSet:
        """One item for each window of each sentence.

        A word that has no piece, such as one of control characters, is read as [UNK]; one with more
        pieces than a sequence holds as its first ones. Both are counted.
        """
        pieces = _encode_words(examples, encoder)
        room = encoder.seq_len - 2
        context = min(MAX_CONTEXT, room // 4)
        unknown = np.array([encoder.vocab.unk_id], dtype=encoder.vocab.dtype)
        items: list[Item] = []
        counts = dict.fromkeys(
            ("words", "words_without_pieces", "words_cut", "sentences_in_windows"), 0
        )
        for example, sentence in enumerate(examples):
            found = [pieces[word] for word in sentence.words]
            of_words = [ids[:room] if len(ids) else unknown for ids in found]
            windows = cut_windows([len(ids) for ids in of_words], room, context)
            classes = [] if split == "test" else number_tags(sentence, labels)
            items += [_make_item(example, window, of_words, classes, encoder) for window in windows]
            counts["words"] += len(found)
            counts["words_without_pieces"] += sum(not len(ids) for ids in found)
            counts["words_cut"] += sum(len(ids) > room for ids in found)
            counts["sentences_in_windows"] += len(windows) > 1
        return EncodedSet(items, counts)

    def decode(
        self,
        examples: Sequence[Sentence],
        items: Sequence[Item],
        outputs: Sequence[Outputs],
        labels: tuple[str, ...],
    ) -> list[Tags]:
        """The most probable tag of each word."""
        tags = [[""] * len(sentence.words) for sentence in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WordItem), "items are those that encode() made"
            best = output[item.first_pieces].argmax(axis=1)
            tags[item.example][item.window.predicted_from : item.window.predicted_to] = [
                labels[n] for n in best
            ]
        return [tuple(of_sentence) for of_sentence in tags]

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float]:
        """Scores of entities as seqeval counts them, and the share of right tags."""
        true = [sentence.tags_in(_model_scheme(sentence)) for sentence in examples]
        scores, strict = score_entities(true, predictions), score_strict_entities(true, predictions)
        metrics = {
            "f1": scores.micro.f1,
            "precision": scores.micro.precision,
            "recall": scores.micro.recall,
            "macro_f1": scores.macro.f1,
            "strict_f1": strict.micro.f1,
            "tag_accuracy": tag_accuracy(true, predictions),
        }
        return metrics | {
            f"f1_{name}": score.f1 for name, score in scores.by_type.items() if score.num_true
        }

    def prediction_files(
        self,
        path: str,  # noqa: ARG002
        examples: Sequence[Sentence],
        predictions: Sequence[Tags],
        metrics: Mapping[str, float],  # noqa: ARG002
    ) -> dict[str, str]:
        """The file's lines with a column of predicted tags; with tags also scores by type."""
        written = [
            tags if sentence.scheme != "iob1" else _as_iob1(tags)
            for sentence, tags in zip(examples, predictions, strict=True)
        ]
        files = {"predictions.conll": add_column(examples, written)}
        if examples[0].scheme is None:
            return files
        true = [sentence.tags_in(_model_scheme(sentence)) for sentence in examples]
        tables = [
            f"entities\n{format_table(score_entities(true, predictions))}",
            f"strict: only well-formed entities\n{format_table(score_strict_entities(true, predictions))}",
        ]
        return files | {"entities.txt": "\n".join(tables)}


def open_ner(settings: FinetuneSettings) -> TokenTask:
    """The task ner."""
    return TokenTask(settings.tokens)


def _model_scheme(sentence: Sentence) -> Scheme:
    """The scheme of the model's labels: IOB2 says all that IOB1 does."""
    return "bioes" if sentence.scheme == "bioes" else "iob2"


def _as_iob1(tags: Tags) -> Tags:
    return tuple(write_tags(find_entities(tags), len(tags), "iob1"))


def _encode_words(sentences: Sequence[Sentence], encoder: TextEncoder) -> dict[str, IdArray]:
    """Pieces of every word that occurs."""
    words = list(dict.fromkeys(word for sentence in sentences for word in sentence.words))
    return dict(zip(words, encoder.encode_texts(words), strict=True))


def number_tags(sentence: Sentence, labels: tuple[str, ...]) -> list[int]:
    """The class of each word.

    Raises:
        ValueError: A tag that training does not know; says file and line.
    """
    number = {label: index for index, label in enumerate(labels)}
    tags = sentence.tags_in(_model_scheme(sentence))
    known = "bioes" if any(label[0] in "ES" for label in labels) else "iob2"
    for index, tag in enumerate(tags):
        if tag != OUTSIDE and known != _model_scheme(sentence):
            raise ValueError(
                f"{sentence.locate(index)}: the file is {sentence.scheme}, the model's labels are {known}; write the "
                "files in one scheme"
            )
        if tag not in number:
            raise ValueError(
                f"{sentence.locate(index)}: tag {tag!r} is none of the model's: {', '.join(labels)}"
            )
    return [number[tag] for tag in tags]


def _make_item(
    example: int,
    window: Window,
    of_words: Sequence[IdArray],
    classes: Sequence[int],
    encoder: TextEncoder,
) -> WordItem:
    """The window's words as a sequence; only the first pieces of those it predicts have labels."""
    read = of_words[window.first : window.last]
    starts = 1 + np.cumsum([0, *(len(ids) for ids in read)])
    predicted = slice(window.predicted_from, window.predicted_to)
    first_pieces = starts[window.predicted_from - window.first : window.predicted_to - window.first]
    input_ids, segment_a_length = encoder.join(np.concatenate(read))
    labels = np.zeros(0, dtype=np.int64)
    if classes:
        labels = np.full(len(input_ids), IGNORED, dtype=np.int64)
        labels[first_pieces] = classes[predicted]
    return WordItem(
        example, (TokenSequence(input_ids, segment_a_length),), labels, window, first_pieces
    )
