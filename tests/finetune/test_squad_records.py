"""SQuAD files: read, and refused with article and question where they are wrong."""

import json

import pytest

from pipeline.documents.text_files import read_text
from trainer.finetune.squad.records import read_squad

CONTEXT = "Rollo was the Norse leader. Café Society."


def _file(**changes):
    answers = [{"text": "Rollo", "answer_start": 0}]
    entry = {"id": "q1", "question": "Who?", "answers": answers} | changes
    entry = {key: value for key, value in entry.items() if value is not None}
    paragraphs = [{"context": CONTEXT, "qas": [entry]}]
    return {"version": "1.1", "data": [{"title": "Normans", "paragraphs": paragraphs}]}


def _read(content, with_impossible=False, is_test=False):
    text = content if isinstance(content, str) else json.dumps(content)
    return read_squad(text, "dev.json", with_impossible, is_test)


def test_questions_without_answer():
    with pytest.raises(ValueError, match="q1: is_impossible is true, but there are answers"):
        _read(_file(is_impossible=True), with_impossible=True)
    impossible = _file(answers=[], is_impossible=True, plausible_answers=[{}])
    assert _read(impossible, with_impossible=True)[0].answers == ()
    assert _read(_file(answers=None), is_test=True)[0].answers == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"data": [', r"dev.json: not JSON \(.*line 1"),
        ('{"data": "a\\ud800"}', r"dev.json: half of a character ends '\{\"data\": \"a\\ud800'"),
        ([], "dev.json: expected an object with 'data', found list"),
        ({"version": "2"}, "dev.json: no 'data'; it has 'version'"),
        ({"data": []}, "dev.json: has no question"),
        ({"data": [{"title": "T", "paragraphs": [{}]}]}, "'T', paragraph 0: no 'context'"),
        ({"data": [{"paragraphs": 3}]}, "article 'number 0': 'paragraphs' is 3, expected list"),
        (_file(id=7), "article 'Normans', paragraph 0: 'id' is 7, expected str"),
        (_file(question=None), "article 'Normans', question q1: no 'question'"),
        (_file(answers=None), "question q1: no 'answers'"),
        (_file(answers=[]), "question q1: no answers, and is_impossible is not true"),
        (_file(answers=[{"text": "Rollo"}]), "question q1: no 'answer_start'; it has 'text'"),
        (_file(answers=[{"text": "R", "answer_start": "0"}]), "'answer_start' is '0', expected"),
        (_file(question=" "), "question q1: the question is empty"),
        (_file(answers=[], is_impossible=True), "squad .1.1. does not know; use the task squad2"),
    ],
)
def test_malformed_files_are_refused_with_article_and_question(content, says):
    with pytest.raises(ValueError, match=says):
        _read(content)


def test_an_id_that_is_there_twice_is_refused():
    content = _file()
    content["data"].append(content["data"][0] | {"title": "Other"})
    says = r"article 'Other', question q1: the id is there twice, .*article 'Normans'"
    with pytest.raises(ValueError, match=says):
        _read(content)


@pytest.mark.parametrize(
    ("text", "start", "says"),
    [
        ("rollo", 0, "'rollo' is said to begin at character 0 .* where 'Rollo' stands"),
        ("Rollo", 1, "where 'ollo ' stands"),
        ("Rollo", -41, "character -41"),
        ("Society.", 500, "where '' stands"),
        (" ", 5, "an answer without text"),
    ],
)
def test_answers_that_are_not_where_the_file_says(text, start, says):
    content = _file(answers=[{"text": text, "answer_start": start}])
    with pytest.raises(ValueError, match=f"^dev.json: article 'Normans', question q1: .*{says}"):
        _read(content)
    assert len(_read(content, is_test=True)) == 1


@pytest.mark.parametrize(
    ("file", "with_impossible", "num_questions", "num_unanswerable"),
    [
        ("squad_v2_half_dev.json.zst", True, 6_078, 3_168),
        ("squad_v11_derived_half_dev.json.zst", False, 2_910, 0),
        ("xquad_en_16_articles.json.zst", False, 352, 0),
    ],
)
def test_real_files(shared_data, file, with_impossible, num_questions, num_unanswerable):
    questions = _read(read_text(str(shared_data / "data/squad" / file)), with_impossible)
    assert len(questions) == num_questions
    assert sum(not question.answers for question in questions) == num_unanswerable
