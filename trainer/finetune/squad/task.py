"""The tasks squad (1.1) and squad2 (2.0): answers are passages (BERT paper, sections 4.2, 4.3).

Unlike google-research/bert run_squad.py every pair of a start and an end is looked at, and an
answer is cut out of the context as written. N pieces of a window's context, L lengths of an answer.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.documents.text_files import read_text
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad import evaluate
from trainer.finetune.squad.items import WindowItem, cut_question, find_answer, find_pieces
from trainer.finetune.squad.records import Question, read_squad
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Output, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder

MAX_ANSWER_PIECES = 30  # as in run_squad.py


class Prediction(NamedTuple):
    """The best answer to a question; the null score is how much higher that of no answer is."""

    id: str
    text: str
    null_score: float


@dataclass(frozen=True)
class SquadTask:
    """A `Task` whose examples are questions, `with_impossible` (2.0) ones without answer."""

    settings: SquadSettings
    with_impossible: bool
    kind: str = "span"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Questions of a SQuAD file."""
        text = read_text(path)
        return ReadSet(read_squad(text, path, self.with_impossible, split == "test"), {})

    def count_labels(self, examples: Sequence[Question]) -> dict[str, int]:
        """Returns an empty dict: answers are passages, not labels."""
        return {}

    def find_labels(self, examples: Sequence[Question]) -> Labels:
        """None: the classes are the pieces of the context."""
        return ()

    def encode(
        self, examples: Sequence[Question], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Returns one item per window: [CLS] question [SEP] pieces of the context [SEP].

        A question is counted, and left out of training, if its answer has no piece, for example if
        the answer is U+200B alone. `run_squad.py` leaves out answers that it cannot find in the
        same way.
        """
        contexts = list(dict.fromkeys(question.context for question in examples))
        pieces_of = dict(zip(contexts, find_pieces(contexts, encoder), strict=True))
        queries = encoder.encode_texts([question.text for question in examples])
        limit, stride = self.settings.max_query_pieces, self.settings.stride
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
        """The best answer to each question; of a context without pieces there is none."""
        windows: list[list[tuple[WindowItem, Output]]] = [[] for _ in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WindowItem), "items are those that encode() made"
            windows[item.example].append((item, output))
        return [_predict(*each) for each in zip(examples, windows, strict=True)]

    def score(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Exact match and F1 in percent, under the names of the official evaluators."""
        answers = [[answer.text for answer in each.answers] for each in examples]
        pairs = list(zip(predictions, answers, strict=True))
        if not self.with_impossible:
            return evaluate.average([evaluate.mark_v1(each.text, right) for each, right in pairs])
        judged = [
            evaluate.Judged(
                evaluate.mark_v2(each.text, right), each.null_score, bool(right), bool(each.text)
            )
            for each, right in pairs
        ]
        threshold = self.settings.null_threshold
        threshold = evaluate.find_threshold(judged) if threshold is None else threshold
        marks = evaluate.apply_threshold(judged, threshold)
        metrics = evaluate.average(marks) | {"null_threshold": threshold}
        for kind, has in (("HasAns", True), ("NoAns", False)):
            chosen = [m for m, each in zip(marks, judged, strict=True) if each.has_answer == has]
            of_kind = evaluate.average(chosen) if chosen else {}
            metrics |= {f"{kind}_{name}": value for name, value in of_kind.items()}
        return metrics

    def prediction_files(
        self, path: str, examples: Any, predictions: Sequence[Prediction], tuned: Metrics
    ) -> dict[str, str]:
        """Answers by id, and of squad2 null scores, for --na-prob-file of its evaluator."""
        texts = {each.id: each.text for each in predictions}
        files: dict[str, dict[str, Any]] = {"predictions.json": texts}
        if self.with_impossible:
            given = self.settings.null_threshold
            threshold = tuned.get("null_threshold", 0.0) if given is None else given
            files["null_odds.json"] = {each.id: each.null_score for each in predictions}
            texts |= {each.id: "" for each in predictions if each.null_score > threshold}
        return {
            name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            for name, content in files.items()
        }


def open_squad(settings: FinetuneSettings) -> SquadTask:
    """The tasks squad and squad2."""
    chosen, seq_len = settings.squad, settings.seq_len
    if chosen.max_query_pieces + 4 > seq_len:
        says = "and [CLS], two [SEP] and a piece of the context leave no room in seq_len"
        raise ValueError(f"squad.max_query_pieces {chosen.max_query_pieces} {says} {seq_len}")
    return SquadTask(chosen, with_impossible=settings.task == "squad2")


def find_best_span(
    starts_N: Output, ends_N: Output, may_start_N: NDArray[np.bool_], max_pieces: int
) -> tuple[float, int, int]:
    """Score, first and last piece of the best span, of equal ones the first; -inf without one."""
    num_pieces = len(starts_N)
    lengths_L = np.arange(min(max_pieces, num_pieces))
    ends_NL = np.arange(num_pieces)[:, None] + lengths_L
    end_scores_NL = np.append(ends_N, 0.0)[np.minimum(ends_NL, num_pieces)]
    scores_NL = starts_N[:, None].astype(np.float64) + end_scores_NL
    scores_NL[(ends_NL >= num_pieces) | ~may_start_N[:, None]] = -np.inf
    first, more = divmod(int(scores_NL.argmax()), len(lengths_L))
    return float(scores_NL[first, more]), first, first + more


def _predict(question: Question, windows: Sequence[tuple[WindowItem, Output]]) -> Prediction:
    """The best answer in all windows of a question; no answer where it is least likely."""
    best, text = -np.inf, ""
    for item, output in windows:
        offset = item.sequences[0].segment_a_length
        starts_N, ends_N = output[offset : offset + item.window.length].T
        score, *span = find_best_span(starts_N, ends_N, item.may_start, MAX_ANSWER_PIECES)
        if score > best:
            first, last = (item.window.start + each for each in span)
            best, text = score, question.context[item.pieces.starts[first] : item.pieces.ends[last]]
    null = min((float(output[0, 0]) + float(output[0, 1]) for _, output in windows), default=0.0)
    return Prediction(question.id, text, null - best if windows else 0.0)
