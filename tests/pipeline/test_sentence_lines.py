"""Corpora with a sentence a line, told from novels, speeches and poems."""

import gzip
import zipfile
from hashlib import sha256
from itertools import islice, permutations

import fsspec
import numpy as np
import pytest
import zstandard

from pipeline.documents import Document
from pipeline.documents.parts import Part, find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.sentence_lines import look_at_lines
from pipeline.instances.build_bucket import gather_documents
from pipeline.shards.dataset import open_dataset
from pipeline.text.sentences import split_sentences
from pipeline.tokens.document_lists import group_documents, split_documents
from pipeline.tokens.token_parts import TokenizedDocument
from tests.pipeline.programs import run

DOCUMENT = 'The ship left at noon.\n"Is it far?"\nNo one knew, said Mr. Grey!\nThey left (late.)\n'
CORPUS = "\n".join([DOCUMENT] * 50)
LATE = "He came in. She rose at once. It was late.\n"
NOVEL = "\n".join([LATE, "“Go on,” he said. “Now!”\n", "Well. Yes.\n"] * 20)
VERSE = "The sea is grey and\nthe wind is cold,\nthe ship is made of\nwood and old.\n"
POEM = "\n".join([VERSE] * 20)
LINES = "One line is a sentence.\nAnother one is too.\nThis is another. It is two.\n"
HALF = "\n".join([f"{LINES}A fourth?\nFine.\n"] * 20)


@pytest.mark.parametrize(
    ("text", "is_sure", "is_likely"),
    [
        (CORPUS, True, True),
        (CORPUS.replace("\n", "\r\n"), True, True),
        ("\n".join(["这是一句话。\n他说:“好!”\n真的吗?\n"] * 20), True, True),
        ("\n".join(["यह एक वाक्य है।\nक्या यह सच है?\n"] * 20), True, True),
        (HALF, False, True),
        (DOCUMENT * 5 + "\n" + DOCUMENT * 5, False, True),
        (DOCUMENT * 50, False, False),
        (DOCUMENT + "\n" + DOCUMENT, False, False),
        (NOVEL, False, False),
        (NOVEL.replace("\n\n", "\n") + "\n\n" + NOVEL.replace("\n\n", "\n") * 3, False, False),
        ("\n".join(["这是一句话。他说:“好!”真的吗?\n这也是。两句。\n"] * 20), False, False),
        (POEM, False, False),
        (POEM.replace("\n\n", "\n"), False, False),
        (DOCUMENT.replace("\n", "\n\n") * 20, False, False),
        ("", False, False),
    ],
)
def test_the_beginning_of_a_text(text, is_sure, is_likely):
    seen = look_at_lines(text, is_whole=True)
    assert (seen.is_sure, seen.is_likely) == (is_sure, is_likely), str(seen)


def write(**texts):
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/lines"):
        filesystem.rm("/lines", recursive=True)
    files = {f"/lines/{name.replace('_', '.')}": text for name, text in texts.items()}
    filesystem.pipe({name: text.encode() for name, text in files.items()})
    return find_inputs(["memory://lines"])


def formats(files, text_format="auto", wrapping="auto"):
    parts = plan_parts(files, text_format, 2**30, None, wrapping)
    return [each.format for part in parts for each in part.ranges]


def test_files_are_judged_together():
    assert formats(write(a_txt=CORPUS)) == ["sentence-lines"]
    assert formats(write(a_txt=CORPUS, b_txt=CORPUS, c_txt=DOCUMENT)) == ["sentence-lines"] * 3
    assert formats(write(a_txt=CORPUS, b_jsonl='{"text": "x"}')) == ["sentence-lines", "jsonl"]
    assert formats(write(a_txt=NOVEL, b_txt=POEM, c_txt=DOCUMENT)) == ["text"] * 3


