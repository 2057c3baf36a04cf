"""Settings of question answering. Imports the stdlib."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SquadSettings:
    """Windows and answers, for the tasks squad (1.1) and squad2 (2.0).

    Attributes:
        doc_stride: Pieces that a window of a long context begins after the one before.
        max_query_pieces: Pieces of a question that are read; what is longer is cut and counted.
        max_answer_pieces: Pieces of an answer at most.
        n_best: Answers of a question that are kept.
        null_threshold: Of squad2: a question is left unanswered where the score of no answer is higher than the best
            answer's by more than this. null tunes it on the first validation file for the best F1.
        on_bad_question: A question or context without text, or an answer that is not where the file says: stop, or
            skip, which leaves it out of training and counts it; it is still answered and scored in validation.
    """

    doc_stride: int = 128
    max_query_pieces: int = 64
    max_answer_pieces: int = 30
    n_best: int = 20
    null_threshold: float | None = None
    on_bad_question: Literal["stop", "skip"] = "stop"
