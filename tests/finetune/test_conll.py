"""CoNLL columns: read, checked, and written back line for line."""

import pytest

from pipeline.documents.text_files import read_text
from trainer.conll.read import Columns, add_column, read_conll

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
        ("\n# only\n\n", Columns(), "f: has no sentence"),
        ("a O\nb\n", Columns(), "f:2: 1 columns, the first line of words has 2"),
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
