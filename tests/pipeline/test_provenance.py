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
from tests.pipeline.programs import run

pytestmark = pytest.mark.processes


@pytest.fixture
def copied(mixture, tmp_path):
    return Path(shutil.copytree(mixture.folder.path, tmp_path / "data"))


def build(config, vocab_file, output, *flags, command="build"):
    words = ("--config", config, "--vocab", vocab_file, "--output", output)
    return run(command, *words, "--workers", 1, *flags)


def id_of(text):
    return document_id(clean_text(text)).hex()


def test_every_document_is_found_where_it_stands(mixture, mixture_config, texts):
    tokens = find_tokens(mixture)
    assert len(tokens.store["part_names"]) > 4
    found = find_documents(tokens, [id_of(text)[:16] for text in texts])
    for number, text in enumerate(texts):
        copies = found[id_of(text)[:16]]
        assert copies[0].id.hex() == id_of(text)
        assert copies[0].cleaned_bytes == len(clean_text(text).encode())
        assert [copy.source for copy in copies] == [0] * (number < 70) + [1] * (number >= 60)
        for copy in copies:
            name = ("news", "books")[copy.source]
            file = mixture_config.with_name(f"{name}.jsonl")
            place, lines = copy.place.removeprefix(str(file)), file.read_bytes()
            if place.startswith(":"):
                line = lines.split(b"\n")[int(place[1:]) - 1]
            else:
                line = lines[int(place.removeprefix(", byte ")) :].split(b"\n")[0]
            assert json.loads(line)[name] == text


def test_one_document_takes_small_reads_and_one_table_of_places(mixture, texts, monkeypatch):
    tokens, read = find_tokens(mixture), []
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


def test_documents_are_shown_with_source_place_size_and_uses(
    mixture, mixture_config, texts, capsys
):
    [shard] = mixture.shards("validation", 64, 0)
    held_out = {int(each) for block in read_blocks(mixture, shard) for each in block.document_a}
    train = [text for text in texts if int(id_of(text)[:16], 16) not in held_out]
    one, two = (next(each for each in train if each in own) for own in (texts[:60], texts[70:]))
    assert run("inspect", mixture.url, "--documents", id_of(two)[:16], id_of(one)) == 0
    shown, folder = capsys.readouterr().out.split("\n"), mixture_config.parent
    assert shown[0] == id_of(two)
    assert shown[1].startswith(f"  from      books (de), {folder}/books.jsonl")
    assert shown[2].endswith(f" tokens, 12 sentences, {len(clean_text(two).encode())} bytes")
    assert shown[3] == "  used      3 time(s) in each of 2 pass(es)"
    assert shown[5].startswith(f"  from      news (en), {folder}/news.jsonl")
    assert shown[7] in [f"  used      {each} times in passes 0 to 1" for each in ("1, 0", "0, 1")]
    words = ("--documents", f"{min(held_out):016x}", id_of(texts[60]))
    assert run("inspect", mixture.url, *words) == 0
    shown = capsys.readouterr().out
    assert "  used      for validation, once\n" in shown
    assert f"  copy      books (de), {folder}/books.jsonl:1\n" in shown


def test_what_is_no_document_is_refused(mixture, capsys):
    unknown, short = "has an id that begins with 12345678", "expected 8 to 32 hex digits"
    for start, said in (("12345678", unknown), ("abc", short), ("WXYZ" * 4, "hex")):
        assert run("inspect", mixture.url, "--documents", start) == 2
        assert said in capsys.readouterr().err


def test_instances_are_shown_with_where_they_come_from(mixture, mixture_config, capsys):
    assert run("inspect", mixture.url, "--num_instances", 3) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n  A is from ") == shown.count("\n  B is from ") == 3
    assert f"{mixture_config.parent}/books.jsonl" in shown


def test_without_tokens_places_are_said_to_be_unknown(copied, capsys):
    shutil.rmtree(copied / "tokens")
    assert run("inspect", copied, "--num_instances", 1) == 0
    shown = capsys.readouterr().out
    assert "A is from" not in shown
    gone = "the encoded documents (tokens/), which say it, are gone"
    assert f"where documents come from is not known: {gone}" in shown
    assert run("inspect", copied, "--documents", "12345678") == 2
    assert "build again to find out" in capsys.readouterr().err


def test_tokens_kept_elsewhere_are_found(mixture_config, vocab_file, texts, tmp_path, capsys):
    flags = ("--tokens", tmp_path / "elsewhere")
    assert build(mixture_config, vocab_file, tmp_path / "data", *flags) == 0
    assert run("inspect", tmp_path / "data", "--documents", id_of(texts[0])) == 0
    assert f"news (en), {mixture_config.parent}/news.jsonl:1\n" in capsys.readouterr().out


def test_a_killed_build_heals_with_its_places(mixture, copied, mixture_config, vocab_file, texts):
    """As a kill leaves a part: without its record, and with half of another writer's places."""
    tokens = copied / "tokens"
    lost = sorted(tokens.glob("*-last.json"))[1]
    stem = lost.name.removesuffix("-last.json")
    for name in (lost.name, "tokens.json", f"{stem}.index", "../manifest.json"):
        (tokens / name).unlink()
    (tokens / f"{stem}.places").write_bytes(b"PAR1")
    (tokens / "0123-00000.places").write_bytes(b"of an interrupted task")
    assert build(mixture_config, vocab_file, copied) == 0
    healed = open_dataset(str(copied))
    assert healed.manifest.root_hash == mixture.manifest.root_hash
    assert not (tokens / "0123-00000.places").exists()
    assert all(find_documents(find_tokens(healed), list(map(id_of, texts))).values())


def test_places_may_have_any_name(tmp_path):
    one = np.ones(1, np.uint16)
    assert b"PAR1" in pack_places([TokenizedDocument(bytes(16), 1, one, one, 3, "/a\udcff/b:1")])


def test_tokens_of_an_earlier_version_are_refused_and_not_shown(
    copied, mixture_config, vocab_file, capsys
):
    for name in ("tokens.json", "settings.json"):
        path = copied / "tokens" / name
        fields = json.loads(path.read_text())
        fields.get("settings", fields).pop("layout")
        path.write_text(json.dumps(fields))
    assert find_tokens(open_dataset(str(copied))) is None
    assert build(mixture_config, vocab_file, copied) == 2
    assert "layout was None and is now 4" in capsys.readouterr().err
    assert build(mixture_config, vocab_file, copied, command="shards") == 2
    assert "of an earlier version; delete" in capsys.readouterr().err
