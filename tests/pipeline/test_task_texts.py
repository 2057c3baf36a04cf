"""Texts of task files are found in documents however they are written, and nothing else is."""

import gzip
import json
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.task_files import _walk, hash_task_files, read_task_texts
from pipeline.shards.dataset import open_dataset
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import clean_text
from pipeline.text.task_texts import Overlap, WindowFinder, prepare_texts
from pipeline.tokens.provenance import OVERLAPS, write_overlaps
from scripts.bench.measured import read_documents
from tests.pipeline.conftest import WORDS
from tests.pipeline.programs import run, write_texts
from tokenizer.encode import Encoder
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary, parse_vocab
from tokenizer.word_rule import CASED, UNCASED, WordRule

TEN = "Every morning, the old captain counted his eleven silver engines."
TWENTY = f"{TEN} Nobody in the quiet village knew why he never sold them."
SEVEN = "The captain counted his eleven silver engines."
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-_()\u2019", "中", "文", "字", "é", "½"]
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "captain", "##ver", "##ing", "©"]
LETTERS_ENCODER = Encoder(Vocabulary((*SPECIAL_TOKENS, *PIECES)), UNCASED)


def make_finder(texts, n=13, encoder=LETTERS_ENCODER):
    rows = [(f"tasks.txt:{number}", text) for number, text in enumerate(texts, 1)]
    return WindowFinder(prepare_texts(rows, n), encoder)


def find(document, *texts, n=13, encoder=LETTERS_ENCODER):
    return make_finder(texts, n, encoder).find([encoder.encode(clean_text(document))])[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop -- believing!", "don t stop believing"),
        ("CAPTAIN\n cafe\u0301 captain", "captain cafe captain"),
        ("中文ab字", "中 文 ab 字"),
        ("soft\u00adhyphen zero\u200bwidth", "softhyphen zerowidth"),
        ("½ 3.14 a_b", "½ 3 14 a b"),
        ("smile \U0001f600 d 한국어 ©", "smile d"),
    ],
)
def test_words_are_letters_and_digits_without_case_and_accents(text, words):
    found = find(f"and so {text}...", text, n=len(words.split()))
    assert found == Overlap("tasks.txt:1", words)


def test_a_cased_vocabulary_knows_words_by_their_lower_case_pieces():
    pieces = [*PIECES, *map(str.upper, "abcdefghijklmnopqrstuvwxyz"), "Captain", "##VER"]
    cased = Encoder(Vocabulary((*SPECIAL_TOKENS, *pieces)), CASED)
    assert find(f"So {TEN.title()}", TEN, encoder=cased).place == "tasks.txt:1"


def test_a_shared_window_is_found_with_its_place():
    text = f"Once upon a time.\n{TWENTY.upper().replace(' ', ' -- ')} The end."
    window = "every morning the old captain counted his eleven silver engines nobody in the"
    assert find(text, SEVEN, TWENTY) == Overlap("tasks.txt:2", window)
    changed = text.replace("ENGINES", "MACHINES")
    assert find(changed, TWENTY) is None
    assert find(changed, TWENTY, n=8).words == "every morning the old captain counted his eleven"


def test_a_window_lies_in_one_document():
    words, finder = LETTERS_ENCODER.encode(TWENTY), make_finder([TWENTY])
    middle = len(words) // 2
    found = finder.find([words[:middle], words[middle:], words[:0], words, words[:0], words])
    assert [each is not None for each in found] == [False, False, False, True, False, True]
    assert finder.find([]) == []


def test_a_short_text_counts_as_a_whole_and_a_shorter_one_not():
    assert find(f"So {TEN} And more.", TEN).words == TEN[:-1].replace(",", "").lower()
    assert find(TEN, TEN).place == "tasks.txt:1"
    assert find(TEN.replace("engines", "engine"), TEN) is None
    assert find(f"{TEN[:-1]}s", TEN) is None  # a longer word
    assert find(SEVEN, SEVEN, TEN) is None


