"""The tasks squad (1.1) and squad2 (2.0): answers are passages (BERT paper, sections 4.2, 4.3)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.documents.text_files import read_text
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad.evaluate import (
    Judged,
    apply_threshold,
    average,
    find_best_threshold,
    halfway_above,
    mark_v1,
    mark_v2,
)
from trainer.finetune.squad.items import WindowItem, cut_question, find_answer, find_pieces
from trainer.finetune.squad.predictions import Prediction, predict, prediction_files
from trainer.finetune.squad.records import Question, find_fault, read_squad
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Output, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder


@dataclass(frozen=True)
class SquadTask:
    """A `Task` whose examples are questions, which may have no answer with `with_impossible` (2.0)."""

    settings: SquadSettings
    with_impossible: bool
    kind: str = "span"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Questions of a SQuAD file."""
        is_test = split == "test"
        questions = read_squad(
            read_text(path), path, with_impossible=self.with_impossible, needs_answers=not is_test
        )
        faults = [fault for each in questions if (fault := find_fault(each, not is_test))]
        if faults:
            advice = "mend them, or take the questions out"
            raise ValueError(f"{faults[0]}; this is the first of {len(faults)} faults, {advice}")
        return ReadSet(questions, {})

    def find_labels(self, examples: Sequence[Question]) -> Labels:
        """None: the classes are the pieces of the context."""
        return ()

    def encode(
        self, examples: Sequence[Question], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """One item for each window: [CLS] question [SEP] pieces of the context [SEP]."""
        contexts = list(dict.fromkeys(question.context for question in examples))
        found = find_pieces(contexts, encoder)
        pieces_of = dict(zip(contexts, found, strict=True))
        queries = encoder.encode_texts([question.text for question in examples])
        limit, stride = self.settings.max_query_pieces, self.settings.stride
        items: list[Item] = []
        for index, (question, query) in enumerate(zip(examples, queries, strict=True)):
            pieces = pieces_of[question.context]
            if split == "train" and question.answers and find_answer(question, pieces) is None:
                answer = question.answers[0].text
                raise ValueError(f"{question.place}: answer {answer!r} has no piece of text")
            cut = query[:limit]
            items += cut_question(index, question, cut, pieces, encoder, split, stride)
        num_windows = Counter(item.example for item in items)
        counts = {
            "questions_cut": sum(len(query) > limit for query in queries),
            "questions_in_windows": sum(number > 1 for number in num_windows.values()),
            "questions_without_answer": sum(not question.answers for question in examples),
            "contexts_without_pieces": sum(not len(each.ids) for each in found),
        }
        return EncodedSet(items, counts)

    def decode(
        self, examples: Sequence[Question], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Prediction]:
        """The best answers to each question; of a context without pieces there is none."""
        windows: list[list[tuple[WindowItem, Output]]] = [[] for _ in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WindowItem), "items are those that encode() made"
            windows[item.example].append((item, output))
        return [predict(*each) for each in zip(examples, windows, strict=True)]

    def score(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Exact match and F1 in percent, under the names of the official evaluators."""
        answers = [[answer.text for answer in each.answers] for each in examples]
        pairs = list(zip(predictions, answers, strict=True))
        if not self.with_impossible:
            return average([mark_v1(each.text, right) for each, right in pairs])
        judged = [
            Judged(mark_v2(each.text, right), each.null_score, bool(right), bool(each.text))
            for each, right in pairs
        ]
        best_exact, best_f1 = (find_best_threshold(judged, name) for name in ("exact", "f1"))
        threshold = self.settings.null_threshold
        if threshold is None:
            threshold = halfway_above(best_f1.threshold, (each.null_score for each in judged))
        marks = apply_threshold(judged, threshold)
        metrics = average(marks)
        for kind, has in (("HasAns", True), ("NoAns", False)):
            chosen = [
                mark for mark, each in zip(marks, judged, strict=True) if each.has_answer == has
            ]
            if chosen:
                metrics |= {f"{kind}_{name}": value for name, value in average(chosen).items()}
        return metrics | {
            "null_threshold": threshold,
            "best_exact": best_exact.score,
            "best_exact_thresh": best_exact.threshold,
            "best_f1": best_f1.score,
            "best_f1_thresh": best_f1.threshold,
        }

    def prediction_files(
        self, path: str, examples: Any, predictions: Sequence[Prediction], tuned: Metrics
    ) -> dict[str, str]:
        """Predictions, best answers and, of squad2, null scores, as run_squad.py writes them."""
        threshold = None
        if self.with_impossible:
            threshold = self.settings.null_threshold
            threshold = tuned.get("null_threshold", 0.0) if threshold is None else threshold
        return prediction_files(predictions, threshold)


def open_squad(settings: FinetuneSettings) -> SquadTask:
    """The tasks squad and squad2."""
    chosen, seq_len = settings.squad, settings.seq_len
    for name in ("stride", "max_query_pieces"):
        if getattr(chosen, name) < 1:
            raise ValueError(f"squad.{name} is {getattr(chosen, name)}; it must be at least 1")
    if chosen.max_query_pieces + 4 > seq_len:
        found = (
            f"squad.max_query_pieces {chosen.max_query_pieces} leaves no room in seq_len {seq_len}"
        )
        raise ValueError(f"{found}: [CLS], two [SEP] and a piece of the context need 4")
    return SquadTask(chosen, with_impossible=settings.task == "squad2")
