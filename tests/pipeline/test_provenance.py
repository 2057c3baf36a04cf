"""From a document's id back to its source, file and place, by few small reads."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import clean_text, document_id
from pipeline.tokens.provenance import find_documents, find_tokens, pack_places
from pipeline.tokens.token_parts import TokenizedDocument
from tests.pipeline.programs import run, write_texts


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    """Two sources of which the second is used in every second pass; they share text 60."""
    folder = tmp_path_factory.mktemp("provenance")
    write_texts(folder / "news.jsonl", texts[:61])
    write_texts(folder / "books.jsonl", texts[60:])
    sources = [
        {"name": "news", "input": [f"{folder}/news.jsonl"], "language": "de"},
        {"name": "books", "input": [f"{folder}/books.jsonl"], "weight": 0.5},
    ]
    settings = {"sources": sources, "passes": 3, "seq_lens": [64], "part_bytes": 8192}
    (folder / "config.yaml").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def built(folder, vocab_file):
    assert run("build", *flags(folder, vocab_file, folder / "data")) == 0
    return open_dataset(str(folder / "data"))


def flags(folder, vocab_file, output):
    settings = ("--config", folder / "config.yaml", "--vocab", vocab_file)
    return (*settings, "--workers", 1, "--output", output)


@pytest.fixture
def copied(built, tmp_path):
    return Path(shutil.copytree(built.folder.path, tmp_path / "data"))


def id_of(text):
    return document_id(clean_text(text)).hex()


@pytest.mark.processes
def test_every_document_is_found_where_it_stands(built, folder, texts):
    tokens = find_tokens(built)
    assert len(tokens.store["part_names"]) > 4
    found = find_documents(tokens, [id_of(text)[:16] for text in texts])
    for number, text in enumerate(texts):
        copies = found[id_of(text)[:16]]
        assert copies[0].id.hex() == id_of(text)
        assert copies[0].cleaned_bytes == len(clean_text(text).encode())
        assert [copy.source for copy in copies] == ([0, 1] if number == 60 else [int(number > 60)])
        for copy in copies:
            file = folder / ("news.jsonl", "books.jsonl")[copy.source]
            place, lines = copy.place.removeprefix(str(file)), file.read_bytes()
            if place.startswith(":"):
                line = lines.split(b"\n")[int(place[1:]) - 1]
            else:
                line = lines[int(place.removeprefix(", byte ")) :].split(b"\n")[0]
            assert json.loads(line)["text"] == text


@pytest.mark.processes
def test_one_document_takes_small_reads_and_one_table_of_places(built, texts, monkeypatch):
    tokens, read = find_tokens(built), []
    original = tokens.folder.filesystem.cat_file

    def cat_file(path, start=None, end=None, **rest):
        read.append((path.rsplit(".", 1)[1], path, end - start))
        return original(path, start=start, end=end, **rest)

    monkeypatch.setattr(tokens.folder.filesystem, "cat_file", cat_file)
    monkeypatch.setattr(Folder, "is_local", False)  # as on a store
    assert len(find_documents(tokens, [id_of(texts[3])])[id_of(texts[3])]) == 1
    assert {kind for kind, _, _ in read} == {"index", "rows", "places"}
    assert sum(size for kind, _, size in read if kind == "index") < 500
    assert len({path for kind, path, _ in read if kind == "places"}) == 1


@pytest.mark.processes
def test_documents_are_shown_with_source_place_size_and_uses(built, folder, texts, capsys):
    [shard] = built.shards("validation", 64, 0)
    held_out = {int(each) for block in read_blocks(built, shard) for each in block.document_a}
    train = [text for text in texts if int(id_of(text)[:16], 16) not in held_out]
    one, two = (next(each for each in train if each in own) for own in (texts[:60], texts[61:]))
    capsys.readouterr()
    assert run("inspect", built.url, "--documents", id_of(one)[:16], id_of(two)) == 0
    shown = capsys.readouterr().out.split("\n")
    assert shown[0] == id_of(one)
    assert shown[1].startswith(f"  from      news (de), {folder}/news.jsonl")
    assert shown[2].endswith(f" tokens, 12 sentences, {len(clean_text(one).encode())} bytes")
    assert shown[3] == "  used      1 time(s) in each of 3 pass(es)"
    assert shown[5].startswith(f"  from      books (en), {folder}/books.jsonl")
    uses = [f"  used      {each} times in passes 0 to 2" for each in ("1, 0, 1", "0, 1, 0")]
    assert shown[7] in uses
    assert run("inspect", built.url, "--documents", f"{min(held_out):016x}", id_of(texts[60])) == 0
    shown = capsys.readouterr().out
    assert "  used      for validation, once\n" in shown
    assert f"  copy      books (en), {folder}/books.jsonl:1\n" in shown


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("12345678", "has an id that begins with 12345678"),
        ("abc", "expected 8 to 32 hex digits"),
        ("WXYZ" * 4, "hex"),
    ],
)
def test_what_is_no_document_is_refused(built, capsys, start, said):
    assert run("inspect", built.url, "--documents", start) == 2
    assert said in capsys.readouterr().err


@pytest.mark.processes
def test_instances_are_shown_with_where_they_come_from(built, folder, capsys):
    assert run("inspect", built.url, "--num_instances", 3) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n  A is from ") == shown.count("\n  B is from ") == 3
    assert f"{folder}/news.jsonl" in shown


@pytest.mark.processes
def test_without_tokens_places_are_said_to_be_unknown(copied, capsys):
    shutil.rmtree(copied / "tokens")
    assert run("inspect", copied, "--num_instances", 1) == 0
    shown = capsys.readouterr().out
    assert "A is from" not in shown
    gone = "the encoded documents (tokens/), which say it, are gone"
    assert f"where documents come from is not known: {gone}" in shown
    assert run("inspect", copied, "--documents", "12345678") == 2
    assert "build again to find out" in capsys.readouterr().err


@pytest.mark.processes
def test_tokens_kept_elsewhere_are_found(folder, vocab_file, texts, tmp_path, capsys):
    words = flags(folder, vocab_file, tmp_path / "data")
    assert run("build", *words, "--tokens", tmp_path / "elsewhere") == 0
    assert run("inspect", tmp_path / "data", "--documents", id_of(texts[0])) == 0
    assert f"news (de), {folder}/news.jsonl:1\n" in capsys.readouterr().out


@pytest.mark.processes
def test_a_killed_build_heals_with_its_places(built, copied, folder, vocab_file, texts):
    """As a kill leaves a part: without its record, and with half of another writer's places."""
    tokens = copied / "tokens"
    lost = sorted(tokens.glob("*-last.json"))[1]
    stem = lost.name.removesuffix("-last.json")
    for name in (lost.name, "tokens.json", f"{stem}.index", "../manifest.json"):
        (tokens / name).unlink()
    (tokens / f"{stem}.places").write_bytes(b"PAR1")
    (tokens / "0123-00000.places").write_bytes(b"of an interrupted task")
    assert run("build", *flags(folder, vocab_file, copied)) == 0
    healed = open_dataset(str(copied))
    assert healed.manifest.root_hash == built.manifest.root_hash
    assert not (tokens / "0123-00000.places").exists()
    found = find_documents(find_tokens(healed), [id_of(text) for text in texts])
    assert all(found.values())


def test_places_may_have_any_name(tmp_path):
    one = np.ones(1, np.uint16)
    document = TokenizedDocument(bytes(16), 1, one, one, 3, "/a\udcff/b:1")
    assert b"PAR1" in pack_places([document])


@pytest.mark.processes
def test_tokens_of_an_earlier_version_are_refused_and_not_shown(copied, folder, vocab_file, capsys):
    for name in ("tokens.json", "settings.json"):
        path = copied / "tokens" / name
        fields = json.loads(path.read_text())
        fields.get("settings", fields).pop("layout")
        path.write_text(json.dumps(fields))
    assert find_tokens(open_dataset(str(copied))) is None
    for command, said in (
        ("build", "layout was None and is now 4"),
        ("shards", "of an earlier version; delete"),
    ):
        assert run(command, *flags(folder, vocab_file, copied)) == 2
        assert said in capsys.readouterr().err
