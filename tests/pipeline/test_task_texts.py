"""Texts of task files are found in documents wherever they stand and however they are written, and nothing else is."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.documents.task_files import hash_task_files, read_task_texts
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.text import task_texts
from pipeline.text.cleaning import clean_text
from pipeline.text.task_texts import Overlap, WindowFinder, normalize, prepare_texts
from scripts.bench.measured import read_documents
from tests.compiled_paths import taken_path

TEN = "Every morning, the old captain counted his eleven silver engines."
TWENTY = f"{TEN} Nobody in the quiet village knew why he never sold them."


@pytest.fixture(scope="module", params=["python", "compiled"])
def each_path(request):
    with taken_path(request.param, "pipeline.text._task_texts", task_texts, "compiled"):
        yield


def find(document, *texts, n=13):
    prepared = prepare_texts(
        [(f"tasks.txt:{number}", text) for number, text in enumerate(texts, 1)], n
    )
    return WindowFinder(prepared).find(document)


@pytest.mark.usefixtures("each_path")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop -- believing!", "don t stop believing"),
        ("Café, NAÏVE, cafe\u0301\nÜber", "cafe naive cafe uber"),
        ("中文ab字 テスト", "中 文 ab 字 テ ス ト"),
        ("soft\u00adhyphen zero\u200bwidth", "softhyphen zero width"),
        ("x² ½ 3.14 a_b", "x² ½ 3 14 a b"),
        ("smile\U0001f600d 한국어 İstanbul", "smile d 한국어 istanbul"),
        (" \n!?", ""),
        ("", ""),
    ],
)
def test_words_are_letters_and_digits_without_case_and_accents(text, words):
    assert normalize(text) == words


@pytest.mark.usefixtures("each_path")
def test_a_shared_window_is_found_with_its_place():
    text = clean_text(f"Once upon a time.\n{TWENTY.upper().replace(' ', ' -- ')} The end.")
    window = "every morning the old captain counted his eleven silver engines nobody in the"
    assert find(text, "Nothing that any document has in it, not a single word.", TWENTY) == Overlap(
        "tasks.txt:2", window
    )
    assert find(text.replace("ENGINES", "MACHINES"), TWENTY) is None
    assert find(text.replace("ENGINES", "MACHINES"), TWENTY, n=8) == Overlap(
        "tasks.txt:1", "every morning the old captain counted his eleven"
    )


@pytest.mark.usefixtures("each_path")
def test_a_text_without_a_word_is_in_no_document():
    assert find("...", "---", "word", n=1) is None
    with pytest.raises(ValueError, match="found 1 texts, none of 1 words or more"):
        find("...", "---", n=1)


@pytest.mark.usefixtures("each_path")
def test_a_short_text_counts_as_a_whole_and_a_shorter_one_not():
    assert find(f"So {TEN} And more.", TEN).words == normalize(TEN)
    assert find(TEN, TEN).place == "tasks.txt:1"
    assert find(TEN.replace("engines", "engine"), TEN) is None
    assert find(f"{TEN[:-1]}s", TEN) is None  # a longer word
    seven = "The captain counted his eleven silver engines."
    assert find(seven, seven, TEN) is None
    with pytest.raises(ValueError, match="found 1 texts, none of 8 words or more"):
        find(seven, seven)


@pytest.mark.usefixtures("each_path")
def test_the_first_place_of_the_task_files_is_told():
    longer = TEN.replace(".", " and more")
    assert find(longer, TEN, longer).place == "tasks.txt:1"
    assert find(longer, longer, TEN).place == "tasks.txt:1"
    assert find(TEN, longer, TEN).place == "tasks.txt:2"
    assert find(TWENTY, TWENTY, TWENTY).place == "tasks.txt:1"


def brute_force(document, texts, n):
    """Whether a document shares a window, by strings with spaces around them."""
    words = f" {normalize(document)} "
    for text in texts:
        own = normalize(text).split()
        windows = [own[first : first + n] for first in range(len(own) - n + 1)] or [own]
        if len(own) >= min(n, 8) and any(f" {' '.join(window)} " in words for window in windows):
            return True
    return False


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_both_paths_find_what_brute_force_finds(data):
    words = st.lists(st.sampled_from(["a", "B", "é", "中", "ab"]), max_size=24).map(" ".join)
    n = data.draw(st.integers(2, 12))
    texts = data.draw(st.lists(words, min_size=1, max_size=6))
    texts.append(data.draw(st.lists(st.sampled_from("ab"), min_size=12, max_size=14).map(" ".join)))
    prepared = prepare_texts([(str(number), text) for number, text in enumerate(texts)], n)
    documents = data.draw(st.lists(words, min_size=1, max_size=8)) + texts
    with pytest.MonkeyPatch.context() as patch:
        compiled = task_texts.compiled
        found = [WindowFinder(prepared).find(document) for document in documents]
        patch.setattr(task_texts, "compiled", None)
        assert [WindowFinder(prepared).find(document) for document in documents] == found
        patch.setattr(task_texts, "compiled", compiled)
    assert [each is not None for each in found] == [
        brute_force(document, texts, n) for document in documents
    ]


def test_every_character_of_the_first_planes_is_normalized_alike():
    with taken_path("compiled", "pipeline.text._task_texts", task_texts, "compiled"):
        text = "\n".join(f"a{chr(code)}b" for code in range(0x12000))
        found = normalize(text)
        with taken_path("python", "", task_texts, "compiled"):
            assert normalize(text) == found
            assert normalize(found) == found


def disguise(words, rng):
    """Words as another author would set them: case, punctuation, line ends and accents."""
    marks = (" ", "  ", ", ", " - ", ".\n", '" "', "\t(", "; ", "\u2019 ", "\u00a0")
    cases = (str.lower, str.upper, str.title, lambda word: f"{word[:1]}\u0301{word[1:]}")
    return "".join(rng.choice(cases)(word) + rng.choice(marks) for word in words)


@pytest.mark.usefixtures("each_path")
@pytest.mark.parametrize("n", [8, 13])
def test_every_planted_overlap_is_found_and_no_other(n):
    rng = random.Random(n)
    vocabulary = ["".join(rng.choices("aeioubdkmnrst", k=rng.randint(2, 9))) for _ in range(3000)]
    tasks = [rng.choices(vocabulary, k=rng.randint(8, 60)) for _ in range(300)]
    prepared = prepare_texts(
        [(str(number), disguise(words, rng)) for number, words in enumerate(tasks)], n
    )
    finder = WindowFinder(prepared)
    for number, words in enumerate(tasks):
        length = min(n, len(words))
        first = rng.randint(0, len(words) - length)
        before, after = (rng.choices(vocabulary, k=rng.choice([0, 1, 5, 200])) for _ in range(2))
        for planted, is_there in (
            (words[first : first + length], True),
            (words[first : first + length - 1], False),
        ):
            document = disguise([*before, *planted, *after], rng)
            for text in (document, clean_text(document)):
                found = finder.find(text)
                assert found.place == str(number) if is_there else found is None, (number, text)


@pytest.mark.usefixtures("each_path")
def test_real_test_sentences_planted_in_a_real_novel_are_found(shared_data):
    rows = read_task_texts([str(shared_data / "data/rte/dev.tsv")])
    texts = [
        (place, text) for place, text in rows if len(normalize(clean_text(text)).split()) >= 13
    ]
    finder = WindowFinder(prepare_texts(texts, 13))
    (novel,) = read_documents([str(shared_data / "data/books_en/Stevenson_Treasure_1883.txt.zst")])
    lines = novel[:40_000].split("\n")
    assert len(texts) > 100
    assert finder.find(novel) is None
    for number, (_, text) in enumerate(texts):
        at = number % len(lines)
        assert finder.find("\n".join([*lines[:at], clean_text(text), *lines[at:]]))


def test_texts_of_every_kind_of_task_file_are_read(tmp_path):
    tmp_path.joinpath("a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    tmp_path.joinpath("b.tsv").write_text("question\tlabel\nWhat is it?\t1\n")
    rows = [{"title": "T", "paragraphs": [{"qas": [{"question": "Q?", "id": 7}]}]}]
    tmp_path.joinpath("c.json").write_text(json.dumps({"data": rows}, indent=1))
    tmp_path.joinpath("d.jsonl.gz").write_bytes(
        gzip.compress(b'{"a": "one"}\n\n{"a": ["two", null]}\n"three"\n')
    )
    pq.write_table(
        pa.table({"text": ["row"], "choices": [["x", "y"]], "label": [1]}), tmp_path / "e.parquet"
    )
    found = [
        (place.removeprefix(f"{tmp_path}/"), text)
        for place, text in read_task_texts([str(tmp_path)])
    ]
    assert found == [
        ("a.txt:1", "one"), ("a.txt:2", "two"), ("a.txt:3", ""),
        ("b.tsv:1", "question"), ("b.tsv:1", "label"), ("b.tsv:2", "What is it?"), ("b.tsv:2", "1"), ("b.tsv:3", ""),
        ("c.json, data[0].title", "T"), ("c.json, data[0].paragraphs[0].qas[0].question", "Q?"),
        ("d.jsonl.gz:1, a", "one"), ("d.jsonl.gz:3, a[0]", "two"), ("d.jsonl.gz:4", "three"),
        ("e.parquet, row 1, text", "row"), ("e.parquet, row 1, choices[0]", "x"),
        ("e.parquet, row 1, choices[1]", "y"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', r"a.jsonl:2: found no JSON .* expected a value a line"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: cannot be read as Parquet"),
        ("a.txt", b"caf\xe9 au lait", "a.txt: is no UTF-8"),
    ],
)
def test_a_task_file_that_is_broken_is_named(tmp_path, name, data, said):
    tmp_path.joinpath(name).write_bytes(data)
    with pytest.raises(ValueError, match=said):
        list(read_task_texts([str(tmp_path / name)]))


def test_task_files_are_known_by_their_bytes(tmp_path):
    for name, text in (("a", "one"), ("b", "two"), ("c", "one")):
        tmp_path.joinpath(name).write_text(text)
    hashes = [
        hash_task_files([str(tmp_path / name) for name in names])
        for names in ("ab", "bc", "a", "b")
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


@pytest.mark.parametrize("words", [1, 65])
def test_windows_out_of_range_are_refused(words):
    with pytest.raises(ValueError, match=f"task_words is {words}; it must be 2 to 64"):
        BuildSettings("o", ["i"], task_words=words)


def run(*arguments):
    return run_program(
        "python -m pipeline", "Tests.", COMMANDS, [str(argument) for argument in arguments]
    )


def write_documents(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.mark.processes
def test_a_build_drops_or_lists_what_holds_text_of_task_files(texts, vocab_file, tmp_path, capsys):
    """The dataset without them is the one of a corpus that never had them, to the root hash."""
    clean, hits = texts[:80], [f"{texts[90]} {TWENTY}", f"{TEN.upper()}\n{texts[91]}", TWENTY]
    write_documents(tmp_path / "clean.jsonl", clean)
    write_documents(tmp_path / "all.jsonl", [*clean[:40], *hits, *clean[40:]])
    tasks = tmp_path / "tasks.tsv"
    tasks.write_text(f"0\t{TEN}\n1\t{TWENTY}\n")
    fixed = ("--vocab", vocab_file, "--passes", 1, "--seq_lens", 64, "--part_bytes", 4096)

    def build(corpus, output, *more):
        return run(
            "build", "--input", tmp_path / corpus, "--output", tmp_path / output, *fixed, *more
        )

    tested = ("--task_files", tasks)
    assert build("clean.jsonl", "expected", "--workers", 1) == 0
    assert build("all.jsonl", "dropped", *tested, "--workers", 2) == 0
    capsys.readouterr()
    assert build("all.jsonl", "dropped", *tested, "--workers", 1) == 0  # finished: looks nothing up
    assert "3 of 83 documents hold text of the task files: input 3" in capsys.readouterr().out
    assert build("all.jsonl", "plain", "--workers", 1) == 0
    assert build("all.jsonl", "listed", *tested, "--task_overlap", "list", "--workers", 1) == 0
    manifests = {
        name: open_dataset(str(tmp_path / name)).manifest
        for name in ("expected", "dropped", "plain", "listed")
    }
    assert manifests["dropped"].root_hash == manifests["expected"].root_hash
    assert (
        manifests["listed"].root_hash
        == manifests["plain"].root_hash
        != manifests["expected"].root_hash
    )
    assert manifests["listed"].settings_hash == manifests["plain"].settings_hash
    assert manifests["dropped"].counters["dropped_task_text"] == 3
    assert manifests["listed"].counters["documents_listed"] == 3
    assert manifests["dropped"].settings["task_words"] == 13
    assert not {name for name in manifests["plain"].settings if name.startswith("task")}
    for name in ("dropped", "listed"):
        rows = (
            pq.ParquetFile(tmp_path / name / "task_overlaps.parquet")
            .read(use_threads=False)
            .to_pylist()
        )
        assert sorted(row["task_text"] for row in rows) == [
            f"{tasks}:1",
            f"{tasks}:2",
            f"{tasks}:2",
        ]
        assert all(row["document"].startswith(f"{tmp_path}/all.jsonl") for row in rows)
        assert {len(row["words"].split()) for row in rows} == {10, 13}
        assert all(len(row["id"]) == 32 for row in rows)
    page = (tmp_path / "dropped/report.html").read_text()
    assert "dropped task text" in page
    assert str(tasks) in page
    assert "documents listed" in (tmp_path / "listed/report.html").read_text()
    assert not list((tmp_path / "dropped/tokens").glob("handed-*"))
    tasks.write_text(f"{TWENTY}\n")
    capsys.readouterr()
    assert build("all.jsonl", "dropped", *tested) == 2
    assert "holds tokens of other settings: task_files was" in capsys.readouterr().err
    assert build("all.jsonl", "planned", *tested, "--plan", "true") == 0
    assert "2 task_text" in capsys.readouterr().out
