"""Any table by the names of its columns: classes, numbers and choices, and what is refused."""

import pytest

from tests.finetune.test_glue import make_encoder, read, task_of, write
from tests.finetune.tiny_model import TOKENS
from trainer.finetune.settings import ColumnSettings

PAIRS = ColumnSettings(text="a", text_b="b", label="class", id="key")
ROWS = [("k1", "the cat, sat", "a dog", "x"), ("k2", 'very "good"', "the film", "y")]
CSV = 'key,a,b,class\nk1,"the cat, sat",a dog,x\nk2,"very ""good""",the film,y\n'
TSV = "class\ta\tb\tkey\nx\tthe cat, sat\ta dog\tk1\n" + 'y\tvery "good"\tthe film\tk2\n'
JSONL = '{"key": "k1", "a": "the cat, sat", "b": "a dog", "class": "x"}\n\n' + (
    '{"key": "k2", "a": "very \\"good\\"", "b": "the film", "class": "y", "more": [1]}\n'
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,anet,1,"the cat sat. a dog",the cat sat .,a dog,gold,ran .,is good,sat,is a film,3\n'
)


@pytest.mark.parametrize(("name", "text"), [("t.csv", CSV), ("t.tsv", TSV), ("t.jsonl", JSONL)])
def test_three_forms_of_one_table(name, text, tmp_path):
    task = task_of("classification", columns=PAIRS)
    examples = read(task, tmp_path, name, text)
    assert [(each.id, each.text, *each.seconds, each.label) for each in examples] == ROWS
    assert task.find_labels(examples) == ("x", "y")
    files = task.prediction_files(str(tmp_path / name), examples, ["y", "x"], {})
    assert files == {"t.tsv": "id\tprediction\nk1\ty\nk2\tx\n"}
    macro_f1 = pytest.approx((2 / 3 + 0) / 2)
    scores = task.score(examples, ["x", "x"])
    assert (scores["accuracy"], scores["macro_f1"]) == (0.5, macro_f1)


def test_numbers_of_json_are_labels_and_places_are_lines(tmp_path):
    task = task_of("regression", columns=ColumnSettings(text="t", label="n"))
    path = write(tmp_path, "t.jsonl", '{"t": "a", "n": 1.5}\n\n{"t": "b", "n": 2}\n')
    examples = task.read(path, "train").examples
    found = [(each.place, each.label, *each.seconds) for each in examples]
    assert found == [(f"{path}:1", "1.5", None), (f"{path}:3", "2", None)]
    items = task.encode(examples, (), make_encoder(), "train").items
    assert [item.labels.tolist() for item in items] == [[1.5], [2.0]]
    assert task.find_labels(examples) == ()
    assert task.decode(examples, items, [item.labels for item in items], ()) == [1.5, 2.0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "text\tlabel\n", r"ends in \.txt, expected \.tsv, \.csv or \.jsonl"),
        ("t.csv", "text,text,label\na,b,c\n", "two columns have one name: text, text, label"),
        ("t.csv", 'text,label\n"open,x\n', ":2: unexpected end of data"),
        ("t.csv", 'text,label\n"two\nlines",x\nshort\n', r":4: 1 columns, expected 2 \(text, la"),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"text"\n', ":2: found no JSON"),
        ("t.jsonl", "[1]\n", ":1: found a JSON list, expected an object"),
        ("t.jsonl", '{"text": "a"}\n', ":1: no column label; the columns are text"),
        ("t.jsonl", '{"text": null, "label": 1}\n', ":1: text is no text and no number"),
        ("t.jsonl", '{"text": ["a"], "label": 1}\n', ":1: text is no text and no number"),
        ("t.tsv", "text\tlabel\n", "has no rows"),
        ("t.jsonl", '{"text": "a", "label": NaN}\n', ":1: label is nan, which is no JSON value"),
        ("t.jsonl", '{"text": -Infinity, "label": 1}\n', ":1: text is -inf, which is no JSON"),
        ("t.tsv", "\t".join("w" * 99) + "\n", r"the columns are (w, ){20}and 79 more$"),
        ("t.tsv", "w" * 999 + "\n", rf"the columns are {'w' * 60}\.\.\.$"),
    ],
)
def test_malformed_tables(name, text, message, tmp_path):
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        read(task_of("classification"), tmp_path, name, text)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("x", ":2: every training example has the label 'x'"),
        (" ", ":3: the label is empty"),
        ("x ", ":3: the label 'x ' has white space around it, so it is another class than 'x'"),
        ("\u3000x", r":3: the label '.u3000x' has white space around it"),
        ("x\ty", r":3: the label 'x.ty' has a tab or a line end, which a .tsv of predictions"),
        ('"x\ny"', r":3: the label 'x.ny' has a tab or a line end"),
    ],
)
def test_what_is_no_class(second, says, tmp_path):
    task = task_of("classification")
    examples = read(task, tmp_path, "t.csv", f"text,label\na,x\nb,{second}\n")
    with pytest.raises(ValueError, match=rf"t\.csv{says}"):
        task.find_labels(examples)