@pytest.mark.parametrize(("texts", "n", "least"), [([SEVEN] * 2, 13, 8), (["---"], 1, 1)])
def test_task_files_without_a_text_that_is_long_enough_are_refused(texts, n, least):
    said = f"found {len(texts)} texts, none of {least} words or more"
    with pytest.raises(ValueError, match=said):
        make_finder(texts, n)


def test_the_first_place_of_the_task_files_is_told():
    longer = TEN.replace(".", " and more")
    for texts in ((longer, TEN, longer), (longer, longer, TEN), (TWENTY, TWENTY, TWENTY)):
        assert find(*texts).place == "tasks.txt:1"
    assert find(TEN, longer, TEN).place == "tasks.txt:2"


def brute_force(document, texts, n):
    """Whether a document shares a window, by strings with spaces around them."""
    words = f" {' '.join(document.lower().split())} "
    for text in texts:
        own = text.lower().split()
        windows = [own[first : first + n] for first in range(len(own) - n + 1)] or [own]
        if len(own) >= min(n, 8) and any(f" {' '.join(window)} " in words for window in windows):
            return True
    return False


@given(st.data())
def test_what_brute_force_finds_is_found(data):
    words = st.lists(st.sampled_from(["a", "B", "ab", "中", "abc"]), max_size=24).map(" ".join)
    n = data.draw(st.integers(2, 12))
    texts = [*data.draw(st.lists(words, min_size=1, max_size=6)), "a b b a a b a b b b a b a"]
    documents = data.draw(st.lists(words, min_size=1, max_size=8)) + texts
    found = make_finder(texts, n).find([LETTERS_ENCODER.encode(document) for document in documents])
    expected = [brute_force(document, texts, n) for document in documents]
    assert [each is not None for each in found] == expected


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_real_test_sentences_planted_in_a_real_novel_are_found(shared_data, name):
    path = shared_data / f"data/bert_vocab/bert-base-{name}-vocab.txt"
    encoder = Encoder(parse_vocab(path.read_bytes(), name), WordRule(name == "uncased"))
    rows = read_task_texts([str(shared_data / "data/rte/dev.tsv")])
    texts = [text for _, text in rows if len(text.split()) >= 16]
    finder = make_finder(texts, encoder=encoder)
    (novel,) = read_documents([str(shared_data / "data/books_en/Stevenson_Treasure_1883.txt.zst")])
    lines = novel[:40_000].split("\n")
    assert len(texts) > 100
    assert finder.find([encoder.encode(clean_text(novel))]) == [None]
    for number, text in enumerate(texts):
        at = number % len(lines)
        planted = clean_text("\n".join([*lines[:at], text, *lines[at:]]))
        assert finder.find([encoder.encode(planted)]) != [None]


def test_texts_of_every_kind_of_task_file_are_read(tmp_path):
    tmp_path.joinpath("a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    tmp_path.joinpath("b.tsv").write_text("question\tlabel\nWhat is it?\t1\n")
    rows = [{"title": "T", "paragraphs": [{"qas": [{"question": "Q?", "id": 7}]}]}]
    tmp_path.joinpath("c.json").write_text(json.dumps({"data": rows}, indent=1))
    data = b'{"a": "one"}\n\n{"a": ["two", null]}\n"three"\n'
    tmp_path.joinpath("d.jsonl.gz").write_bytes(gzip.compress(data))
    table = pa.table({"text": ["row"], "choices": [["x", "y"]], "label": [1]})
    pq.write_table(table, tmp_path / "e.parquet")
    found = [f"{place} = {text}" for place, text in read_task_texts([str(tmp_path)])]
    assert [each.removeprefix(f"{tmp_path}/") for each in found] == [
        "a.txt:1 = one", "a.txt:2 = two", "b.tsv:1 = question", "b.tsv:1 = label",
        "b.tsv:2 = What is it?", "b.tsv:2 = 1", "c.json, data[0].title = T",
        "c.json, data[0].paragraphs[0].qas[0].question = Q?", "d.jsonl.gz:1, a = one",
        "d.jsonl.gz:3, a[0] = two", "d.jsonl.gz:4 = three", "e.parquet, row 1, text = row",
        "e.parquet, row 1, choices[0] = x", "e.parquet, row 1, choices[1] = y",
    ]  # fmt: skip


def test_cells_of_csv_and_rows_of_arrow_are_texts(tmp_path):
    tmp_path.joinpath("a.CSV").write_text('question;label\n"a; b ""c""";1\n')
    table = pa.table({"text": ["row"], "tags": [["x", "y"]]})
    for name, new in (("b.arrow", pa.ipc.new_file), ("c.arrows", pa.ipc.new_stream)):
        with new(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    found = [text for _, text in read_task_texts([str(tmp_path)])]
    assert found == ["question", "label", 'a; b "c"', "1", *["row", "x", "y"] * 2]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.zip", b"PK\x03\x04", "found an archive, .* unpack it"),
        ("a.pdf", b"%PDF-1.7 of a file", "found a PDF document, .*`pdftotext"),
        ("a.html", b"<html>", "found a file of the format html, expected lines, CSV, JSON"),
    ],
)
def test_task_files_whose_texts_are_not_known_are_refused(tmp_path, name, data, said):
    tmp_path.joinpath(name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name}: {said}"):
        list(read_task_texts([str(tmp_path / name)]))


