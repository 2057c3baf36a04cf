"""Implements the tasks squad (1.1) and squad2 (2.0) (BERT paper, sections 4.2 and 4.3).

An answer is a passage of a context. Two things differ from google-research/bert run_squad.py. All
pairs of a start and an end are ranked, not only those of the most probable starts and ends. And the
text of an answer is cut out of the context by the positions of its pieces, while run_squad.py puts
it together from pieces and then looks for it in the context.

Shapes: N pieces of a window, L lengths of an answer in pieces.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.documents.files import StorageOptions
from pipeline.documents.text_files import read_text
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad import evaluate
from trainer.finetune.squad.items import WindowItem, cut_question, find_answer, find_pieces
from trainer.finetune.squad.records import Question, read_squad
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Output, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder

MAX_ANSWER_PIECES = 30  # as in run_squad.py


class Prediction(NamedTuple):
    """The best answer to a question.

    Attributes:
        id: The question's id.
        text: The answer, a passage of the context; empty if the context has no pieces.
        null_score: The score of giving no answer minus the score of this answer, as in
            `evaluate.Judged`; 0 if the context has no pieces.
    """

    id: str
    text: str
    null_score: float


@dataclass(frozen=True)
class SquadTask:
    """A `Task` whose examples are questions about contexts.

    Attributes:
        settings: The settings of windows and of giving no answer.
        with_impossible: Whether a question may have no answer, as in SQuAD 2.0.
        storage_options: Options of the filesystem of files at a URL.
        kind: The kind of head.
        main_metric: The metric that chooses the best run.
    """

    settings: SquadSettings
    with_impossible: bool
    storage_options: StorageOptions = field(default=None, repr=False)
    kind: str = "span"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Reads the questions of a SQuAD file.

        Raises:
            ValueError: The file is malformed. The message names file, article and question.
        """
        text = read_text(path, self.storage_options)
        return ReadSet(read_squad(text, path, self.with_impossible, split == "test"), {})

    def count_labels(self, examples: Sequence[Question]) -> dict[str, int]:
        """Returns an empty dict: answers are passages, not labels."""
        return {}

    def find_labels(self, examples: Sequence[Question]) -> Labels:
        """Returns no classes: the head chooses among the pieces of the context."""
        return ()

    def encode(
        self, examples: Sequence[Question], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Makes one item per question and window: [CLS] question [SEP] pieces of the context [SEP].

        The first answer of a question may have no piece, for example if it is U+200B alone. Such
        questions are counted in "answers_without_pieces". No items are made of them if the split is
        "train", just as `run_squad.py` does not train on answers that it cannot find.
        """
        contexts = list(dict.fromkeys(question.context for question in examples))
        pieces_of = dict(zip(contexts, find_pieces(contexts, encoder), strict=True))
        queries = encoder.encode_texts([question.text for question in examples])
        limit = self.settings.max_query_pieces
        stride = self.settings.stride
        items: list[Item] = []
        num_without_pieces = 0
        for index, (question, query) in enumerate(zip(examples, queries, strict=True)):
            pieces = pieces_of[question.context]
            if split != "test" and question.answers and find_answer(question, pieces) is None:
                num_without_pieces += 1
                if split == "train":
                    continue
            cut = query[:limit]
            items += cut_question(index, question, cut, pieces, encoder, split, stride)
        num_windows = Counter(item.example for item in items)
        counts = {
            "questions_cut": sum(len(query) > limit for query in queries),
            "questions_in_windows": sum(number > 1 for number in num_windows.values()),
            "questions_without_answer": sum(not question.answers for question in examples),
            "answers_without_pieces": num_without_pieces,
            "contexts_without_pieces": sum(not len(p.ids) for p in pieces_of.values()),
        }
        return EncodedSet(items, counts)

    def decode(
        self, examples: Sequence[Question], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Prediction]:
        """Returns the best answer to each question; it is empty if the context has no pieces."""
        windows: list[list[tuple[WindowItem, Output]]] = [[] for _ in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WindowItem), "items are those that encode() made"
            windows[item.example].append((item, output))
        return [
            _predict(question, of_question)
            for question, of_question in zip(examples, windows, strict=True)
        ]

    def score(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns the metrics "exact" and "f1" in percent, named as in the official evaluators.

        For SQuAD 2.0 the result also has both metrics over the questions with an answer
        ("HasAns_exact" and "HasAns_f1") and over those without ("NoAns_exact" and "NoAns_f1"), as
        far as there are such questions. "null_threshold" is the threshold of the null score with
        which all of them are computed: that of the settings, or else the one that gives the best F1
        on these examples.
        """
        answers = [[answer.text for answer in question.answers] for question in examples]
        pairs = list(zip(predictions, answers, strict=True))
        if not self.with_impossible:
            return evaluate.average_marks(
                [evaluate.mark_v1(prediction.text, right) for prediction, right in pairs]
            )
        judged = [
            evaluate.Judged(
                marks=evaluate.mark_v2(prediction.text, right),
                null_score=prediction.null_score,
                has_answer=bool(right),
                has_text=bool(prediction.text),
            )
            for prediction, right in pairs
        ]
        threshold = self.settings.null_threshold
        if threshold is None:
            threshold = evaluate.find_threshold(judged)

        marks = evaluate.apply_threshold(judged, threshold)
        metrics = evaluate.average_marks(marks) | {"null_threshold": threshold}
        for prefix, has_answer in (("HasAns", True), ("NoAns", False)):
            of_kind = [
                mark
                for mark, answer in zip(marks, judged, strict=True)
                if answer.has_answer == has_answer
            ]
            means = evaluate.average_marks(of_kind) if of_kind else {}
            metrics |= {f"{prefix}_{name}": value for name, value in means.items()}
        return metrics

    def prediction_files(
        self, path: str, examples: Any, predictions: Sequence[Prediction], tuned: Metrics
    ) -> dict[str, str]:
        """Returns the contents of the files of predictions by file name.

        predictions.json has the answers by the id of the question. For SQuAD 2.0 an answer is empty
        if its null score is above the threshold of the settings or, if they have none, of `tuned`.
        null_odds.json then has the null scores, which the official evaluator takes as
        --na-prob-file.
        """
        texts = {prediction.id: prediction.text for prediction in predictions}
        files: dict[str, dict[str, Any]] = {"predictions.json": texts}
        if self.with_impossible:
            threshold = self.settings.null_threshold
            if threshold is None:
                threshold = tuned.get("null_threshold", 0.0)
            files["null_odds.json"] = {
                prediction.id: prediction.null_score for prediction in predictions
            }
            texts |= {
                prediction.id: "" for prediction in predictions if prediction.null_score > threshold
            }
        return {
            name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            for name, content in files.items()
        }


def open_squad(settings: FinetuneSettings) -> SquadTask:
    """Creates the task squad or squad2.

    Raises:
        ValueError: The longest question would leave no room for the context in `seq_len`.
    """
    squad = settings.squad
    seq_len = settings.seq_len
    if squad.max_query_pieces + 4 > seq_len:
        says = "and [CLS], two [SEP] and a piece of the context leave no room in seq_len"
        raise ValueError(f"squad.max_query_pieces {squad.max_query_pieces} {says} {seq_len}")
    with_impossible = settings.task == "squad2"
    return SquadTask(squad, with_impossible, settings.filesystem_options())


def find_best_span(
    starts_N: Output, ends_N: Output, may_start_N: NDArray[np.bool_], max_pieces: int
) -> tuple[float, int, int]:
    """Finds the span of pieces with the highest sum of the logits of its first and last piece.

    Args:
        starts_N: float32 [N], the logit of each piece as the first one of the answer.
        ends_N: float32 [N], the logit of each piece as the last one.
        may_start_N: Whether a span may start at each piece.
        max_pieces: The most pieces of a span.

    Returns:
        The sum of logits of the best span, and its first and its last piece. The first span wins a
        tie. The sum is -inf if no span is possible.
    """
    num_pieces = len(starts_N)
    lengths_L = np.arange(min(max_pieces, num_pieces))  # of pieces after the first one
    ends_NL = np.arange(num_pieces)[:, None] + lengths_L
    end_logits_NL = np.append(ends_N, 0.0)[np.minimum(ends_NL, num_pieces)]
    sums_NL = starts_N[:, None].astype(np.float64) + end_logits_NL
    sums_NL[(ends_NL >= num_pieces) | ~may_start_N[:, None]] = -np.inf
    first, num_more = divmod(int(sums_NL.argmax()), len(lengths_L))
    return float(sums_NL[first, num_more]), first, first + num_more


def _predict(question: Question, windows: Sequence[tuple[WindowItem, Output]]) -> Prediction:
    """Returns the best answer to a question, over all windows of its context.

    The score of giving no answer is the sum of the two logits of [CLS], in the window where that
    sum is lowest. The null score is this sum minus the score of the best answer.

    Args:
        question: The question.
        windows: The items of the question, each with the model's output for it.
    """
    best_sum = -np.inf
    text = ""
    for item, output in windows:
        offset = item.sequences[0].segment_a_length
        starts_N, ends_N = output[offset : offset + item.window.length].T
        logit_sum, first, last = find_best_span(starts_N, ends_N, item.may_start, MAX_ANSWER_PIECES)
        if logit_sum > best_sum:
            best_sum = logit_sum
            start = item.pieces.starts[item.window.start + first]
            end = item.pieces.ends[item.window.start + last]
            text = question.context[start:end]
    cls_sums = (float(output[0, 0]) + float(output[0, 1]) for _, output in windows)
    lowest_cls_sum = min(cls_sums, default=0.0)
    return Prediction(question.id, text, lowest_cls_sum - best_sum if windows else 0.0)
