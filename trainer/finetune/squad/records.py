"""Reads the questions of SQuAD 1.1 and 2.0 files. Their JSON has this layout.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ...,
    "answers": [{"text": ..., "answer_start": ...}, ...], "is_impossible": false}, ...]}, ...]},
    ...]}

Files of 1.1 have no "is_impossible". Files to be predicted need no "answers". Other keys are not
read.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.documents.text_files import refuse_halves
from pipeline.storage.quoting import join_names, quote


class Answer(NamedTuple):
    """An answer: a passage of the context.

    Attributes:
        text: The passage.
        start: The position of its first character in the context, from 0.
    """

    text: str
    start: int


class Question(NamedTuple):
    """A question about a context.

    Attributes:
        place: File, article and id, for messages.
        id: The question's id, which no other question of the file has.
        text: The question.
        context: The text that the answer is a passage of.
        answers: The right answers; empty if there is none, or if the file does not give them.
    """

    place: str
    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read_squad(text: str, path: str, with_impossible: bool, is_test: bool) -> list[Question]:
    """Parses the questions of a file, in order.

    Args:
        text: The content of the file.
        path: Path or URL of the file, for messages.
        with_impossible: Whether a question may have no answer, as in 2.0.
        is_test: Whether the file is only predicted. Then answers may be missing, and are not
            checked.

    Raises:
        ValueError: The file is malformed or has no question. The message names file, article and
            question.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    refuse_halves(content, text, path)
    questions: dict[str, Question] = {}
    for place, context, entry in _read_entries(content, path):
        question = _read_question(place, context, entry, with_impossible, is_test)
        first = questions.get(question.id)
        if first:
            raise ValueError(f"{question.place}: the id is there twice, first in {first.place}")
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path}: has no question")
    return list(questions.values())


def _read_entries(content: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields every question of a file, in order.

    Args:
        content: The parsed JSON of the file.
        path: Path or URL of the file, for messages.

    Yields:
        File, article and id of the question, for messages; the context that it is about; and the
        question's JSON object.

    Raises:
        ValueError: A key on the way to the questions is missing or has a wrong type.
    """
    for number, article in enumerate(_get(content, "data", list, path)):
        fields = article if isinstance(article, dict) else {}
        place = f"{path}: article {quote(fields.get('title', f'number {number}'))}"
        for index, paragraph in enumerate(_get(article, "paragraphs", list, place)):
            in_paragraph = f"{place}, paragraph {index}"
            context = _get(paragraph, "context", str, in_paragraph)
            for entry in _get(paragraph, "qas", list, in_paragraph):
                question_id = _get(entry, "id", str, in_paragraph)
                yield f"{place}, question {question_id}", context, entry


def _read_question(
    place: str, context: str, entry: dict[str, Any], with_impossible: bool, is_test: bool
) -> Question:
    """Parses one question and checks it.

    Args:
        place: File, article and id, for messages.
        context: The text that the question is about.
        entry: The question's JSON object.
        with_impossible: Whether the question may have no answer.
        is_test: Whether answers may be missing and are not checked.

    Raises:
        ValueError: A key is missing or has a wrong type, or the question is faulty.
    """
    answer_entries = []
    if not is_test or "answers" in entry:
        answer_entries = _get(entry, "answers", list, place)
    answers = tuple(
        Answer(_get(answer, "text", str, place), _get(answer, "answer_start", int, place))
        for answer in answer_entries
    )
    is_impossible = _get(entry, "is_impossible", bool, place) if "is_impossible" in entry else False
    question = Question(place, entry["id"], _get(entry, "question", str, place), context, answers)
    if is_impossible and not with_impossible:
        says = "has no answer, which squad (1.1) does not know; use the task squad2"
        raise ValueError(f"{place}: {says}")
    fault = next(_find_faults(question, is_impossible, is_test), None)
    if fault:
        raise ValueError(f"{place}: {fault}; mend it, or take the question out")
    return question


def _find_faults(question: Question, is_impossible: bool, is_test: bool) -> Iterator[str]:
    """Yields what is wrong with a question, in words for a message.

    Args:
        question: The question.
        is_impossible: Whether the file says that the question has no answer.
        is_test: Whether answers may be missing and are not checked.
    """
    if is_impossible and question.answers:
        yield "is_impossible is true, but there are answers"
    if not (is_test or is_impossible or question.answers):
        yield "no answers, and is_impossible is not true"
    for name, text in (("question", question.text), ("context", question.context)):
        if not text.strip():
            yield f"the {name} is empty"
    if is_test:
        return
    for text, start in question.answers:
        if not text.strip():
            yield "an answer without text"
        passage = question.context[max(0, start) : max(0, start) + len(text)]
        if start < 0 or passage != text:
            says = f"answer {quote(text)} is said to begin at character {start} of the context"
            yield f"{says}, where {quote(passage)} stands"


def _get(record: Any, key: str, kind: type, place: str) -> Any:
    """Returns the value of a key in a JSON object.

    Args:
        record: The parsed JSON value, which should be an object.
        key: The key.
        kind: The type that the value must have. A bool is no int here.
        place: The place of the object in its file, for messages.

    Raises:
        ValueError: `record` is no object, or the key is missing, or its value has another type.
    """
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
