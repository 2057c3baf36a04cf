"""Every wrong input: one clear message, exit code 2, and nothing that looks like a finished dataset."""

import json
import tempfile
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset
from pipeline.storage.local import scratch_folder

pytestmark = pytest.mark.processes


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = run_program(
            "python -m pipeline", "Tests.", COMMANDS, [str(argument) for argument in arguments]
        )
        return code, "".join(capsys.readouterr())

    return call


def assert_refused(result, output, *said):
    code, message = result
    assert code == 2, message
    for words in said:
        assert words in message
    assert "Traceback" not in message
    assert not (output / "manifest.json").exists()


def test_missing_input(run, tmp_path):
    output = tmp_path / "data"
    assert_refused(
        run("build", "--input", tmp_path / "no*.txt", "--output", output), output, "no*.txt"
    )
    assert_refused(run("build", "--output", output), output, "--input")


def test_empty_input(run, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    output = tmp_path / "data"
    assert_refused(
        run("build", "--input", tmp_path / "empty.txt", "--output", output), output, "empty.txt"
    )


@pytest.mark.parametrize("flag", ["--output", "--tokens"])
def test_output_in_the_input(run, texts, vocab_file, tmp_path, flag):
    (tmp_path / "a.txt").write_text(texts[0])
    output = tmp_path.parent / f"{tmp_path.name}-data" if flag == "--tokens" else tmp_path / "data"
    flags = (
        "--vocab",
        vocab_file,
        "--output",
        output,
        *((flag, tmp_path / "t") if flag == "--tokens" else ()),
    )
    assert_refused(
        run("build", "--input", tmp_path, *flags),
        output,
        f"{flag} {tmp_path}/",
        "lies in the input",
    )


def test_what_a_folder_leaves_out_is_said(texts, vocab_file, tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(texts[number])
    (folder / "README.md").write_text("What these texts are.")
    flags = ("--vocab", vocab_file, "--output", tmp_path / "data", "--plan", "true")
    words = [str(word) for word in ("build", "--input", folder, *flags)]
    assert run_program("python -m pipeline", "Tests.", COMMANDS, words) == 0
    printed = capsys.readouterr().out
    assert (
        f"input: 1 file(s) of the folders speak of the data and are left out: {folder}/README.md; name"
        in printed
    )
    assert "about 4 documents" in printed


@pytest.mark.parametrize("workers", [1, 2])
def test_malformed_input_names_file_and_line(run, corpus, vocab_file, tmp_path, workers):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "Fine."}\n{"title": "No text."}\n')
    output = tmp_path / "data"
    flags = ("--vocab", vocab_file, "--workers", workers, "--output", output)
    assert_refused(run("build", "--input", corpus, bad, *flags), output, f"{bad}:2", "text")
    assert (
        run("build", "--input", corpus, bad, *flags, "--on_bad_document", "skip", "--passes", 1)[0]
        == 0
    )
    counters = json.loads((output / "manifest.json").read_text())["counters"]
    assert counters["documents"] == 121
    assert sum(count for name, count in counters.items() if name.startswith("dropped")) == 1


def test_text_that_is_not_utf8(run, vocab_file, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"first line\nsecond \xff line\n")
    output = tmp_path / "data"
    words = ("--vocab", vocab_file, "--workers", 1, "--output", output, "--format", "lines")
    assert_refused(run("build", "--input", bad, *words), output, f"{bad}:2", "UTF-8")


def test_files_and_documents_without_text_are_counted_and_named(
    run, texts, vocab_file, tmp_path, capsys
):
    news, dumps = tmp_path / "news", tmp_path / "dumps"
    for folder in (news, dumps):
        folder.mkdir()
    lines = [json.dumps({"text": text}) for text in [*texts[:30], " ", "\n"]]
    (news / "a.jsonl").write_text("\n".join(lines))
    (news / "blank.txt").write_text(" \n")
    (dumps / "none.xml").write_text("<mediawiki></mediawiki>")
    redirect = "<page><title>A</title><redirect/><revision><text>x</text></revision></page>"
    (dumps / "some.xml").write_text(
        f"<mediawiki>{redirect}<page><revision><text>{texts[40]}</text></revision></page></mediawiki>"
    )
    sources = [{"name": name, "input": [str(tmp_path / name)]} for name in ("news", "dumps")]
    (tmp_path / "c.yaml").write_text(json.dumps({"sources": sources, "passes": 1, "workers": 1}))
    flags = ("--config", tmp_path / "c.yaml", "--vocab", vocab_file, "--output", tmp_path / "data")
    for command in ("tokens", "shards", "build"):
        assert (
            run_program("python -m pipeline", "Tests.", COMMANDS, [command, *map(str, flags)]) == 0
        )
        printed = capsys.readouterr().out
        assert "news: 30 documents of " in printed
        assert "dumps: 1 documents of " in printed
        assert "3 of 35 documents have no text: news 3\n" in printed
        assert "1 of 35 documents are redirects: dumps 1\n" in printed
        assert f"2 input file(s) gave no text: {dumps}/none.xml, {news}/blank.txt\n" in printed
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    assert manifest["counters"]["files_without_text"] == 2
    assert [source["counters"].get("files_without_text") for source in manifest["sources"]] == [
        1,
        1,
    ]
    for counters in (manifest["counters"], *(source["counters"] for source in manifest["sources"])):
        dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
        assert counters["documents_read"] == counters["documents"] + dropped


def test_input_without_a_word_names_its_files(run, tmp_path):
    (tmp_path / "none.xml").write_text("<mediawiki></mediawiki>")
    output = tmp_path / "data"
    result = run("build", "--input", tmp_path / "none.xml", "--workers", 1, "--output", output)
    assert_refused(
        result,
        output,
        f"no word was found in 0 of 0 documents; no text came from {tmp_path}/none.xml",
    )


def test_fewer_than_four_documents_are_built_without_validation(run, texts, vocab_file, tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    for number in range(3):
        folder.joinpath(f"{number}.txt").write_text(texts[number])
    output = tmp_path / "data"
    flags = ("--vocab", vocab_file, "--workers", 1, "--passes", 1, "--output", output)
    code, said = run("build", "--input", folder, *flags)
    assert code == 0
    assert "warning: 3 documents: no validation split, at least 4 are needed" in said
    assert [group.split for group in open_dataset(str(output)).manifest.groups] == ["train"]
    alone = run("build", "--input", folder / "0.txt", *flags[:-1], tmp_path / "one")
    assert_refused(alone, tmp_path / "one", "0.txt: is one document")


def test_unknown_keys_and_wrong_types(run, corpus, tmp_path):
    output = tmp_path / "data"
    config = tmp_path / "data.yaml"
    config.write_text("vocab_sise: 8000\n")
    flags = ("--input", corpus, "--output", output)
    assert_refused(run("build", *flags, "--config", config), output, "vocab_sise", "vocab_size")
    assert_refused(run("build", *flags, "--passes", "many"), output, "passes")
    assert_refused(run("build", *flags, "--format", "pdf"), output, "wikiextractor")
    assert_refused(
        run("build", *flags, "--masked_lm_prob", "1.5"), output, "must be above 0 and below 1"
    )


def test_a_vocabulary_without_mask(run, corpus, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nriver\n")
    output = tmp_path / "data"
    assert_refused(
        run("build", "--input", corpus, "--vocab", vocab, "--output", output),
        output,
        str(vocab),
        "[MASK]",
    )


def test_a_folder_of_other_settings(run, corpus, vocab_file, tmp_path):
    output = tmp_path / "data"
    flags = (
        "--input",
        corpus,
        "--vocab",
        vocab_file,
        "--workers",
        1,
        "--passes",
        1,
        "--output",
        output,
    )
    assert run("build", *flags)[0] == 0
    manifest = (output / "manifest.json").read_bytes()
    for change, said in (
        (("--seed", 7), "seed was 12345 and is now 7"),
        (("--lower_case", "false"), "lower_case"),
    ):
        code, message = run("build", *flags, *change)
        assert code == 2
        assert said in message
    code, message = run("build", "--input", corpus / "a.jsonl", *flags[2:])
    assert code == 2
    assert "documents_hash" in message
    assert (output / "manifest.json").read_bytes() == manifest


def test_a_folder_that_is_no_dataset(run, tmp_path):
    for command in ("verify", "inspect", "report"):
        assert_refused(run(command, tmp_path), tmp_path, str(tmp_path), "manifest.json")


def damage(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(data):
    data[len(data) // 3] ^= 4


def cut(data):
    del data[-700:]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train/L128/pass-00/shard-00000.tar", flip, "block"),
        ("train/L128/pass-00/shard-00000.tar", cut, "truncated"),
        ("train/L128/pass-00/shard-00000.tar", None, "shard-00000.tar"),
        ("train/L128/pass-00/pass.json", flip, "pass.json"),
        ("train/L128/pass-00/foreign.tar", bytearray.clear, "foreign file"),
        ("vocab.txt", flip, "vocab.txt"),
        ("shards.parquet", flip, "shards.parquet"),
        ("blocks.parquet", flip, "blocks.parquet"),
        ("manifest.json", cut, "manifest.json"),
    ],
)
def test_damage_is_found_and_named(run, capsys, corpus, vocab_file, tmp_path, name, change, said):
    output = tmp_path / "data"
    flags = ("--vocab", vocab_file, "--workers", 1, "--passes", 1)
    assert run("build", "--input", corpus, "--output", output, *flags)[0] == 0
    path = output / name
    if not path.exists():
        path.write_bytes(b"x")
    if change is None:
        path.unlink()
    else:
        damage(path, change)
    code = run_program("python -m pipeline", "Tests.", COMMANDS, ["verify", str(output)])
    shown = capsys.readouterr()
    assert code == 2
    assert said in shown.out + shown.err


@pytest.mark.parametrize("place", ["file", "file/data", "/proc/1/data"])
def test_an_output_that_nothing_can_be_written_into(run, texts, tmp_path, place):
    """Said before any work; workers that found it out ended in a traceback of 69 lines."""
    (tmp_path / "a.txt").write_text(texts[0])
    (tmp_path / "file").write_text("")
    code, said = run("build", "--input", tmp_path / "a.txt", "--output", tmp_path / place)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{place}: nothing can be written there: No" in said


def test_what_changed_since_a_build_that_failed_is_named(run, texts, tmp_path):
    output, first, second = tmp_path / "data", tmp_path / "in/a.txt", tmp_path / "in/b.txt"
    first.parent.mkdir()
    first.write_text(texts[0])
    words = ("--input", first.parent, "--output", output, "--vocab_size", 100, "--workers", 1)
    assert run("vocab", *words)[0] == 0
    first.write_text(texts[0] + "Mended.")
    second.write_text(texts[1])
    code, said = run("build", *words)
    assert code == 2
    size = len(texts[0])
    assert f"made otherwise: {first} had {size} bytes and has {size + 7}, {second} is new;" in said
    assert f"delete {output}/vocab.json, {output}/_tasks and {output}/tokens" in said
    (output / "vocab.json").unlink()
    assert run("build", *words)[0] == 0


def test_a_build_into_a_pipe_draws_no_bar(run, texts, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    words = ("--output", tmp_path / "data", "--vocab_size", 100, "--workers", 1)
    code, said = run("build", "--input", tmp_path / "a.jsonl", *words)
    assert code == 0
    assert "%|" not in said


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
