"""Implements the task ner: the tag of a word is predicted at its first piece.

The source is the BERT paper, section 5.3.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.documents.files import StorageOptions
from pipeline.documents.text_files import read_text
from pipeline.storage.quoting import join_names, quote
from tokenizer.vocab import IdArray
from trainer.conll.read import Columns, Sentence, add_column, read_conll
from trainer.conll.tags import OUTSIDE, Scheme, find_entities, label_names, write_tags
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder
from trainer.inference.features.extract import cut_windows
from trainer.model.task_heads import IGNORED

Tags = Sequence[str]
"""The tag of each word of a sentence."""

MAX_CONTEXT = 32
"""The least number of pieces on each side of a word's first piece, in the window that predicts it.

In short windows it is a quarter of the window. Words near the ends of the sentence have fewer.
"""


class EntityMetrics(NamedTuple):
    """Precision, recall and F1 over entities.

    An entity is right if its type and its first and last word are right.

    Attributes:
        precision: The share of the predicted entities that are right.
        recall: The share of the true entities that were predicted.
        f1: The harmonic mean of precision and recall.
        num_true: The number of true entities.
    """

    precision: float
    recall: float
    f1: float
    num_true: int


@dataclass(frozen=True)
class WordItem(Item):
    """A window of a sentence, some words of which are predicted in this window.

    Attributes:
        first_word: The number of the first predicted word in the sentence; the others follow it.
        first_pieces: int64 [predicted words], the position of each word's first piece in the
            sequence.
    """

    first_word: int
    first_pieces: NDArray[np.int64]


@dataclass(frozen=True)
class TokenTask:
    """A `Task` whose examples are sentences and whose predictions are the tags of their words.

    Attributes:
        settings: Columns of CoNLL files.
        storage_options: Options of the filesystem of files at a URL.
        kind: The kind of head.
        main_metric: The metric that chooses the best run.
    """

    settings: TokenSettings
    storage_options: StorageOptions = field(default=None, repr=False)
    kind: str = "tokens"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Reads the sentences of a CoNLL file. Sentences of a test file have no tags.

        Raises:
            ValueError: The file is malformed. The message names file and line.
        """
        tag_column = None if split == "test" else self.settings.tag_column
        columns = Columns(self.settings.token_column, tag_column)
        return ReadSet(read_conll(read_text(path, self.storage_options), path, columns), {})

    def count_labels(self, examples: Sequence[Sentence]) -> Counter[str]:
        """Counts the entities of each type."""
        return Counter(
            entity.type for sentence in examples for entity in find_entities(sentence.tags)
        )

    def find_labels(self, examples: Sequence[Sentence]) -> Labels:
        """Returns the tags that a model can predict, such as "O", "B-PER" and "I-PER".

        They are all tags that the scheme has for the types of entity in the training sentences,
        even tags that do not occur. The scheme is that of the files, or IOB2 for files in IOB1.

        Raises:
            ValueError: The training files have several schemes, or no entity.
        """
        schemes = {_model_scheme(sentence): sentence.path for sentence in examples}
        if len(schemes) > 1:
            described = " and ".join(f"{path} is {scheme}" for scheme, path in schemes.items())
            raise ValueError(
                f"training files are of several schemes, {described}; write them in one"
            )
        types = {tag[2:] for sentence in examples for tag in sentence.tags if tag != OUTSIDE}
        if not types:
            raise ValueError(f"{examples[0].path}: every tag is O, so there is no entity to learn")
        return label_names(types, next(iter(schemes)))

    def encode(
        self, examples: Sequence[Sentence], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Encodes each sentence as one item, or as several if it is longer than `seq_len`.

        The items of a long sentence are overlapping windows of it, and each word is predicted in
        exactly one of them. If the tokenizer makes no piece of a word, such as a control character,
        the word is encoded as [UNK] and counted in "words_without_pieces".

        Raises:
            ValueError: A sentence has a tag that is not one of `labels`.
        """
        words = list(dict.fromkeys(word for sentence in examples for word in sentence.words))
        pieces = dict(zip(words, encoder.encode_texts(words), strict=True))
        unknown = np.array([encoder.vocab.unk_id], dtype=encoder.vocab.dtype)
        items: list[Item] = []
        counts = Counter(words=0, words_without_pieces=0, sentences_in_windows=0)
        for example, sentence in enumerate(examples):
            classes = [] if split == "test" else number_tags(sentence, labels)
            word_pieces = [pieces[word] for word in sentence.words]
            filled_pieces = [ids if len(ids) else unknown for ids in word_pieces]
            windows = _sentence_windows(example, filled_pieces, classes, encoder)
            items += windows

            num_unknown = sum(not len(ids) for ids in word_pieces)
            counts.update(words=len(word_pieces), words_without_pieces=num_unknown)
            counts.update(sentences_in_windows=len(windows) > 1)
        return EncodedSet(items, dict(counts))

    def decode(
        self, examples: Sequence[Sentence], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Tags]:
        """Returns the most probable tag of each word, a tuple for each sentence."""
        tags = [[""] * len(sentence.words) for sentence in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WordItem), "items are those that encode() made"
            best_labels = output[item.first_pieces].argmax(axis=1)
            for word, label in enumerate(best_labels, item.first_word):
                tags[item.example][word] = labels[label]
        return [tuple(sentence_tags) for sentence_tags in tags]

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns "f1", "precision" and "recall" over all entities, and "tag_accuracy" over words.

        There is also the F1 of each type of entity, such as "f1_PER". Types that do not occur in
        the labels of these sentences are left out.
        """
        true_tags = [sentence.tags_in(_model_scheme(sentence)) for sentence in examples]
        total, by_type = compare_entities(true_tags, predictions)
        metrics = {
            "f1": total.f1,
            "precision": total.precision,
            "recall": total.recall,
            "tag_accuracy": tag_accuracy(true_tags, predictions),
        }
        return metrics | {f"f1_{name}": of.f1 for name, of in by_type.items() if of.num_true}

    def prediction_files(
        self, path: str, examples: Sequence[Sentence], predictions: Sequence[Tags], tuned: Metrics
    ) -> dict[str, str]:
        """Returns the content of predictions.conll, by this name.

        It has the lines of the file with a further column, the predicted tags in the scheme of the
        file.
        """
        tags = list(predictions)
        if examples[0].scheme == "iob1":
            tags = [
                tuple(write_tags(find_entities(iob2_tags), len(iob2_tags), "iob1"))
                for iob2_tags in predictions
            ]
        return {"predictions.conll": add_column(examples, tags)}


def open_ner(settings: FinetuneSettings) -> TokenTask:
    """Creates the task ner, which finds named entities."""
    return TokenTask(settings.tokens, settings.filesystem_options())


def _sentence_windows(
    example: int, pieces: Sequence[IdArray], classes: Sequence[int], encoder: TextEncoder
) -> list[WordItem]:
    """Makes the items of one sentence, one for each of its windows.

    Args:
        example: The number of the sentence among the examples.
        pieces: The ids of the pieces of each word, at least one for each.
        classes: The class of each word; empty in a test file, whose items have no labels.
        encoder: The model's tokenizer, with the length of a sequence.
    """
    room = encoder.seq_len - 2
    stride = room - 2 * min(MAX_CONTEXT, room // 4)
    ids = np.concatenate(pieces)
    word_starts = np.cumsum([0, *map(len, pieces)])
    items = []
    for window in cut_windows(int(word_starts[-1]), room, stride):
        first, last = np.searchsorted(word_starts[:-1], (window.keep_start, window.keep_stop))
        sequence = encoder.join(ids[window.start : window.stop])
        first_pieces = 1 + word_starts[first:last] - window.start  # [CLS] is in front of them
        num_labels = len(sequence.input_ids) if classes else 0
        labels = np.full(num_labels, IGNORED, dtype=np.int64)
        if classes:
            labels[first_pieces] = classes[first:last]
        items.append(WordItem(example, (sequence,), labels, int(first), first_pieces))
    return items


def compare_entities(
    labels: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[EntityMetrics, dict[str, EntityMetrics]]:
    """Compares the entities that predicted tags and right tags describe.

    Args:
        labels: The right tags of each sentence.
        predictions: The predicted tags of each sentence.

    Returns:
        The metrics over all entities, and the metrics of each type of entity by its name.
    """
    num_true = Counter[str]()
    num_predicted = Counter[str]()
    num_right = Counter[str]()
    for label, prediction in zip(labels, predictions, strict=True):
        true = set(find_entities(label))
        predicted = set(find_entities(prediction))
        num_true.update(entity.type for entity in true)
        num_predicted.update(entity.type for entity in predicted)
        num_right.update(entity.type for entity in true & predicted)
    total = _metrics_of_counts(num_right.total(), num_predicted.total(), num_true.total())
    by_type = {
        name: _metrics_of_counts(num_right[name], num_predicted[name], num_true[name])
        for name in sorted(num_true | num_predicted)
    }
    return total, by_type


def tag_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Returns the share of words whose predicted tag is right; 0 without words."""
    num_right = 0
    num_words = 0
    for label, prediction in zip(labels, predictions, strict=True):
        num_right += sum(tag == guess for tag, guess in zip(label, prediction, strict=True))
        num_words += len(label)
    return _divide(num_right, num_words)


def _metrics_of_counts(num_right: int, num_predicted: int, num_true: int) -> EntityMetrics:
    """Returns precision, recall and F1.

    Args:
        num_right: Number of predicted entities that are right.
        num_predicted: Number of all predicted entities.
        num_true: Number of entities in the labels.
    """
    return EntityMetrics(
        precision=_divide(num_right, num_predicted),
        recall=_divide(num_right, num_true),
        f1=_divide(2 * num_right, num_predicted + num_true),
        num_true=num_true,
    )


def _divide(numerator: float, denominator: float) -> float:
    """Returns the quotient, or 0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0


def number_tags(sentence: Sentence, labels: Labels) -> list[int]:
    """Returns, for each word of a sentence, the index of its tag among the model's labels.

    Tags in IOB1 are converted to IOB2 first, because no model has labels in IOB1.

    Args:
        sentence: A sentence with tags.
        labels: The model's labels, such as ("O", "B-PER", "I-PER"). Number 1 stands for "B-PER".

    Raises:
        ValueError: A tag is not one of the labels, or the sentence's tags are in BIOES and the
            labels are not, or the other way round. The message names file and line.
    """
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
    """Returns the scheme in which a model is trained on a sentence.

    It is the scheme of the sentence's own tags, or IOB2 if they are in IOB1.
    """
    return "bioes" if sentence.scheme == "bioes" else "iob2"