@pytest.mark.parametrize(
    ("name", "text"), [("t.tsv", "text\tlabel\ra b\tx\r"), ("t.csv", "text,label\ra b,x\r")]
)
def test_lines_of_old_macs_are_lines(name, text, tmp_path):
    [example] = read(task_of("classification"), tmp_path, name, text)
    assert (example.text, example.label) == ("a b", "x")


def test_labels_are_counted_and_those_of_another_file_alone_refused_with_a_cure(tmp_path):
    task = task_of("classification")
    train = read(task, tmp_path, "train.csv", "text,label\na,x\nb,y\nc,x\n")
    assert task.count_labels(train) == {"x": 2, "y": 1}
    validation = read(task, tmp_path, "dev.csv", "text,label\na,x\nb,z\n")
    says = r"dev\.csv:3: label 'z', the labels are x, y; mend it, remove the row, or train on"
    with pytest.raises(ValueError, match=says):
        task.encode(validation, ("x", "y"), make_encoder(), "validation")
    blank = read(task, tmp_path, "dev2.csv", "text,label\na,x\nb,y \n")
    with pytest.raises(ValueError, match=r"dev2\.csv:3: the label 'y ' has white space"):
        task.encode(blank, ("x", "y"), make_encoder(), "validation")


def test_an_id_that_breaks_the_rows_of_predictions(tmp_path):
    task = task_of("classification", columns=ColumnSettings(id="n"))
    with pytest.raises(ValueError, match=r"t\.csv:2: the id 'a.tb' in the column n has a tab"):
        read(task, tmp_path, "t.csv", "n,text,label\na\tb,x,y\n")


def test_swag(tmp_path):
    task = task_of("swag")
    examples = read(task, tmp_path, "train.csv", SWAG)
    [item], counts = task.encode(examples, (), make_encoder(11), "train")
    words = [" ".join(TOKENS[index] for index in sequence.input_ids) for sequence in item.sequences]
    assert words == [
        "[CLS] the cat sat . [SEP] a dog ran . [SEP]",
        "[CLS] the cat sat . [SEP] a dog is good [SEP]",
        "[CLS] the cat sat . [SEP] a dog sat [SEP]",
        "[CLS] the cat sat . [SEP] a dog is a [SEP]",
    ]
    assert [sequence.segment_a_length for sequence in item.sequences] == [6] * 4
    assert item.labels.tolist() == [3]
    assert [counts[f"truncated_{what}"] for what in ("examples", "tokens")] == [1, 1]
    assert task.score(examples, ["3"]) == {"accuracy": 1.0}


def test_swags_test_file_needs_no_label(tmp_path):
    task, text = task_of("swag"), SWAG.replace(",label", "").replace(",3\n", "\n")
    examples = read(task, tmp_path, "test.csv", text, "test")
    # As csv_predict.py writes it.
    assert task.prediction_files("test.csv", examples, ["2"], {}) == {"test.csv": ",pred\n0,2\n"}
    says = r"test\.csv: no column label; the columns are , video-id, fold-ind"
    with pytest.raises(ValueError, match=says):
        read(task, tmp_path, "test.csv", text, "validation")


@pytest.mark.parametrize("label", ["4", "-1", "gold", ""])
def test_a_choice_that_there_is_not(label, tmp_path):
    task = task_of("swag")
    examples = read(task, tmp_path, "train.csv", SWAG.replace(",3\n", f",{label}\n"))
    says = rf"train\.csv:2: label '{label}', the labels are 0, 1, 2, 3"
    with pytest.raises(ValueError, match=says):
        task.encode(examples, (), make_encoder(), "train")


def test_multiple_choice_by_columns(tmp_path):
    columns = ColumnSettings(text="q", choices=["yes", "no", "so"], label="right", id="n")
    task = task_of("multiple-choice", columns=columns)
    [row] = read(task, tmp_path, "t.csv", "n,q,yes,no,so,right\n7,is it,a,the,very,1\n")
    assert row[1:4] == ("7", "is it", ("a", "the", "very"))
    with pytest.raises(ValueError, match="a choice needs at least two columns"):
        task_of("multiple-choice", columns=ColumnSettings(choices=["one"]))


def test_an_unknown_task_names_those_that_there_are():
    with pytest.raises(ValueError, match="task 'imdb' is unknown; the tasks are cola, sst2"):
        task_of("imdb")