def test_documents_of_many_lines_are_seen_in_compressed_files_too():
    names = [sha256(str(number).encode()).hexdigest() for number in range(3000)]
    ships = [f"The ship {name} left.\n" for name in names]
    documents = ("".join(ships[start : start + 300]) for start in range(0, 3000, 300))
    data = gzip.compress("\n".join(documents).encode())
    fsspec.filesystem("memory").pipe("/packed/a.txt.gz", data)
    assert formats(find_inputs(["memory://packed/a.txt.gz"])) == ["sentence-lines"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([HALF], "20 blank-line blocks of 100 lines, .* and 80% hold one"),
        ([NOVEL, CORPUS], "50 blank-line blocks .* as in 1 of 2 files looked at"),
        (["\n".join([DOCUMENT] * 5)] * 9, "5 blank-line blocks"),
    ],
)
def test_what_is_not_sure_stops_and_is_read_as_told(texts, said):
    files = write(**{f"{number}_txt": text for number, text in enumerate(texts)})
    place = r"1\.txt" if NOVEL in texts else r"0\.txt"
    message = (
        rf"{place}: its beginning has {said}.*; give --format sentence-lines if .* or --format t"
    )
    with pytest.raises(ValueError, match=message):
        formats(files)
    for text_format in ("text", "sentence-lines"):
        assert formats(files, text_format) == [text_format] * len(files)
    assert set(formats(files, "auto", "none")) == {"text"}


def test_members_of_an_archive_are_never_taken_apart_unasked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", CORPUS)
    files = find_inputs([str(tmp_path / "a.zip")])
    said = r"a\.zip/a\.txt: its beginning has 50 blank-line blocks.*; give --format sentence-lines"
    with pytest.raises(ValueError, match=said):
        list(read_part(*plan_parts(files, "auto", 2**20)))
    for text_format, number in (("text", 1), ("sentence-lines", 50)):
        assert len(list(read_part(*plan_parts(files, text_format, 2**20)))) == number


def test_lines_stay_sentences():
    text = ("One. Two.\nthree\n" + "x " * 700).strip()
    documents = [Document(text, "f", is_split=True), Document(text, "f")]
    lists = group_documents(Part(()), documents, {}, 10**6)
    first, second = split_documents(next(lists), ["en"]).documents
    assert first.sentences == ["One. Two.", "three", ("x " * 500).strip(), ("x " * 200).strip()]
    assert second.sentences[:3] == ["One.", "Two.", "three"]
    assert first.id == second.id


def test_of_copies_with_other_sentences_one_is_taken_in_any_order():
    tokens = np.arange(6, dtype=np.uint16)
    lengths = [np.array(each, np.uint16) for each in ([4, 2], [2, 2, 2], [6])]
    for order in permutations(TokenizedDocument(b"0" * 16, 9, own, tokens) for own in lengths):
        assert gather_documents(order).sentence_lengths.tolist() == [2, 2, 2]


def test_no_book_and_no_speech_is_taken_apart(shared_data):
    for path in sorted((shared_data / "data/books_en").glob("*.zst")):
        text = zstandard.decompress(path.read_bytes(), 2**26).decode()
        for start in range(0, len(text), 2**17):
            seen = look_at_lines(text[start : start + 2**17], is_whole=False)
            assert not seen.is_likely, f"{path.name}: {seen}"
    with zipfile.ZipFile(shared_data / "data/state_union/state_union.zip") as archive:
        for name in archive.namelist():
            seen = look_at_lines(archive.read(name).decode(errors="replace"), is_whole=True)
            assert not seen.is_likely, f"{name}: {seen}"


@pytest.mark.parametrize(
    ("name", "language"),
    [("wikinews_en/wikinews_en_00.jsonl.zst", "en"), ("wiki_zh/wiki_zh_00.txt.zst", "zh")],
)
def test_corpora_of_real_sentences_are_found(shared_data, name, language):
    [part] = plan_parts(find_inputs([str(shared_data / "data" / name)]), "auto", 2**30)
    lines = (document.text.split("\n") for document in islice(read_part(part), 100))
    texts = list(filter(None, ("\n".join(filter(str.strip, each)) for each in lines)))
    sentences = "\n\n".join("\n".join(split_sentences(text, language)) for text in texts)
    assert look_at_lines(sentences, is_whole=False).is_sure
    assert not look_at_lines("\n\n".join(texts), is_whole=False).is_likely


@pytest.mark.processes
def test_the_sample_of_the_reference_is_three_documents(shared_data, tmp_path, capsys):
    sample = shared_data / "data/bert_sample/sample_text.txt"
    words = ("build", "--input", sample, "--workers", 1, "--passes", 1, "--vocab_size", 400)
    words += ("--output", tmp_path / "data")
    assert run(*words, "--plan", "true") == run(*words) == 0
    printed = capsys.readouterr().out
    assert "about 3 documents" in printed
    held = "hold a sentence a line and blank lines between documents"
    assert f"input: 1 file(s), such as {sample}, {held}" in printed
    counters = open_dataset(str(tmp_path / "data")).manifest.counters
    assert (counters["documents"], counters["sentences"]) == (3, 31)