def test_every_task_file_gives_windows_or_stops():
    rows = [("a:1", TWENTY), ("a:2", SEVEN), ("b:1", TEN), ("b:2", "x")]
    files = (("a", 2), ("b", 2))
    finder = WindowFinder(prepare_texts(rows, 13, files=files), LETTERS_ENCODER)
    assert finder.num_windows == {"a": len(TWENTY.split()) - 12, "b": 1}
    rows += [("conll.txt:1", "captain NN B-NP O")]
    said = r"conll\.txt: found no text of 8 words or more, .*awk .* leave the file out"
    with pytest.raises(ValueError, match=said):
        WindowFinder(prepare_texts(rows, 13, files=(*files, ("conll.txt", 1))), LETTERS_ENCODER)


def test_strings_are_found_however_deep():
    """Later Pythons read JSON of more levels than functions may call each other."""
    deep = reduce(lambda inner, _: [inner], range(5000), "one")
    assert [text for _, text in _walk({"a": deep, "b": "two"}, "a.json")] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl:2: found no JSON .* a value in each line"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: cannot be read as Parquet"),
        ("a.txt", b"caf\xe9 au lait", "a.txt:1: found the byte 0xe9 .* expected UTF-8"),
        ("a.json", b"[" * 100_000, "a.json:1: found no JSON .maximum recursion depth"),
    ],
)
def test_a_task_file_that_is_broken_is_named(tmp_path, name, data, said):
    tmp_path.joinpath(name).write_bytes(data)
    with pytest.raises(ValueError, match=said):
        list(read_task_texts([str(tmp_path / name)]))


def test_task_files_are_known_by_their_bytes(tmp_path):
    for name, text in (("a", "one"), ("b", "two"), ("c", "one")):
        tmp_path.joinpath(name).write_text(text)
    paths = [[str(tmp_path / name) for name in names] for names in ("ab", "bc", "a", "b")]
    first, second, *others = map(hash_task_files, paths)
    assert first == second
    assert len({first, *others}) == 3


