"""Questions of SQuAD 1.1 and 2.0 files (JSON).

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ...,
    "answers": [{"text": ..., "answer_start": ...}, ...], "is_impossible": false}, ...]}, ...]},
    ...]}

1.1 has no "is_impossible"; files to be predicted need no "answers". Other keys are not read.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.storage.quoting import join_names, quote


class Answer(NamedTuple):
    """A passage of the context, from its character `start` on."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a context; place is file, article and id, which is unique in its file."""

    place: str
    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read_squad(text: str, path: str, with_impossible: bool, is_test: bool) -> list[Question]:
    """Questions of a file's text, in order; a ValueError says where and what is wrong.

    `with_impossible` lets questions have no answer (2.0). Those of a test file need none, and what
    it has of them is not checked.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    questions: dict[str, Question] = {}
    for place, context, entry in _read_entries(content, path):
        question = _read_question(place, context, entry, with_impossible, is_test)
        if old := questions.get(question.id):
            raise ValueError(f"{question.place}: the id is there twice, first in {old.place}")
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path}: has no question")
    return list(questions.values())


def _read_entries(content: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, context and JSON object of every question."""
    for number, article in enumerate(_get(content, "data", list, path)):
        known = article if isinstance(article, dict) else {}
        place = f"{path}: article {quote(known.get('title', f'number {number}'))}"
        for index, paragraph in enumerate(_get(article, "paragraphs", list, place)):
            in_paragraph = f"{place}, paragraph {index}"
            context = _get(paragraph, "context", str, in_paragraph)
            for entry in _get(paragraph, "qas", list, in_paragraph):
                question_id = _get(entry, "id", str, in_paragraph)
                yield f"{place}, question {question_id}", context, entry


def _read_question(
    place: str, context: str, entry: dict[str, Any], with_impossible: bool, is_test: bool
) -> Question:
    given = [] if is_test and "answers" not in entry else _get(entry, "answers", list, place)
    answers = tuple(
        Answer(_get(each, "text", str, place), _get(each, "answer_start", int, place))
        for each in given
    )
    is_impossible = _get(entry, "is_impossible", bool, place) if "is_impossible" in entry else False
    question = Question(place, entry["id"], _get(entry, "question", str, place), context, answers)
    if is_impossible and not with_impossible:
        says = "has no answer, which squad (1.1) does not know; use the task squad2"
        raise ValueError(f"{place}: {says}")
    if fault := next(_find_faults(question, is_impossible, is_test), None):
        raise ValueError(f"{place}: {fault}; mend it, or take the question out")
    return question


def _find_faults(question: Question, is_impossible: bool, is_test: bool) -> Iterator[str]:
    if is_impossible and question.answers:
        yield "is_impossible is true, but there are answers"
    if not (is_test or is_impossible or question.answers):
        yield "no answers, and is_impossible is not true"
    for name, text in (("question", question.text), ("context", question.context)):
        if not text.strip():
            yield f"the {name} is empty"
    for text, start in () if is_test else question.answers:
        if not text.strip():
            yield "an answer without text"
        found = question.context[max(0, start) : max(0, start) + len(text)]
        if start < 0 or found != text:
            says = f"answer {quote(text)} is said to begin at character {start} of the context"
            yield f"{says}, where {quote(found)} stands"


def _get(record: Any, key: str, kind: type, place: str) -> Any:
    """A value of a JSON object, which must be of that kind."""
    if not isinstance(record, dict):
        found = type(record).__name__
        raise ValueError(f"{place}: expected an object with {key!r}, found {found}")  # noqa: TRY004
    if key not in record:
        raise ValueError(
            f"{place}: no {key!r}; it has {join_names(map(repr, record)) or 'nothing'}"
        )
    value = record[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{place}: {key!r} is {quote(value)}, expected {kind.__name__}")
    return value
