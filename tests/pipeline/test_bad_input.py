"""Every wrong input: one clear message, exit code 2, nothing that looks like a dataset."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset
from pipeline.storage.local import scratch_folder
from tests.pipeline import programs
from tests.pipeline.programs import write_texts

pytestmark = pytest.mark.processes


@pytest.fixture
def run(capsys):
    """Exit code, and all that is printed."""
    return lambda *words: (programs.run(*words), "".join(capsys.readouterr()))


@pytest.fixture
def refused(run, tmp_path):
    """Asserts that words are refused, by which message."""

    def call(words, *said, output=tmp_path / "data"):
        code, message = run(*words)
        assert code == 2, message
        for each in said:
            assert each in message
        assert "Traceback" not in message
        assert not (output / "manifest.json").exists()

    return call


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    """A finished dataset, to be copied, and the flags that it was built with."""
    output = tmp_path_factory.mktemp("built") / "data"
    flags = ("--input", corpus, "--vocab", vocab_file, "--workers", 1, "--passes", 1)
    assert programs.run("build", *flags, "--output", output) == 0
    return output, flags


def test_missing_and_empty_input(refused, tmp_path):
    output = ("--output", tmp_path / "data")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "none.xml").write_text("<mediawiki></mediawiki>")
    refused(("build", "--input", tmp_path / "no*.txt", *output), "no*.txt")
    refused(("build", *output), "--input")
    refused(("build", "--input", tmp_path / "empty.txt", *output), "empty.txt")
    said = f"no word was found in 0 of 0 documents; no text came from {tmp_path}/none.xml"
    refused(("build", "--input", tmp_path / "none.xml", "--workers", 1, *output), said)


@pytest.mark.parametrize("flag", ["--output", "--tokens"])
def test_output_in_the_input(refused, texts, vocab_file, tmp_path, flag):
    (tmp_path / "a.txt").write_text(texts[0])
    output = tmp_path.parent / f"{tmp_path.name}-data" if flag == "--tokens" else tmp_path / "data"
    flags = ("--vocab", vocab_file, "--output", output)
    flags += (flag, tmp_path / "t") if flag == "--tokens" else ()
    said = f"{flag} {tmp_path}/", "lies in the input"
    refused(("build", "--input", tmp_path, *flags), *said, output=output)


def test_what_a_folder_leaves_out_is_said(run, texts, vocab_file, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(texts[number])
    (folder / "README.md").write_text("What these texts are.")
    flags = ("--vocab", vocab_file, "--output", tmp_path / "data", "--plan", "true")
    code, said = run("build", "--input", folder, *flags)
    assert code == 0
    left_out = (
        f"input: 1 file(s) of the folders speak of the data and are left out: {folder}/README"
    )
    assert left_out in said
    assert "about 4 documents" in said


@pytest.mark.parametrize("workers", [1, 2])
def test_malformed_input_names_file_and_line(run, refused, corpus, vocab_file, tmp_path, workers):
    bad, output = tmp_path / "bad.jsonl", tmp_path / "data"
    bad.write_text('{"text": "Fine."}\n{"title": "No text."}\n')
    flags = ("--vocab", vocab_file, "--workers", workers, "--output", output)
    words = ("build", "--input", corpus, bad, *flags)
    refused(words, f"{bad}:2", "text")
    if workers == 2:
        assert run(*words, "--on_bad_document", "skip", "--passes", 1)[0] == 0
        counters = json.loads((output / "manifest.json").read_text())["counters"]
        assert counters["documents"] == 121
        assert sum(count for name, count in counters.items() if name.startswith("dropped")) == 1


def test_text_that_is_not_utf8(refused, vocab_file, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"first line\nsecond \xff line\n")
    flags = ("--workers", 1, "--output", tmp_path / "data", "--format", "lines")
    refused(("build", "--input", bad, "--vocab", vocab_file, *flags), f"{bad}:2", "UTF-8")


def test_files_and_documents_without_text_are_counted_and_named(run, texts, vocab_file, tmp_path):
    news, dumps = tmp_path / "news", tmp_path / "dumps"
    for folder in (news, dumps):
        folder.mkdir()
    write_texts(news / "a.jsonl", [*texts[:30], " ", "\n"])
    (news / "blank.txt").write_text(" \n")
    (dumps / "none.xml").write_text("<mediawiki></mediawiki>")
    redirect = "<page><title>A</title><redirect/><revision><text>x</text></revision></page>"
    page = f"<page><revision><text>{texts[40]}</text></revision></page>"
    (dumps / "some.xml").write_text(f"<mediawiki>{redirect}{page}</mediawiki>")
    sources = [{"name": name, "input": [str(tmp_path / name)]} for name in ("news", "dumps")]
    (tmp_path / "c.yaml").write_text(json.dumps({"sources": sources, "passes": 1, "workers": 1}))
    flags = ("--config", tmp_path / "c.yaml", "--vocab", vocab_file, "--output", tmp_path / "data")
    for command in ("tokens", "shards", "build"):
        code, printed = run(command, *flags)
        assert code == 0
        assert "%|" not in printed, "no bar is drawn into a pipe"
        assert "news: 30 documents of " in printed
        assert "dumps: 1 documents of " in printed
        assert "3 of 35 documents have no text: news 3\n" in printed
        assert "1 of 35 documents are redirects: dumps 1\n" in printed
        assert f"2 input file(s) gave no text: {dumps}/none.xml, {news}/blank.txt\n" in printed
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    counted = [manifest["counters"], *(source["counters"] for source in manifest["sources"])]
    assert [counters["files_without_text"] for counters in counted] == [2, 1, 1]
    for counters in counted:
        dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
        assert counters["documents_read"] == counters["documents"] + dropped


def test_fewer_than_four_documents_are_built_without_validation(run, texts, vocab_file, tmp_path):
    folder, output = tmp_path / "three", tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        folder.joinpath(f"{number}.txt").write_text(texts[number])
    flags = ("--vocab", vocab_file, "--workers", 1, "--passes", 1, "--output")
    code, said = run("build", "--input", folder, *flags, output)
    assert code == 0
    assert "warning: 3 documents: no validation split, at least 4 are needed" in said
    assert [group.split for group in open_dataset(str(output)).manifest.groups] == ["train"]


def test_unknown_keys_and_wrong_values(refused, corpus, tmp_path):
    config, vocab = tmp_path / "data.yaml", tmp_path / "vocab.txt"
    config.write_text("vocab_sise: 8000\n")
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nriver\n")
    words = ("build", "--input", corpus, "--output", tmp_path / "data")
    refused((*words, "--config", config), "vocab_sise", "vocab_size")
    refused((*words, "--passes", "many"), "passes")
    refused((*words, "--format", "pdf"), "wikiextractor")
    refused((*words, "--masked_lm_prob", "1.5"), "must be above 0 and below 1")
    refused((*words, "--vocab", vocab), str(vocab), "[MASK]")


def test_a_folder_of_other_settings(run, built, corpus):
    output, flags = built
    manifest = (output / "manifest.json").read_bytes()
    for change, said in (
        (("--seed", 7), "seed was 12345 and is now 7"),
        (("--lower_case", "false"), "lower_case"),
        (("--input", corpus / "a.jsonl"), "documents_hash"),
    ):
        kept = flags[2:] if "--input" in change else flags
        code, message = run("build", *kept, "--output", output, *change)
        assert code == 2
        assert said in message
    assert (output / "manifest.json").read_bytes() == manifest


def test_a_folder_that_is_no_dataset(refused, tmp_path):
    for command in ("verify", "inspect", "report"):
        refused((command, tmp_path), str(tmp_path), "manifest.json", output=tmp_path)


def flip(data):
    place = len(data) // 3
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train/L128/pass-00/shard-00000.tar", flip, "block"),
        ("train/L128/pass-00/shard-00000.tar", lambda data: data[:-700], "truncated"),
        ("train/L128/pass-00/shard-00000.tar", None, "shard-00000.tar"),
        ("train/L128/pass-00/pass.json", flip, "pass.json"),
        ("train/L128/pass-00/foreign.tar", lambda _: b"", "foreign file"),
        ("vocab.txt", flip, "vocab.txt"),
        ("shards.parquet", flip, "shards.parquet"),
        ("blocks.parquet", flip, "blocks.parquet"),
        ("manifest.json", lambda data: data[:-700], "manifest.json"),
    ],
)
def test_damage_is_found_and_named(run, built, tmp_path, name, change, said):
    shutil.copytree(built[0], tmp_path / "data", ignore=shutil.ignore_patterns("tokens"))
    path = tmp_path / "data" / name
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(change(data)) if change else path.unlink()
    code, shown = run("verify", tmp_path / "data")
    assert code == 2
    assert said in shown


@pytest.mark.parametrize("place", ["file", "file/data", "/proc/1/data"])
def test_an_output_that_nothing_can_be_written_into(run, texts, tmp_path, place):
    """Said before any work."""
    (tmp_path / "a.txt").write_text(texts[0])
    (tmp_path / "file").write_text("")
    code, said = run("build", "--input", tmp_path / "a.txt", "--output", tmp_path / place)
    assert code == 2
    assert "Traceback" not in said
    assert said.count(f"{place}: nothing can be written there: No") == 1


def test_what_changed_since_a_build_that_failed_is_named(run, texts, tmp_path):
    output, first, second = tmp_path / "data", tmp_path / "in/a.txt", tmp_path / "in/b.txt"
    first.parent.mkdir()
    first.write_text(texts[0])
    words = ("--input", first.parent, "--output", output, "--vocab_size", 100, "--workers", 1)
    assert run("tokens", *words)[0] == 0
    first.write_text(texts[0] + "Mended.")
    second.write_text(texts[1])
    code, said = run("build", *words)
    assert code == 2
    size = len(texts[0])
    assert f"made otherwise: {first} had {size} bytes and has {size + 7}, {second} is new;" in said
    assert f"delete {output}/vocab.json, and the same command does the rest" in said
    (output / "vocab.json").unlink()
    assert run("build", *words)[0] == 0


def test_temporary_files_are_private_and_those_of_killed_builds_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder("data"):
        own = Path(tempfile.gettempdir())
        assert own.stat().st_mode & 0o777 == 0o700
        Path(f"{own}-killed").mkdir()
        Path(f"{own}-linked").symlink_to(tmp_path)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with scratch_folder("data"):
            assert own.is_dir()
            assert not Path(f"{own}-killed").exists()
    assert list(tmp_path.iterdir()) == [Path(f"{own}-linked")]
