"""The tasks squad (1.1) and squad2 (2.0): answers are passages (BERT paper, sections 4.2, 4.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.documents.text_files import read_text
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad.evaluate import (
    Marks,
    apply_threshold,
    average,
    find_best_threshold,
    halfway_above,
    mark_v1,
    mark_v2,
)
from trainer.finetune.squad.items import WindowItem, cut_question, find_answer, read_logits
from trainer.finetune.squad.offsets import OffsetEncoder, Pieces
from trainer.finetune.squad.predictions import (
    Prediction,
    WindowLogits,
    predict,
    write_n_best,
    write_null_scores,
    write_predictions,
)
from trainer.finetune.squad.records import Question, find_bad_answer, read_squad
from trainer.finetune.task import EncodedSet, Item, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder


@dataclass(frozen=True)
class SquadTask:
    """A `Task` whose examples are questions.

    Attributes:
        settings: Windows and answers.
        with_impossible: Whether questions may have no answer (2.0).
        kind: The kind of head, as `Task` says.
        main_metric: F1 as the official evaluator computes it.
    """

    settings: SquadSettings
    with_impossible: bool
    kind: str = "span"
    main_metric: str = "f1"

    def read(self, path: str, split: Split) -> ReadSet:
        """Questions of a SQuAD file.

        Raises:
            ValueError: Malformed, or a bad question where those stop; says file, article and id.
        """
        questions = read_squad(
            read_text(path),
            path,
            with_impossible=self.with_impossible,
            needs_answers=split != "test",
        )
        faults = {
            question.id: fault for question in questions if (fault := _find_fault(question, split))
        }
        if faults and self.settings.on_bad_question == "stop":
            raise ValueError(
                f"{next(iter(faults.values()))}; mend it, or give --squad.on_bad_question skip"
            )
        if split == "train":
            questions = [question for question in questions if question.id not in faults]
            if not questions:
                raise ValueError(
                    f"{path}: no question is left; the first fault was {next(iter(faults.values()))}"
                )
        return ReadSet(questions, {"bad_questions": len(faults)})

    def find_labels(self, examples: Sequence[Question]) -> tuple[str, ...]:  # noqa: ARG002
        """None: the classes are the pieces of the context."""
        return ()

    def encode(
        self,
        examples: Sequence[Question],
        labels: tuple[str, ...],  # noqa: ARG002
        encoder: TextEncoder,
        split: Split,
    ) -> EncodedSet:
        """One item for each window: [CLS] question [SEP] pieces of the context [SEP].

        Raises:
            ValueError: In training, an answer without a piece, such as one of control characters,
                where those stop.
        """
        contexts = list(dict.fromkeys(question.context for question in examples))
        found = OffsetEncoder(encoder.vocab, encoder.lower_case).encode_texts(contexts)
        pieces_of = dict(zip(contexts, found, strict=True))
        queries = encoder.encode_texts([question.text for question in examples])
        limit = self.settings.max_query_pieces
        items: list[Item] = []
        num_lost = 0
        for index, (question, query) in enumerate(zip(examples, queries, strict=True)):
            pieces = pieces_of[question.context]
            if split == "train" and question.answers and find_answer(question, pieces) is None:
                if self.settings.on_bad_question == "stop":
                    raise ValueError(
                        f"{question.place}: answer {question.answers[0].text!r} has no piece of text"
                    )
                num_lost += 1
            else:
                items += cut_question(
                    index, question, query[:limit], pieces, encoder, split, self.settings.stride
                )
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
        labels: tuple[str, ...],  # noqa: ARG002
    ) -> list[Prediction]:
        """The best answers to each question; of a context without pieces there is none."""
        windows: list[list[WindowLogits]] = [[] for _ in examples]
        pieces: list[Pieces | None] = [None] * len(examples)
        for item, output in zip(items, outputs, strict=True):
            assert isinstance(item, WindowItem), "items are those that encode() made"
            windows[item.example].append(read_logits(item, output))
            pieces[item.example] = item.pieces
        return [
            predict(question, of_context, logits)
            for question, of_context, logits in zip(examples, pieces, windows, strict=True)
        ]

    def score(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Exact match and F1 in percent, under the names of the official evaluators."""
        answers = {
            question.id: [answer.text for answer in question.answers] for question in examples
        }
        if not self.with_impossible:
            return average(
                [mark_v1(prediction.text, answers[prediction.id]) for prediction in predictions]
            )
        marks = {
            prediction.id: mark_v2(prediction.text, answers[prediction.id])
            for prediction in predictions
        }
        has_answer = {key: bool(texts) for key, texts in answers.items()}
        null_scores = {prediction.id: prediction.null_score for prediction in predictions}
        texts = {prediction.id: prediction.text for prediction in predictions}
        exact, f1 = (
            find_best_threshold(
                {key: getattr(each, name) for key, each in marks.items()},
                texts,
                null_scores,
                has_answer,
            )
            for name in ("exact", "f1")
        )
        threshold = self.settings.null_threshold
        if threshold is None:
            threshold = halfway_above(f1.threshold, null_scores.values())
        return {
            **_average_by_kind(
                apply_threshold(marks, null_scores, has_answer, threshold), has_answer
            ),
            "null_threshold": threshold,
            "best_exact": exact.score,
            "best_exact_thresh": exact.threshold,
            "best_f1": f1.score,
            "best_f1_thresh": f1.threshold,
        }

    def prediction_files(
        self,
        path: str,  # noqa: ARG002
        examples: Sequence[Question],  # noqa: ARG002
        predictions: Sequence[Prediction],
        metrics: Mapping[str, float],
    ) -> dict[str, str]:
        """Predictions, best answers and, of squad2, null scores, as run_squad.py writes them."""
        threshold = metrics["null_threshold"] if self.with_impossible else None
        n_best = write_n_best(predictions, with_no_answer=self.with_impossible)
        files = {
            "predictions.json": write_predictions(predictions, threshold),
            "nbest_predictions.json": n_best,
        }
        return files | (
            {"null_odds.json": write_null_scores(predictions)} if self.with_impossible else {}
        )


def open_squad(settings: FinetuneSettings) -> SquadTask:
    """The tasks squad and squad2.

    Raises:
        ValueError: A setting makes no sense.
    """
    chosen = settings.squad
    for name in ("stride", "max_query_pieces"):
        if getattr(chosen, name) < 1:
            raise ValueError(f"squad.{name} is {getattr(chosen, name)}; it must be at least 1")
    if chosen.max_query_pieces + 4 > settings.seq_len:
        raise ValueError(
            f"squad.max_query_pieces {chosen.max_query_pieces} leaves no room in seq_len {settings.seq_len}: "
            "[CLS], two [SEP] and a piece of the context need 4"
        )
    return SquadTask(chosen, with_impossible=settings.task == "squad2")


def _find_fault(question: Question, split: Split) -> str | None:
    for name, text in (("question", question.text), ("context", question.context)):
        if not text.strip():
            return f"{question.place}: the {name} is empty"
    return None if split == "test" else find_bad_answer(question)


def _average_by_kind(
    marks: Mapping[str, Marks], has_answer: Mapping[str, bool]
) -> dict[str, float]:
    """Mean scores of all questions, and of those with and without an answer."""
    metrics = average(list(marks.values()))
    for kind, has in (("HasAns", True), ("NoAns", False)):
        of_kind = [each for key, each in marks.items() if has_answer[key] == has]
        if of_kind:
            metrics |= {f"{kind}_{name}": value for name, value in average(of_kind).items()}
    return metrics