@pytest.mark.processes
def test_a_build_drops_or_lists_what_holds_text_of_task_files(texts, vocab_file, tmp_path, capsys):
    """The dataset without them is the one of a corpus that never had them, to the root hash."""
    ten, twenty = " ".join(WORDS[10:0:-1]), " ".join(WORDS[25:5:-1])
    clean, hits = texts[:80], [f"{texts[90]} {twenty}", f"{ten.upper()}\n{texts[91]}", twenty]
    write_texts(tmp_path / "clean.jsonl", clean)
    write_texts(tmp_path / "all.jsonl", [*clean[:40], *hits, *clean[40:]])
    tasks = tmp_path / "tasks.tsv"
    tasks.write_text(f"0\t{ten}\n1\t{twenty}\n")
    length = ("--passes", 1, "--seq_lens", 64, "--part_bytes", 4096, "--workers", 1)
    tested = ("--task_files", tasks)

    def build(output, *more, corpus="all.jsonl", vocab=("--vocab", vocab_file)):
        words = ("--input", tmp_path / corpus, "--output", tmp_path / output, *vocab)
        code = run("build", *words, *length, *more)
        return code, "".join(capsys.readouterr())

    assert build("expected", corpus="clean.jsonl")[0] == 0
    assert build("dropped", *tested)[0] == 0
    code, said = build("dropped", *tested)  # finished: looks nothing up
    assert code == 0
    assert "3 of 83 documents hold text of the task files: input 3" in said
    assert build("plain")[0] == build("listed", *tested, "--task_overlap", "list")[0] == 0
    names = ("expected", "dropped", "plain", "listed")
    expected, dropped, plain, listed = (
        open_dataset(f"{tmp_path}/{name}").manifest for name in names
    )
    assert expected.root_hash == dropped.root_hash != plain.root_hash == listed.root_hash
    assert listed.settings_hash == plain.settings_hash
    assert dropped.counters["dropped_task_text"] == listed.counters["documents_listed"] == 3
    assert dropped.settings["task_words"] == 13
    assert not {name for name in plain.settings if name.startswith("task")}
    for name in ("dropped", "listed"):
        table = pq.ParquetFile(tmp_path / name / "task_overlaps.parquet")
        rows = table.read(use_threads=False).to_pylist()
        places = [f"{tasks}:1", f"{tasks}:2", f"{tasks}:2"]
        assert sorted(row["task_text"] for row in rows) == places
        assert all(row["document"].startswith(f"{tmp_path}/all.jsonl") for row in rows)
        assert {len(row["words"].split()) for row in rows} == {10, 13}
        assert all(len(row["id"]) == 32 for row in rows)
    page = (tmp_path / "dropped/report.html").read_text()
    assert "dropped task text" in page
    assert str(tasks) in page
    assert "documents listed" in (tmp_path / "listed/report.html").read_text()
    assert not list((tmp_path / "dropped/tokens").glob("broadcast-*"))
    tasks.write_text(f"{twenty}\n")
    code, said = build("dropped", *tested)
    assert code == 2
    assert "holds tokens of other settings: task_files was" in said
    assert "2 task_text" in build("planned", *tested, "--plan", "true")[1]
    (tmp_path / "broken.jsonl").write_text("{")
    code, said = build("none", "--task_files", tmp_path / "broken.jsonl", vocab=())
    assert code == 2
    assert f"{tmp_path}/broken.jsonl" in said
    assert not (tmp_path / "none").exists(), "it looked for a vocabulary first"


def test_the_table_of_overlaps_is_held_to_what_was_counted(tmp_path):
    """Where a store lists half of the files, or one is gone."""
    tokens, output = Folder(str(tmp_path / "tokens")), Folder(str(tmp_path / "data"))
    for part in ("a", "b"):
        row = [part * 32, "x.jsonl:1", "t.tsv:1", "some words"]
        tokens.write(f"{part}{OVERLAPS}", json.dumps(row).encode() + b"\n")
    write_overlaps(tokens, ["a", "b", "c"], output, 2)
    assert output.exists("task_overlaps.parquet")
    output.remove(["task_overlaps.parquet"])
    (tmp_path / f"tokens/b{OVERLAPS}").unlink()
    with pytest.raises(ValueError, match=r"1 files of .overlaps list 1 documents .* counts 2: "):
        write_overlaps(tokens, ["a", "b", "c"], output, 2)
    tokens.write(f"b{OVERLAPS}", b"[1, 2]\n")
    with pytest.raises(ValueError, match=r"b.overlaps is damaged: .*expected lists of id, doc"):
        write_overlaps(tokens, ["a", "b", "c"], output, 2)
    assert not output.exists("task_overlaps.parquet")
