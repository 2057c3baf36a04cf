"""URLs and folders that are no dataset, and flags that are wrong: said at once, with the cure."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.settings import BuildSettings
from pipeline.storage.addresses import refuse_misspelt
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import printable
from pipeline.text.language_codes import check_language
from tests.pipeline.programs import run
from trainer.cli import main as trainer_main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("url", ["a::b", "a::b/c", "a:::b", "file::b", "{}/a::b", "{}/s3::b/c"])
def test_a_local_path_with_two_colons_is_refused(url, tmp_path, monkeypatch, capsys):
    """fsspec would take it for `a:` or `a`, and drop the rest."""
    monkeypatch.chdir(tmp_path)
    output = url.format(tmp_path)
    with pytest.raises(ValueError, match=rf"^{output}: '::' in a path is taken for the end of"):
        Folder(output).write("x", b"")
    Path("in.jsonl").write_text('{"text": "One. Two."}\n')
    assert run("build", "--input", "in.jsonl", "--output", output, "--vocab_size", 300) == 2
    said = capsys.readouterr().err.strip()
    assert f"{output}: '::' in a path" in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("url", ["s3:/bucket/a", "gs:/b", "hf:/datasets/x", "https:/host/a.jsonl"])
def test_a_url_with_one_slash_is_no_folder_of_this_machine(url):
    meant = url.replace(":/", "://")
    with pytest.raises(ValueError, match=rf"^{url}: has one slash .* expected two; give {meant}$"):
        refuse_misspelt(url)
    with pytest.raises(ValueError, match="one slash"):
        Folder(url).list()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("S3:/bucket/a", "has one slash behind S3:, expected two; give s3://bucket/a"),
        ("S3://bucket/a", "has the scheme S3, expected small letters; give s3://bucket/a"),
        ("Gs://B/A", "has the scheme Gs, expected small letters; give gs://B/A"),
        ("HTTPS://host/A", "has the scheme HTTPS, expected small letters; give https://host/A"),
        ("FILE:///x", "has the scheme FILE, expected small letters; give file:///x"),
        ("File:/x", "has the scheme File, expected small letters; give file:/x"),
        (
            "s3://b/a/../c/",
            "has the part '..', which a store takes for a part of the key; give s3://b/c",
        ),
        (
            "memory://b/./c",
            "has the part '.', which a store takes for a part of the key; give memory://b/c",
        ),
        (
            "gs://b/a/..",
            "has the part '..', which a store takes for a part of the key; give gs://b",
        ),
    ],
)
def test_a_url_that_would_be_another_place_is_refused(url, message):
    for refuse in (refuse_misspelt, lambda url: Folder(url).list()):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{url}: {message}')}$"):
            refuse(url)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/a", "data:/x", "a/s3:/b", "file:/x", "/s3:/b", "s3:"),
        *("S3", "./S3:/b", "C:/x", "../a/./b", "file:///a/../b", "s3://b/a..b/...", "s3://b//c"),
        *("https://host/a/../b.jsonl", "zip://a/../b.txt::file:///x.zip"),
    ],
)
def test_other_names_stay_what_they_are(url):
    refuse_misspelt(url)


def test_both_programs_refuse_misspelt_wherever_it_is_given(capsys):
    assert run("build", "--output", "s3:/b/x", "--input", "a.txt") == 2
    assert "expected two; give s3://b/x" in capsys.readouterr().err
    assert run("build", "--output", "x", "--input", "a.txt", "gs:/b/x") == 2
    assert "expected two; give gs://b/x" in capsys.readouterr().err
    assert trainer_main(["report", "s3:/b/run"]) == 2
    assert "expected two; give s3://b/run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [("english", "en"), ("English", "en"), ("englsh", "en"), ("EN", "en"), ("de_CH", "de-ch")],
)
def test_a_language_that_is_no_code_is_refused_with_a_proposal(given, meant):
    expected = rf"language '{given}': expected an ISO 639 code .*; did you mean {meant}\?$"
    with pytest.raises(ValueError, match=expected):
        check_language(given)
    with pytest.raises(ValueError, match="did you mean"):
        BuildSettings("out", input=["a.txt"], language=given)


def test_a_language_like_no_other_has_no_proposal():
    with pytest.raises(ValueError, match=r"for sentence splitting$"):
        check_language("klingonisch")
    for code in ("en", "yue", "zh-hans"):
        check_language(code)


def test_a_run_is_no_dataset_and_the_program_that_shows_it_is_named(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    for command in ("report", "verify", "inspect"):
        assert run(command, tmp_path) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path} holds a training run, which has run.json, and no dataset;" in said
        assert f"`python -m trainer report {tmp_path}` shows the run" in said


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        "build --output OUT --input OUT/nothing",
        "build --output OUT",
        "build --output OUT --input HERE --vocab OUT/vocab.txt",
        "build --output OUT --input HERE --extend OUT/vocab.txt",
        "build --output OUT --input HERE --filter no.such:thing",
        "build --output OUT --input HERE --task_files OUT/tasks.tsv",
        "build --output OUT --input HERE --exclude_documents_of OUT",
        "build --output OUT --input HERE --language english",
        "shards --output OUT",
    ],
)
def test_what_needs_no_beam_is_said_without_importing_it(words, tmp_path):
    """Importing it takes five CPU-seconds."""
    given = words.replace("OUT", str(tmp_path / "out")).replace("HERE", __file__).split()
    code = (
        "import sys; from pipeline.cli import COMMANDS;"
        " from pipeline.command_line.program import run_program;"
        f" code = run_program('p', '', COMMANDS, {given!r});"
        " print(code, 'apache_beam' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "2 False", ran.stderr
    assert not (tmp_path / "out").exists()


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"


def test_no_message_drives_a_terminal(tmp_path, capsys):
    """Of either program: names of files, unknown keys and commands, values."""
    strange = tmp_path / f"a{ESCAPES}.jsonl"
    strange.write_text("{")
    config = tmp_path / "a.yaml"
    config.write_text(f'"{ascii(ESCAPES)[1:-1]}": 1\n')
    fine = ["--output", tmp_path / "out", "--workers", 1, "--vocab_size", 100]
    for words in (
        ["build", "--input", strange, *fine],
        ["build", "--input", strange.with_name(f"none{ESCAPES}"), *fine],
        ["build", "--config", config, "--input", "a", *fine],
        ["build", f"--{ESCAPES}", "1", *fine],
        ["verify", strange],
        [ESCAPES],
    ):
        assert run(*words) == 2
        said = "".join(capsys.readouterr())
        assert ascii(ESCAPES)[1:7] in said or "\\x1b" in said, words
        assert not [each for each in said if not each.isprintable() and each != "\n"], words
    assert trainer_main(["report", f"none{ESCAPES}"]) == 2
    said = capsys.readouterr().err
    assert not [each for each in said if not each.isprintable() and each != "\n"]


def test_lines_of_a_message_stay_and_those_of_a_name_do_not():
    assert printable("a\n\tb", keeps_lines=True) == "a\n\\tb"
    assert printable("a\nb\x1b\udc80") == r"a\nb\x1b\udc80"
    assert printable("naïve 中文") == "naïve 中文"
