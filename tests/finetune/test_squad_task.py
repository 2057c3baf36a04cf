"""Question answering from a file to predictions, with known logits in place of a model's."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED, WordRule
from trainer.finetune.settings import FinetuneSettings, SquadSettings
from trainer.finetune.squad.items import Window, cut_windows, find_best_windows, find_pieces
from trainer.finetune.squad.task import find_best_span, open_squad
from trainer.finetune.text import TextEncoder

SHORT = {"seq_len": 13, "max_query_pieces": 2, "stride": 4}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *"()-.,", "cafe", "the"]
TOKENS += [f"##{letter}" for letter in LETTERS] + ["ᄒ", "##ᅡ", "##ᆫ", "東"]
VOCAB = parse_vocab("\n".join(TOKENS).encode(), "vocab.txt")
SIGNS = st.sampled_from("aAbcé É\u0301\u200b\ufeff\x00\t\n\u00a0東京한국İß(-).,[MASK]")
TEXTS = st.text(st.one_of(SIGNS, st.characters(exclude_categories=("Cs",))), max_size=40)
LOGITS = st.integers(-4, 4).map(float)


def _open(task="squad", seq_len=384, **squad):
    names = {"model": "m", "train": ["t"], "validation": ["v"], "output": "o"}
    chosen = SquadSettings(**squad)
    return open_squad(FinetuneSettings(task=task, seq_len=seq_len, squad=chosen, **names))


def _write(folder, questions, context="Rollo (the Norse leader) met Café Society."):
    qas = []
    for number, (text, answers) in enumerate(questions):
        found = [{"text": each, "answer_start": context.index(each)} for each in answers]
        entry = {"id": f"q{number}", "question": text, "answers": found}
        qas.append(entry | {"is_impossible": not answers})
    paragraphs = [{"context": context, "qas": qas}]
    (folder / "f.json").write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    return str(folder / "f.json")


@pytest.fixture(scope="module")
def vocab(shared_data):
    path = shared_data / "data/bert_vocab/bert-base-uncased-vocab.txt"
    return parse_vocab(path.read_bytes(), "vocab.txt")


def _encode(task, path, vocab, split, seq_len=384):
    """Questions, their items, and logits of a model that knows the labels."""
    questions = task.read(path, split).examples
    encoded = task.encode(questions, (), TextEncoder(vocab, UNCASED, seq_len), split)
    return questions, encoded, [*map(_logits_of_labels, encoded.items)]


def _logits_of_labels(item):
    logits = np.zeros((len(item.sequences[0].input_ids), 2), np.float32)
    if len(item.labels):
        logits[item.labels[0], 0] = logits[item.labels[1], 1] = 9.0
    return logits


def test_windows_of_a_question_as_the_reference_cuts_them(vocab, tmp_path):
    path = _write(tmp_path, [("Who met whom?", ["Norse leader"])])
    _, (items, counts), _ = _encode(_open(**SHORT), path, vocab, "train", 13)
    assert [" ".join(vocab.tokens[n] for n in item.sequences[0].input_ids) for item in items] == [
        "[CLS] who met [SEP] roll ##o ( the norse leader ) met [SEP]",
        "[CLS] who met [SEP] norse leader ) met cafe society . [SEP]",
    ]
    assert [item.labels.tolist() for item in items] == [[8, 9], [4, 5]]
    assert [item.sequences[0].segment_a_length for item in items] == [4, 4]
    may_start = [[True] * 6 + [False] * 2, [False] * 2 + [True] * 5]
    assert [item.may_start.tolist() for item in items] == may_start
    counted = [name for name, count in counts.items() if count]
    assert counted == ["questions_cut", "questions_in_windows"]


def test_an_answer_that_a_window_has_only_half_of_is_none_there(vocab, tmp_path):
    path, task = _write(tmp_path, [("Who?", ["met Café Society"])]), _open(**SHORT)
    questions, encoded, outputs = _encode(task, path, vocab, "train", 13)
    assert [item.labels.tolist() for item in encoded.items] == [[0, 0], [7, 9]]
    (prediction,) = task.decode(questions, encoded.items, outputs, ())
    assert prediction.text == "met Café Society"


def test_predictions_are_the_text_as_it_was_written(vocab, tmp_path):
    answers = [("Where?", ["Café Society"]), ("Who?", ["Rollo", "Norse leader"])]
    path, task = _write(tmp_path, answers), _open()
    questions, encoded, outputs = _encode(task, path, vocab, "validation")
    predictions = task.decode(questions, encoded.items, outputs, ())
    metrics = task.score(questions, predictions)
    assert metrics == {"exact": 100.0, "f1": 100.0}
    files = task.prediction_files(path, questions, predictions, metrics)
    assert files.keys() == {"predictions.json"}
    assert json.loads(files["predictions.json"]) == {"q0": "Café Society", "q1": "Rollo"}


def test_no_answer_is_given_where_its_score_is_above_the_tuned_threshold(vocab, tmp_path):
    path = _write(tmp_path, [("Who?", ["Rollo"]), ("Why?", []), ("Whom?", ["Society"])])
    task = _open("squad2")
    questions, encoded, outputs = _encode(task, path, vocab, "validation")
    outputs[1][:] = 0
    outputs[1][0] = 2.0  # no answer: above the best answer by 4
    outputs[2][0] = 10.0  # above the right answer by 2
    predictions = task.decode(questions, encoded.items, outputs, ())
    metrics = task.score(questions, predictions)
    kinds = [f"{kind}{name}" for kind in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")]
    assert metrics == dict.fromkeys(kinds, 100.0) | {"null_threshold": 3.0}  # between 2 and 4
    of_others = task.prediction_files(path, questions[:1], predictions[:1], {})
    assert json.loads(of_others["predictions.json"]) == {"q0": "Rollo"}
    files = task.prediction_files(path, questions, predictions, metrics)
    assert json.loads(files["predictions.json"]) == {"q0": "Rollo", "q1": "", "q2": "Society"}
    assert json.loads(files["null_odds.json"]) == {"q0": -18.0, "q1": 4.0, "q2": 2.0}
    fixed = _open("squad2", null_threshold=1.0).score(questions, predictions)
    assert (fixed["exact"], fixed["HasAns_exact"]) == (pytest.approx(200 / 3), 50.0)


def test_a_test_file_needs_no_answers(vocab, tmp_path):
    paragraph = {"context": "Rollo met.", "qas": [{"id": "a", "question": "Who?"}]}
    (tmp_path / "test.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    _, encoded, _ = _encode(_open(), str(tmp_path / "test.json"), vocab, "test")
    assert encoded.items[0].labels.tolist() == []


def test_a_context_without_pieces_has_no_answer(vocab, tmp_path):
    path, task = _write(tmp_path, [("Which?", ["\u200b"])], "\u200b"), _open()
    questions, encoded, _ = _encode(task, path, vocab, "validation")
    assert (encoded.items, encoded.counts["contexts_without_pieces"]) == ([], 1)
    (prediction,) = task.decode(questions, [], [], ())
    assert prediction.text == ""


def test_an_answer_without_pieces_trains_nothing_and_is_counted(vocab, tmp_path):
    answers = [("Which?", ["\u200b"]), ("What?", ["\x00", "Rollo"]), ("Who?", ["Rollo"])]
    path, task = _write(tmp_path, answers, "Rollo \u200b met \x00 ."), _open()
    _, encoded, _ = _encode(task, path, vocab, "train")
    assert [item.example for item in encoded.items] == [2]
    assert encoded.items[0].labels.tolist() == [4, 5]  # roll, ##o after [CLS] who ? [SEP]
    assert encoded.counts["answers_without_pieces"] == 2
    _, encoded, _ = _encode(task, path, vocab, "validation")
    assert [item.example for item in encoded.items] == [0, 1, 2]
    assert encoded.counts["answers_without_pieces"] == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stride": 0}, "stride is 0"),
        ({"max_query_pieces": 0}, "max_query_pieces is 0"),
        ({"seq_len": 64}, "squad.max_query_pieces 64 and .* leave no room in seq_len 64"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(ValueError, match=says):
        _open(**settings)


def test_real_questions_are_answered_right_by_their_labels(vocab, shared_data):
    task = _open("squad2", seq_len=160, stride=48)
    path = str(shared_data / "data/squad/squad_v2_half_dev.json.zst")
    questions = task.read(path, "validation").examples[::7]
    encoded = task.encode(questions, (), TextEncoder(vocab, UNCASED, 160), "validation")
    outputs = [*map(_logits_of_labels, encoded.items)]
    for item, output in zip(encoded.items, outputs, strict=True):
        if item.labels[1]:
            output[0] = -9.0
    metrics = task.score(questions, task.decode(questions, encoded.items, outputs, ()))
    # Answers inside a word, as "20" of "20th", or longer than 30 pieces cannot be given exactly.
    assert metrics["HasAns_exact"] > 99.0
    assert metrics["NoAns_exact"] == 100.0


def pieces_of(*texts, lower_case=True):
    return find_pieces(texts, TextEncoder(VOCAB, WordRule(lower_case), 384))


@pytest.mark.parametrize("lower_case", [True, False])
@given(texts=st.lists(TEXTS, max_size=3))
def test_ids_are_the_encoders_and_places_are_in_order(lower_case, texts):
    encoder = Encoder(VOCAB, WordRule(lower_case))
    for text, pieces in zip(texts, pieces_of(*texts, lower_case=lower_case), strict=True):
        assert pieces.ids.tolist() == encoder.encode(text).tolist()
        assert pieces.ids.dtype == encoder.encode(text).dtype
        starts, ends = pieces.starts.tolist(), pieces.ends.tolist()
        assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends, strict=True))
        assert (starts, ends) == (sorted(starts), sorted(ends))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("The Café", ["The", "Café"]),
        ("x cafe\u0301.", ["x", "cafe\u0301", "."]),
        ("ca\u200bfe", ["ca\u200bfe"]),
        ("\ufeffthe (a-b)", ["the", "(", "a", "-", "b", ")"]),
        ("東the", ["東", "the"]),
        ("한a", ["한", "한", "한", "a"]),
        ("the ₿ a", ["the", "₿", "a"]),
    ],
)
def test_pieces_stand_for_the_text_as_it_was_written(text, places):
    (pieces,) = pieces_of(text)
    spans = zip(pieces.starts, pieces.ends, strict=True)
    assert [text[start:end] for start, end in spans] == places


@pytest.mark.parametrize(
    ("answer", "span"),
    [("(a-b)", (1, 5)), ("a", (2, 2)), ("Café", (6, 6)), ("afé", (6, 6)), ("-b) C", (3, 6))],
)
def test_the_pieces_of_an_answer(answer, span):
    text = "The (a-b) Café the"
    (pieces,) = pieces_of(text)
    start = text.index(answer)
    assert pieces.find_span(start, start + len(answer)) == span


def test_windows_of_the_reference():
    assert cut_windows(10, 10, 4) == [Window(0, 10)]
    assert cut_windows(11, 10, 4) == [Window(0, 10), Window(4, 7)]
    assert cut_windows(18, 10, 4) == [Window(0, 10), Window(4, 10), Window(8, 10)]
    assert cut_windows(18, 5, 9) == [Window(0, 5), Window(5, 5), Window(10, 5), Window(15, 3)]
    assert cut_windows(0, 10, 4) == []


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 25))
def test_every_piece_is_read_and_best_in_one_window(num_pieces, room, stride):
    windows = cut_windows(num_pieces, room, stride)
    assert max(window.length for window in windows) <= room
    best = find_best_windows(windows, num_pieces)
    for piece, chosen in enumerate(best.tolist()):
        scores = []
        for start, length in windows:
            context = min(piece - start, start + length - 1 - piece)
            scores.append(context + 0.01 * length if context >= 0 else -1)
        assert scores.index(max(scores)) == chosen


@given(st.data(), st.integers(1, 9), st.integers(1, 5))
def test_the_best_span_is_the_best_of_all(data, num_pieces, max_pieces):
    logits = st.lists(LOGITS, min_size=num_pieces, max_size=num_pieces)
    start, end = (np.array(data.draw(logits), np.float32) for _ in range(2))
    flags = st.lists(st.booleans(), min_size=num_pieces, max_size=num_pieces)
    may_start = np.array(data.draw(flags))
    score, *span = find_best_span(start, end, may_start, max_pieces)
    starts = [first for first in range(num_pieces) if may_start[first]]
    spans = [(a, b) for a in starts for b in range(a, min(num_pieces, a + max_pieces))]
    every = {(a, b): float(start[a] + end[b]) for a, b in spans}
    assert score == max(every.values(), default=-np.inf)
    assert not every or tuple(span) == max(every, key=every.__getitem__)
