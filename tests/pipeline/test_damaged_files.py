"""Every small file that a build leaves is named, in one line, where it is damaged."""

import pytest

from pipeline.storage.folder import Folder
from pipeline.storage.json_files import expected_fields, parse_names, parse_object, read_object
from tests.pipeline.programs import run

DEEP = b"[" * 100_000
DAMAGED = {
    "cut": b"{",
    "empty": b"",
    "deep": DEEP,
    "list": b"[1]",
    "number": b"7",
    "bytes": b"\xff",
}
REMEDY = "restore it"


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_json_object_is_named_with_the_remedy(data, tmp_path):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}/a.json is damaged.*; restore it$"
    ) as caught:
        read_object(Folder(str(tmp_path)), "a.json", REMEDY)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_file_that_is_missing_is_named_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path}/a.json is missing; restore it$"):
        read_object(Folder(str(tmp_path)), "a.json", REMEDY)


def test_a_list_of_other_things_than_names_is_no_list_of_names():
    assert parse_names(b'["a", "b"]', "f", REMEDY) == ["a", "b"]
    for data in (b'["a", 1]', b'"a"', b"{}"):
        with pytest.raises(
            ValueError, match=r"^f is damaged: .* expected a list of names; restore"
        ):
            parse_names(data, "f", REMEDY)


def test_a_key_that_is_lacking_is_named():
    found = parse_object(b'{"a": 1}', "f", REMEDY)
    with (
        pytest.raises(
            ValueError, match=r"^f is damaged, or of another version: it lacks 'b'; rest"
        ),
        expected_fields("f", REMEDY),
    ):
        _ = found["b"]


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    """A dataset, and the words of the command that builds it."""
    output = tmp_path_factory.mktemp("built") / "data"
    words = ["--input", corpus, "--output", output, "--vocab", vocab_file, "--workers", 1]
    words += ["--passes", 1, "--seq_lens", 64]
    assert run("build", *words) == 0
    return output, words


READERS = [
    ("vocab.json", "vocab"),
    ("tokens/settings.json", "tokens"),
    ("tokens/tokens.json", "tokens"),
    ("tokens/tokens.json", "shards"),
    ("tokens/tokens.json", "inspect"),
    ("tokens/settings.json", "build"),
    ("report.json", "report"),
    ("sources.parquet", "sources"),
    ("manifest.json", "verify"),
    ("tokenizer.json", "verify"),
]


@pytest.mark.processes
@pytest.mark.parametrize(("name", "command"), READERS, ids=lambda value: value.replace("/", "-"))
def test_a_damaged_file_is_named_by_the_command_that_reads_it(name, command, built, capsys):
    output, words = built
    path, before = output / name, (output / name).read_bytes()
    is_look = command in ("inspect", "report", "verify", "sources")
    if command == "sources":  # read where there is no report
        command, report = "report", (output / "report.json").read_bytes()
        (output / "report.json").unlink()
    try:
        for data in DAMAGED.values():
            path.write_bytes(data)
            code = run(command, *([output] if is_look else words))
            said = "".join(capsys.readouterr())
            assert code == 2
            assert str(path) in said
            assert "Traceback" not in said
            named = next(line for line in said.splitlines() if str(path) in line)
            assert ";" in named, "what to do"
    finally:
        path.write_bytes(before)
        if name == "sources.parquet":
            (output / "report.json").write_bytes(report)
