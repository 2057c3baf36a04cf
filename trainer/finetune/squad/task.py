"""The tasks squad (1.1) and squad2 (2.0): answers are passages (BERT paper, sections 4.2, 4.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.documents.text_files import read_text
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad.evaluate import (
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
from trainer.finetune.task import EncodedSet, Item, Labels, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder


@dataclass(frozen=True)
class SquadTask:
    """A `Task` whose examples are questions, which may have no answer with `with_impossible` (2.0)."""

    settings: SquadSettings
    with_impossible: bool
    kind: str = "span"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Questions of a SQuAD file; a bad one stops where those do, else training leaves it out."""
        is_test = split == "test"
        questions = read_squad(
            read_text(path), path, with_impossible=self.with_impossible, needs_answers=not is_test
        )
        # A test file's answers are not read, so they cannot be wrong.
        judged = [each._replace(answers=()) for each in questions] if is_test else questions
        faults = {each.id: fault for each in judged if (fault := find_fault(each))}
        first = next(iter(faults.values()), "")
        if faults and self.settings.on_bad_question == "stop":
            raise ValueError(f"{first}; mend it, or give --squad.on_bad_question skip")
        if split == "train":
            questions = [question for question in questions if question.id not in faults]
            if not questions:
                raise ValueError(f"{path}: no question is left; the first fault was {first}")
        return ReadSet(questions, {"bad_questions": len(faults)})

    def find_labels(self, examples: Sequence[Question]) -> Labels:  # noqa: ARG002
        """None: the classes are the pieces of the context."""
        return ()

    def encode(
        self,
        examples: Sequence[Question],
        labels: Labels,  # noqa: ARG002
        encoder: TextEncoder,
        split: Split,
    ) -> EncodedSet:
        """One item for each window: [CLS] question [SEP] pieces of the context [SEP].

        An answer in training without a piece, such as one of control characters, is a bad question.
        """
        contexts = list(dict.fromkeys(question.context for question in examples))
        found = find_pieces(contexts, encoder)
        pieces_of = dict(zip(contexts, found, strict=True))
        queries = encoder.encode_texts([question.text for question in examples])
        limit, stride = self.settings.max_query_pieces, self.settings.stride
        items: list[Item] = []
        num_lost = 0
        for index, (question, query) in enumerate(zip(examples, queries, strict=True)):
            pieces = pieces_of[question.context]
            if split == "train" and question.answers and find_answer(question, pieces) is None:
                if self.settings.on_bad_question == "stop":
                    answer = question.answers[0].text
                    raise ValueError(f"{question.place}: answer {answer!r} has no piece of text")
                num_lost += 1
            else:
                cut = query[:limit]
                items += cut_question(index, question, cut, pieces, encoder, split, stride)
        num_windows = Counter(item.example for item in items)
        counts = {
            "questions_cut": sum(len(query) > limit for query in queries),
            "questions_in_windows": sum(number > 1 for number in num_windows.values()),
            "questions_without_answer": sum(not question.answers for question in examples),
            "answers_without_pieces": num_lost,
            "contexts_without_pieces": sum(not len(each.ids) for each in found),
        }
        return EncodedSet(items, counts)

    def decode(
        self,
        examples: Sequence[Question],
        items: Sequence[Item],
        outputs: Sequence[Outputs],
        labels: Labels,  # noqa: ARG002
    ) -> list[Prediction]:
        """The best answers to each question; of a context without pieces there is none."""
        windows: list[list[tuple[WindowItem, Outputs]]] = [[] for _ in examples]
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WindowItem), "items are those that encode() made"
            windows[item.example].append((item, output))
        return [predict(*each) for each in zip(examples, windows, strict=True)]

    def score(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Exact match and F1 in percent, under the names of the official evaluators."""
        answers = {each.id: [answer.text for answer in each.answers] for each in examples}
        if not self.with_impossible:
            return average([mark_v1(each.text, answers[each.id]) for each in predictions])
        marks = {each.id: mark_v2(each.text, answers[each.id]) for each in predictions}
        has_answer = {key: bool(texts) for key, texts in answers.items()}
        null_scores = {each.id: each.null_score for each in predictions}
        texts = {each.id: each.text for each in predictions}
        best_exact, best_f1 = (
            find_best_threshold(
                {key: each[n] for key, each in marks.items()}, texts, null_scores, has_answer
            )
            for n in (0, 1)
        )
        threshold = self.settings.null_threshold
        if threshold is None:
            threshold = halfway_above(best_f1.threshold, null_scores.values())
        marks = apply_threshold(marks, null_scores, has_answer, threshold)
        metrics = average(list(marks.values()))
        for kind, has in (("HasAns", True), ("NoAns", False)):
            if of_kind := [each for key, each in marks.items() if has_answer[key] == has]:
                metrics |= {f"{kind}_{name}": value for name, value in average(of_kind).items()}
        return metrics | {
            "null_threshold": threshold,
            "best_exact": best_exact.score,
            "best_exact_thresh": best_exact.threshold,
            "best_f1": best_f1.score,
            "best_f1_thresh": best_f1.threshold,
        }

    def prediction_files(
        self,
        path: str,  # noqa: ARG002
        examples: Sequence[Question],  # noqa: ARG002
        predictions: Sequence[Prediction],
        tuned: Mapping[str, float],
    ) -> dict[str, str]:
        """Predictions, best answers and, of squad2, null scores, as run_squad.py writes them."""
        return prediction_files(
            predictions, tuned["null_threshold"] if self.with_impossible else None
        )


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
