"""The task ner: entities by the tag of each word's first piece (BERT paper, section 5.3)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.documents.text_files import read_text
from pipeline.storage.quoting import join_names, quote
from trainer.conll.read import Columns, Sentence, add_column, read_conll
from trainer.conll.tags import OUTSIDE, Scheme, find_entities, label_names, write_tags
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder
from trainer.inference.features.extract import cut_windows
from trainer.model.task_heads import IGNORED

Tags = Sequence[str]
"""The tag of each word of a sentence."""

MAX_CONTEXT = 32  # pieces that a predicted word has on each side at the edge of a window


class Score(NamedTuple):
    """Right ones of the predicted entities, right ones of the true ones, and the harmonic mean."""

    precision: float
    recall: float
    f1: float
    num_true: int


@dataclass(frozen=True)
class WordItem(Item):
    """A window of a sentence: its first predicted word, and where in the sequence those begin."""

    first_word: int
    first_pieces: NDArray[np.int64]


@dataclass(frozen=True)
class TokenTask:
    """A `Task` whose examples are sentences and whose predictions are the tags of their words."""

    settings: TokenSettings
    kind: str = "tokens"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Sentences of a CoNLL file; those of a test file have no tags."""
        tag_column = None if split == "test" else self.settings.tag_column
        columns = Columns(self.settings.token_column, tag_column)
        return ReadSet(read_conll(read_text(path), path, columns), {})

    def count_labels(self, examples: Sequence[Sentence]) -> Counter[str]:
        """Counts the entities of each type."""
        return Counter(
            entity.type for sentence in examples for entity in find_entities(sentence.tags)
        )

    def find_labels(self, examples: Sequence[Sentence]) -> Labels:
        """All tags of the types in the training sentences; those of IOB1 files as IOB2."""
        schemes = {_model_scheme(sentence): sentence.path for sentence in examples}
        if len(schemes) > 1:
            found = " and ".join(f"{path} is {scheme}" for scheme, path in schemes.items())
            raise ValueError(f"training files are of several schemes, {found}; write them in one")
        types = {tag[2:] for sentence in examples for tag in sentence.tags if tag != OUTSIDE}
        if not types:
            raise ValueError(f"{examples[0].path}: every tag is O, so there is no entity to learn")
        return label_names(types, next(iter(schemes)))

    def encode(
        self, examples: Sequence[Sentence], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """An item for each window of a sentence; a word without pieces is [UNK], and counted."""
        words = list(dict.fromkeys(word for sentence in examples for word in sentence.words))
        pieces = dict(zip(words, encoder.encode_texts(words), strict=True))
        room = encoder.seq_len - 2
        stride = room - 2 * min(MAX_CONTEXT, room // 4)
        unknown = np.array([encoder.vocab.unk_id], dtype=encoder.vocab.dtype)
        items: list[Item] = []
        counts = Counter(words=0, words_without_pieces=0, sentences_in_windows=0)
        for example, sentence in enumerate(examples):
            classes = [] if split == "test" else number_tags(sentence, labels)
            found = [pieces[word] for word in sentence.words]
            of_words = [ids if len(ids) else unknown for ids in found]
            starts = np.cumsum([0, *map(len, of_words)])
            ids, windows = np.concatenate(of_words), cut_windows(int(starts[-1]), room, stride)
            for window in windows:
                first, last = np.searchsorted(starts[:-1], (window.keep_start, window.keep_stop))
                sequence = encoder.join(ids[window.start : window.stop])
                places = 1 + starts[first:last] - window.start
                size = len(sequence.input_ids) if classes else 0
                of_tokens = np.full(size, IGNORED, dtype=np.int64)
                if classes:
                    of_tokens[places] = classes[first:last]
                items.append(WordItem(example, (sequence,), of_tokens, int(first), places))
            num_unknown = sum(not len(ids) for ids in found)
            counts.update(words=len(found), words_without_pieces=num_unknown)
            counts.update(sentences_in_windows=len(windows) > 1)
        return EncodedSet(items, dict(counts))

    def decode(
        self, examples: Sequence[Sentence], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Tags]:
        """The most probable tag of each word."""
        tags = [[""] * len(sentence.words) for sentence in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WordItem), "items are those that encode() made"
            for word, best in enumerate(output[item.first_pieces].argmax(axis=1), item.first_word):
                tags[item.example][word] = labels[best]
        return [tuple(of_sentence) for of_sentence in tags]

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float]:
        """Scores of entities, of all and of each type that is labelled; the share of right tags."""
        true = [sentence.tags_in(_model_scheme(sentence)) for sentence in examples]
        every, by_type = score_entities(true, predictions)
        scores = {name: getattr(every, name) for name in ("f1", "precision", "recall")}
        scores["tag_accuracy"] = tag_accuracy(true, predictions)
        return scores | {f"f1_{name}": of.f1 for name, of in by_type.items() if of.num_true}

    def prediction_files(
        self, path: str, examples: Sequence[Sentence], predictions: Sequence[Tags], tuned: Metrics
    ) -> dict[str, str]:
        """The file's lines with a column of predicted tags."""
        written = list(predictions)
        if examples[0].scheme == "iob1":
            written = [tuple(write_tags(find_entities(t), len(t), "iob1")) for t in predictions]
        return {"predictions.conll": add_column(examples, written)}


def open_ner(settings: FinetuneSettings) -> TokenTask:
    """The task ner."""
    return TokenTask(settings.tokens)


def score_entities(
    labels: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[Score, dict[str, Score]]:
    """The score of all entities together, and each type's by name."""
    num_true, num_predicted, num_right = Counter[str](), Counter[str](), Counter[str]()
    for label, prediction in zip(labels, predictions, strict=True):
        true, predicted = set(find_entities(label)), set(find_entities(prediction))
        num_true.update(entity.type for entity in true)
        num_predicted.update(entity.type for entity in predicted)
        num_right.update(entity.type for entity in true & predicted)
    counts = (num_right, num_predicted, num_true)
    by_type = {
        name: _score_counts(*(each[name] for each in counts))
        for name in sorted(num_true | num_predicted)
    }
    return _score_counts(*(each.total() for each in counts)), by_type


def tag_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Share of words whose tag is right."""
    sentences = zip(labels, predictions, strict=True)
    pairs = [pair for each in sentences for pair in zip(*each, strict=True)]
    return _divide(sum(label == prediction for label, prediction in pairs), len(pairs))


def _score_counts(num_right: int, num_predicted: int, num_true: int) -> Score:
    precision, recall = _divide(num_right, num_predicted), _divide(num_right, num_true)
    return Score(precision, recall, _divide(2 * num_right, num_predicted + num_true), num_true)


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def number_tags(sentence: Sentence, labels: Labels) -> list[int]:
    """The class of each word; a ValueError if training does not know a tag, or the scheme."""
    number = {label: index for index, label in enumerate(labels)}
    scheme = _model_scheme(sentence)
    known = "bioes" if any(label[0] in "ES" for label in labels) else "iob2"
    tags = sentence.tags_in(scheme)
    for index, tag in enumerate(tags):
        if tag != OUTSIDE and known != scheme:
            says = f"the file is {sentence.scheme}, the model's labels are {known}"
            raise ValueError(f"{sentence.locate(index)}: {says}; write the files in one scheme")
        if tag not in number:
            says = f"tag {quote(tag)} is none of those trained: {join_names(labels)}"
            cure = "mend it, write O, or train on examples of its type too"
            raise ValueError(f"{sentence.locate(index)}: {says}; {cure}")
    return [number[tag] for tag in tags]


def _model_scheme(sentence: Sentence) -> Scheme:
    """The scheme of the model's labels: IOB2 says all that IOB1 does."""
    return "bioes" if sentence.scheme == "bioes" else "iob2"
