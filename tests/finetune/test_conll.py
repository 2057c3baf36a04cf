"""CoNLL columns: read, checked, and written back line for line; tags, entities and their scores."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.text_files import read_text
from trainer.conll.read import Columns, add_column, read_conll
from trainer.conll.tags import Entity, find_entities, find_scheme, label_names, write_tags
from trainer.finetune.tokens.task import compare_entities, tag_accuracy

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
# # I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""
TABS = "# sent_id = 1\n# text = #NER in Paris\n1\t#NER\tO\n2\tin\tO\n3\tParis\tB-LOC\n"
TABS += "\t\n1\tRome\tB-LOC\n\n"
IOB = ["O", *(f"{prefix}-{name}" for prefix in "BI" for name in ("PER", "creative-work"))]
BIOES = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("PER", "creative-work"))]
NAMES = st.sampled_from(["PER", "LOC"])
ENTITIES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), NAMES), max_size=6)


def test_columns_of_conll_2003():
    sentences = read_conll(CONLL_2003, "train.txt", Columns())
    words = [("EU", "rejects", "German", "#"), ("Peter", "Blackburn")]
    assert [sentence.words for sentence in sentences] == words
    assert sentences[0].tags == ("I-ORG", "O", "I-MISC", "O")
    assert {sentence.scheme for sentence in sentences} == {"iob1"}
    assert sentences[0].tags_in("iob2") == ("B-ORG", "O", "B-MISC", "O")
    assert sentences[1].tags_in("bioes") == ("B-PER", "E-PER")
    assert sentences[1].locate(1) == "train.txt:9"


def test_tabs_comments_and_a_chosen_column():
    sentences = read_conll(TABS, "dev.iob2", Columns(token=1, tag=2))
    assert [(sentence.words, sentence.tags) for sentence in sentences] == [
        (("#NER", "in", "Paris"), ("O", "O", "B-LOC")),
        (("Rome",), ("B-LOC",)),
    ]
    assert sentences[0].scheme == "iob2"


def test_comments_between_columns_of_blanks():
    text = "# id = 7\nParis B-LOC\n# a comment of 5 words\n# O\n\n"
    (sentence,) = read_conll(text, "a.txt", Columns())
    assert sentence.words == ("Paris", "#")


def test_what_is_written_has_the_same_lines_and_one_more_column():
    sentences = read_conll(TABS, "dev.iob2", Columns(token=1, tag=2))
    written = add_column(sentences, [["O", "O", "B-PER"], ["O"]])
    assert written == (
        "# sent_id = 1\n# text = #NER in Paris\n1\t#NER\tO\tO\n2\tin\tO\tO\n"
        "3\tParis\tB-LOC\tB-PER\n\t\n1\tRome\tB-LOC\tO\n\n"
    )
    tags = [["B-ORG", "O", "O", "O"], ["B-PER", "I-PER"]]
    written = add_column(read_conll(CONLL_2003, "train.txt", Columns()), tags)
    assert written.startswith("-DOCSTART- -X- -X- O O\n\nEU NNP I-NP I-ORG B-ORG\n")
    assert written.count("\n") == CONLL_2003.count("\n")
    assert read_conll(written, "written", Columns())[1].tags == ("B-PER", "I-PER")


OTHER_BLANKS = "\u00a0\u3000\u2009\u2028\x0b\x0c\x1c\x85"


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
@pytest.mark.parametrize("blank", OTHER_BLANKS)
def test_other_white_space_belongs_to_words(separator, blank):
    words = [f"10{blank}000", blank, f"{blank}x"]
    text = (
        "".join(f"{word}{separator}O\n" for word in words) + f"{separator}\nRome{separator}B-LOC\n"
    )
    if separator == "  ":
        text = text.replace("B-LOC", " B-LOC ")
    sentences = read_conll(text, "f", Columns())
    assert [each.words for each in sentences] == [tuple(words), ("Rome",)]
    assert sentences[1].tags == ("B-LOC",)
    written = add_column(sentences, [["O"] * 3, ["O"]])
    assert [each.words for each in read_conll(written, "f", Columns())] == [tuple(words), ("Rome",)]


def test_a_file_without_tags_is_read_for_its_words():
    sentences = read_conll("#Hello\nworld\r\n\r\nagain\n", "plain", Columns(tag=None))
    assert [(each.words, each.tags, each.scheme) for each in sentences] == [
        (("#Hello", "world"), (), None),
        (("again",), (), None),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        ("", Columns(), "f: has no sentence"),
        ("\n# only\n\n", Columns(), "f: has no sentence; expected a word and its tag"),
        ("-DOCSTART- -X- O\n\n", Columns(), "f: has no sentence; expected a word and its tag"),
        ("-DOCSTART-\n# only\n", Columns(tag=None), "f: has no sentence"),
        ("a O\nb\n", Columns(), "f:2: 1 columns in 'b', most lines have 2"),
        ("10 000 O\na O\nb O\n", Columns(), "f:1: 3 columns in '10 000 O', most lines have 2"),
        (" ".join("w" * 90), Columns(), r"f:1: 'w' in column -1"),
        ("a O\n" + "w " * 90, Columns(), r"f:2: 90 columns in '(w ){30}'\.\.\. \(180 characters"),
        ("a O\nb\u00a0O\n", Columns(), r"f:2: 1 columns in 'b\\xa0O', most lines have 2"),
        ("a\tO\n\tO\n", Columns(), "f:2: no word in column 0"),
        ("a O\nb X-PER\n", Columns(), "f:2: 'X-PER' in column -1 is neither O nor"),
        ("a O\nb B-\n", Columns(), "f:2: 'B-' in column -1"),
        ("a O\n", Columns(tag=2), "f:1: 2 columns, tag_column is 2"),
        ("a O\n", Columns(token=-3), "f:1: 2 columns, token_column is -3"),
        ("a\nb\n", Columns(), "f:1: 1 columns, so token_column 0 and tag_column -1 are the same"),
        ("a I-X\n\nb O\nc B-X\n", Columns(), "f:1: I-X stands where iob2 .*, and f:4: B-X stands"),
        ("a S-X\n\nb B-X\n\nc O\n", Columns(), "f:3: B-X stands where bioes has S-X"),
    ],
)
def test_malformed_files_are_refused_with_file_and_line(text, columns, says):
    with pytest.raises(ValueError, match=says):
        read_conll(text, "f", columns)


@pytest.mark.parametrize(
    ("file", "columns", "num_sentences", "num_words"),
    [
        ("ner_wnut17/train.conll", Columns(), 3_394, 62_730),
        ("ner_wnut17/dev.conll", Columns(), 1_009, 15_733),
        ("ner_uner_ewt/en_ewt-ud-dev.iob2.zst", Columns(token=1, tag=2), 2_001, 25_149),
    ],
)
def test_real_files(shared_data, file, columns, num_sentences, num_words):
    text = read_text(str(shared_data / "data" / file))
    sentences = read_conll(text, file, columns)
    counted = (len(sentences), sum(len(each.words) for each in sentences))
    assert counted == (num_sentences, num_words)
    assert sentences[0].scheme == "iob2"
    tags = [each.tags for each in sentences]
    written = add_column(sentences, tags)
    pairs = zip(written.split("\n"), text.split("\n"), strict=True)
    assert all(old in (new, new.rpartition("\t")[0]) for new, old in pairs)
    assert [each.tags for each in read_conll(written, file, Columns(columns.token, -1))] == tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER I-PER I-LOC", [("PER", 0, 2), ("LOC", 2, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-PER S-PER B-LOC I-LOC E-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5)]),
        ("B-LOC E-LOC E-LOC", [("LOC", 0, 2), ("LOC", 2, 3)]),
    ],
)
def test_entities_of_any_tags_are_found(tags, expected):
    assert find_entities(tags.split()) == [Entity(*each) for each in expected]


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
@given(parts=ENTITIES)
def test_written_tags_are_of_the_scheme_and_spell_the_same_entities(scheme, parts):
    entities, end = [], 0
    for gap, length, name in parts:
        entities.append(Entity(name, end + gap, end + gap + length))
        end += gap + length
    assert find_entities(write_tags(entities, end + 1, scheme)) == entities


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", "iob2"),
        ("I-PER B-PER O", "iob1"),
        ("B-PER E-PER S-LOC", "bioes"),
        ("B-PER I-LOC", "1: I-LOC stands where iob2 has B-LOC, and 0: B-PER stands where iob1"),
        ("B-PER O S-PER", "0: B-PER stands where bioes has S-PER"),
        ("O B-PER I-PER O S-X", "2: I-PER stands where bioes has E-PER"),
        ("S-PER E-PER", "1: E-PER stands where bioes has S-PER"),
    ],
)
def test_the_scheme_is_found_or_the_first_tag_that_is_of_none(tags, found):
    if " " not in found:
        assert find_scheme([(tags.split(), str)]) == found
        return
    with pytest.raises(ValueError, match=f"of no scheme: {found}"):
        find_scheme([(tags.split(), str)])


def test_labels_are_all_tags_of_the_types():
    assert label_names(["PER", "LOC", "PER"], "iob1") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert label_names(["X"], "bioes") == ("O", "B-X", "I-X", "E-X", "S-X")


def test_without_any_entity_everything_is_zero():
    assert compare_entities([["O"]], [["O"]]) == ((0.0, 0.0, 0.0, 0), {})


def _sentences(tags):
    drawn = lambda size: st.lists(st.sampled_from(tags), min_size=size, max_size=size)  # noqa: E731
    pair = st.integers(1, 12).flatmap(lambda size: st.tuples(*[drawn(size)] * 2))
    return st.lists(pair, min_size=1, max_size=6)


@pytest.mark.parametrize("tags", [IOB, BIOES])
@given(data=st.data())
def test_scores_are_those_of_seqeval(tags, data):
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling")
    labels, predictions = (list(each) for each in zip(*data.draw(_sentences(tags)), strict=True))
    labels[0] = [*labels[0], "S-PER" if tags is BIOES else "B-PER"]
    predictions[0] = [*predictions[0], "O"]
    every, by_type = compare_entities(labels, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = seqeval.precision_recall_fscore_support
        theirs, micro = (scores(labels, predictions, average=each) for each in (None, "micro"))
    expected = [pytest.approx(row) for row in zip(*theirs, strict=True)]
    assert [tuple(each) for each in by_type.values()] == expected
    assert every[:3] == pytest.approx(micro[:3])
    found = seqeval.accuracy_score(labels, predictions)
    assert tag_accuracy(labels, predictions) == pytest.approx(found)
