"""What the input is and how it is cut: listing, formats, grouping."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.files import FileRange
from pipeline.documents.listing import would_list
from pipeline.documents.parts import InputFile, Part, choose_part_bytes, find_inputs, plan_parts
from pipeline.documents.read import read_part
from tests.counting import empty_store

URL = "memory://cut/file"
cuts = st.sets(st.integers(1, 80), max_size=6)


def write(folder: Path, **contents: str) -> None:
    for name, text in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def names(files: list[InputFile]) -> list[str]:
    return [Path(file.url).name for file in files]


def test_files_folders_and_globs(tmp_path):
    write(tmp_path, b_txt="b", a_txt="aa", c_jsonl="{}", sub__deep__d_txt="d", sub___hidden="x")
    assert find_inputs([str(tmp_path / "a.txt")]) == [InputFile(str(tmp_path / "a.txt"), 2)]
    assert names(find_inputs([str(tmp_path)])) == ["a.txt", "b.txt", "c.jsonl", "d.txt"]
    assert names(find_inputs([f"{tmp_path}/*.txt"])) == ["a.txt", "b.txt"]
    found = find_inputs([f"{tmp_path}/**/*.txt", f"{tmp_path}/a.txt"])
    assert names(found) == ["a.txt", "b.txt", "d.txt"]
    (tmp_path / "a[1].txt").write_text("a")
    assert names(find_inputs([str(tmp_path / "a[1].txt")])) == ["a[1].txt"]


def test_object_stores_are_listed_with_their_urls():
    files = {"/listed/below/two.txt": b"22", "/listed/one.txt": b"1"}
    fsspec.filesystem("memory").pipe(files)
    expected = [InputFile(f"memory://{name}", len(data)) for name, data in files.items()]
    assert find_inputs(["memory://listed"]) == expected
    assert find_inputs(["memory://listed/**/*.txt", "memory://listed/one.txt"]) == expected


def test_a_folder_leaves_out_what_only_speaks_of_the_data(tmp_path):
    about = ["README.md", "SOURCE.md", "LICENSE", "sub/Readme.txt.gz", "SHA256SUMS", "_SUCCESS"]
    about.append("a.txt.sha256")
    texts = ["a.txt", "notes.md", "readme-of-a-ship.txt", "sub/source.jsonl"]
    write(tmp_path, sub__x="x", _git__config="hidden")
    for name in [*about, *texts]:
        (tmp_path / name).write_text("x")
    left_out: list[str] = []
    found = find_inputs([str(tmp_path)], None, left_out)
    assert [file.url for file in found] == [f"{tmp_path}/{name}" for name in (*texts, "sub/x")]
    assert sorted(left_out) == sorted(f"{tmp_path}/{name}" for name in about)
    expected = ["README.md", "SOURCE.md", "notes.md"]
    assert names(find_inputs([f"{tmp_path}/*.md"], None, left_out)) == expected
    assert len(left_out) == len(about)


def test_a_folder_of_nothing_else_names_what_it_left_out(tmp_path):
    write(tmp_path, README_md="x", SOURCE_md="x")
    said = r"found no file but README\.md, SOURCE\.md, which a folder does not"
    with pytest.raises(FileNotFoundError, match=said):
        find_inputs([str(tmp_path)])


@pytest.fixture
def linked(tmp_path):
    """A folder of links: to a file, to a folder, and from that folder back up."""
    write(tmp_path, elsewhere__deep__b_txt="bb", elsewhere__c_txt="ccc", corpus__a_txt="a")
    (tmp_path / "corpus/folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/file.txt").symlink_to(tmp_path / "elsewhere/c.txt")
    (tmp_path / "elsewhere/deep/up").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "corpus"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", {"a.txt": 1, "file.txt": 3, "folder/c.txt": 3, "folder/deep/b.txt": 2}),
        ("/*.txt", {"a.txt": 1, "file.txt": 3}),
        ("/**/*.txt", {"a.txt": 1, "file.txt": 3, "folder/c.txt": 3, "folder/deep/b.txt": 2}),
        ("/folder", {"folder/c.txt": 3, "folder/deep/b.txt": 2}),
        ("/f*/c.txt", {"folder/c.txt": 3}),
    ],
)
def test_links_to_files_and_folders_are_followed(linked, pattern, expected):
    found = find_inputs([f"{linked}{pattern}"])
    assert {file.url.removeprefix(f"{linked}/"): file.size for file in found} == expected


def test_a_link_to_nothing_is_named(linked):
    (linked / "gone.txt").symlink_to(linked / "nowhere")
    said = r"gone\.txt: a link to .*nowhere, which does not exist; mend the link"
    with pytest.raises(FileNotFoundError, match=said):
        find_inputs([str(linked)])


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("corpus", "corpus/data", True),
        ("corpus", "corpus", True),
        ("corpus", "corpus-data", False),
        ("corpus/folder", "elsewhere/data", True),
        ("corpus/**", "corpus/data", True),
        ("corpus/**/*.txt", "corpus/data", True),
        ("corpus/**/*.jsonl.zst", "corpus/data", False),
        ("corpus/*.txt", "corpus/data", False),
        ("corpus/a.txt", "corpus/data", False),
        ("missing", "missing/data", False),
    ],
)
def test_a_folder_that_a_build_writes_into_is_seen_in_the_input(linked, pattern, folder, expected):
    top = linked.parent
    assert would_list(f"{top}/{pattern}", f"{top}/{folder}") == expected
    assert not would_list(f"{top}/{pattern}", f"memory://{top}/{folder}")


def test_nothing_found_names_the_pattern(tmp_path):
    for name in ("*.txt", "missing"):
        said = rf"/{re.escape(name)}: found no file; expected a file, a folder"
        with pytest.raises(FileNotFoundError, match=said):
            find_inputs([f"{tmp_path}/{name}"])
    write(tmp_path, empty_txt="")
    with pytest.raises(ValueError, match=r"found 1 file\(s\), all empty"):
        find_inputs([str(tmp_path)])


def test_small_files_are_gathered_and_large_ones_cut():
    sizes = {"/c.jsonl": 10, "/a.jsonl": 4, "/b.jsonl": 5, "/d.jsonl.zst": 99}
    files = [InputFile(url, size) for url, size in sizes.items()]
    parts = plan_parts(files, "jsonl", 9)
    assert [[(r.url, r.start, r.end, r.size) for r in part.ranges] for part in parts] == [
        [("/a.jsonl", 0, 4, 4), ("/b.jsonl", 0, 5, 5)],
        [("/c.jsonl", 0, 5, 10)],
        [("/c.jsonl", 5, 10, 10)],
        [("/d.jsonl.zst", 0, 99, 99)],
    ]
    assert [part.text_bytes for part in parts] == [9, 5, 5, 4 * 99]
    assert parts == plan_parts(files[::-1], "jsonl", 9)
    assert len({part.key for part in parts}) == 4
    assert len(plan_parts(files, "text", 1)) == 4


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ({"/a.txt": 2**30}, 2**25, 2**25),
        ({"/a.txt": 2**26}, 2**25, 2**21),
        ({"/a.txt.zst": 2**24, "/b.txt": 2**26}, 2**25, 2**22),
        ({"/a.txt": 9}, 2**25, 2**20),
        ({"/a.txt": 9}, 2**14, 2**14),
    ],
)
def test_a_small_corpus_has_small_parts(sizes, most, expected):
    files = [InputFile(url, size) for url, size in sizes.items()]
    assert choose_part_bytes(files, most) == expected


def test_the_key_of_a_part_is_fixed():
    part = Part((FileRange("/a.jsonl", 0, 5, 9, "jsonl"),))
    assert part.key == "c6b85679e83a81f9b3ff1a985cc5e433"
    assert part.key != Part((FileRange("/a.jsonl", 0, 5, 9, "text"),)).key


def test_formats_are_found_by_one_request_a_file():
    store = empty_store()
    store.pipe({f"/many/{number:03d}.jsonl": b'{"text": "a"}\n' for number in range(100)})
    files = find_inputs(["counted://many"])
    store.requests.clear()
    plan_parts(files, "auto", 2**20)
    assert store.kinds() == {"cat_file": 100}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "Some text.\n\nMore.", "text"),
        ("a.txt", "", "text"),
        ("a.ndjson", "", "jsonl"),
        ("a.jsonl", '{"text": ""}', "jsonl"),
        ("a.json", ' {"text": ""}', "jsonl"),
        ("a.json", '{"index":{"_type":"_doc","_id":"1"}}\n{"text": ""}', "cirrus"),
        ("a.json", '{"index": {"text": ""}}', "jsonl"),
        ("a", '\ufeff\n<doc id="1">\n', "wikiextractor"),
        ("a.tex", "{\\bf bold}", "text"),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_auto_looks_at_names_and_first_bytes(tmp_path, name, text, expected, is_compressed):
    path = tmp_path / (name + ".zst" * is_compressed)
    path.write_bytes(zstandard.compress(text.encode()) if is_compressed else text.encode())
    [part] = plan_parts([InputFile(str(path), path.stat().st_size)], "auto", 100)
    assert part.ranges[0].format == expected


def read_cut(data: bytes, text_format: str, cuts: Iterable[int]) -> Iterator[str]:
    fsspec.filesystem("memory").pipe("/cut/file", data)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    skipped: dict[str, int] = {}
    for start, end in pairwise(bounds):
        part = Part((FileRange(URL, start, end, len(data), text_format),))
        for document in read_part(part, on_bad_document="skip", skipped=skipped):
            yield document.text
    yield from (f"{reason}: {count}" for reason, count in sorted(skipped.items()))


def lines_of(choices: list[str]) -> st.SearchStrategy[bytes]:
    body = st.lists(st.sampled_from(choices), max_size=12).map("".join)
    body |= body.map(lambda text: text.removesuffix("\n"))
    return (body | body.map("\ufeff".__add__)).map(str.encode)


@given(data=lines_of(["one\n", "two words\n", "\n", " \t\n", "\r\n", "é力\r\n"]), cuts=cuts)
def test_any_cut_of_blank_line_text_gives_the_same_documents(data, cuts):
    whole = list(read_cut(data, "text-blank-lines", []))
    assert list(read_cut(data, "text-blank-lines", cuts)) == whole
    lines = data.decode().removeprefix("\ufeff").split("\n")
    assert "".join(whole).replace("\n", "") == "".join(line for line in lines if line.strip())


LINES_OF_FORMATS = {
    "jsonl": ['{"text": "a"}\n', '{"text": ""}\r\n', "\n", '{"text": "é\\n"}\n', "bad\n", "[1]\n"],
    "cirrus": ['{"index":{"_id":"1"}}\n', '{"text": "a"}\n', "\n", '{"text": "é\\n"}\r\n', "bad\n"],
    "wikiextractor": ['<doc id="1" title="T">\n', "T\n", "\n", "body\n", "</doc>\n"],
}
LINES_OF_FORMATS["sentence-lines"] = ["One. Two.\n", "Three\r\n", "\n", " \t\n", "é力\n"]
LINES_OF_FORMATS["wikiextractor"].append('<doc id="2" title="T">\nT\nbody\n</doc>\n')


@pytest.mark.parametrize("text_format", LINES_OF_FORMATS)
@given(data=st.data(), cuts=cuts)
def test_any_cut_gives_the_same_documents(text_format, data, cuts):
    text = data.draw(lines_of(LINES_OF_FORMATS[text_format]))
    assert list(read_cut(text, text_format, cuts)) == list(read_cut(text, text_format, []))


@pytest.mark.parametrize(
    ("name", "text_format"),
    [("wiki_zh/wiki_zh_00.txt", "wikiextractor"), ("wikinews_en/wikinews_en_00.jsonl", "jsonl")],
)
def test_real_corpora_are_the_same_in_parts_of_any_size(shared_data, tmp_path, name, text_format):
    packed, path = shared_data / f"data/{name}.zst", tmp_path / Path(name).name
    path.write_bytes(zstandard.decompress(packed.read_bytes(), 2**26))
    texts = []
    for file, part_bytes in ((packed, 1), (path, 2**30), (path, 100_000), (path, 7_919)):
        parts = plan_parts(find_inputs([str(file)]), "auto", part_bytes)
        assert {r.format for part in parts for r in part.ranges} == {text_format}
        texts.append([document.text for part in parts for document in read_part(part)])
    assert texts == [texts[0]] * 4


@given(
    data=lines_of(['{"text": "a"}\n', '{"text": "力力力力"}\r\n', "\n", "bad\n"]),
    cuts=cuts,
    encoding=st.sampled_from(["utf-16-le", "utf-16-be"]),
)
def test_any_cut_of_utf16_gives_the_documents_of_utf8(data, cuts, encoding):
    text = "\ufeff" + data.decode().removeprefix("\ufeff")
    assert list(read_cut(text.encode(encoding), "jsonl", cuts)) == list(read_cut(data, "jsonl", []))
