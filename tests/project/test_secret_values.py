"""Secrets are hidden by their value, however they were given: in files, messages, logs, tracebacks."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset
from pipeline.storage import secret_values
from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.secret_values import hide, hide_in, learn
from trainer.beambert import COMMANDS
from trainer.model.config import preset
from trainer.order.source import one_dataset
from trainer.runs.run_folder import prepare_run
from trainer.settings import Phase, PretrainSettings

ROOT = Path(__file__).parents[2]
KEY, SECRET, TOKEN = "AKEXAMPLE", 'open"sesame/47+11', "tok-é-en-99887766"
OPTIONS = {
    "key": KEY,
    "secret": SECRET,
    "client_kwargs": {"aws": [{"session": TOKEN}], "region_name": "us-east-1"},
    "config_kwargs": {"s3": {"addressing_style": "path"}, "pin": 12345678, "connect_timeout": 5},
    "endpoint_url": "http://127.0.0.1:9000",
    "anon": False,
    "mark": "x",
}
ESCAPED = json.dumps(SECRET)[1:-1], json.dumps(TOKEN)[1:-1], "open%22sesame%2F47%2B11"
SECRETS = (KEY, SECRET, TOKEN, "12345678", *ESCAPED)


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """What fixtures of other tests learned is no secret here."""
    monkeypatch.setattr(secret_values, "_values", set())
    monkeypatch.setattr(secret_values, "_watch_tracebacks", lambda: None)
    secret_values._pattern.cache_clear()
    yield
    secret_values._pattern.cache_clear()


def assert_hidden(text):
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("secret", SECRETS)
def test_values_are_hidden_in_every_spelling(secret):
    learn(OPTIONS)
    assert hide(f"could not sign with {secret}, as s3://bucket/data?key={secret}&x=1") == (
        "could not sign with (hidden), as s3://bucket/data?key=(hidden)&x=1"
    )


def test_what_is_no_secret_stays():
    learn(OPTIONS)
    said = "http://127.0.0.1:9000/path: no path x in us-east-1 within 5 s, AKEXAMPLES and 123456789 are other words"
    assert hide(said) == said
    learn({"key": "test"})
    assert hide("the latest test, test1 of tests") == "the latest (hidden), test1 of tests"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://user:pa55@host/data", "ftp://(hidden)@host/data"),
        ("s3://key:se/cr:et@bucket/a", "s3://(hidden)@bucket/a"),
        ("news=sftp://u:@host/a:2", "news=sftp://(hidden)@host/a:2"),
        ("s3://bucket/run@600", "s3://bucket/run@600"),
        ("http://127.0.0.1:9000/run@600", "http://127.0.0.1:9000/run@600"),
        ("mail a:b@c", "mail a:b@c"),
    ],
)
def test_passwords_in_urls_are_hidden(url, shown):
    assert hide(url) == shown
    hidden = {"data": [shown, 3, None], shown: [shown]}
    assert hide_in({"data": [url, 3, None], url: (url,)}) == hidden


@pytest.mark.parametrize(
    "arguments",
    [
        ["--storage_options", json.dumps(OPTIONS)],
        ["--storage_options=" + json.dumps(OPTIONS)],
        ["--storage_opt", json.dumps(OPTIONS)],
        ["--storage-options", "{'secret': '" + SECRET + "'}"],
        ["--other=" + json.dumps(OPTIONS)],
        ["--data", f"s3://{KEY}:{SECRET}@bucket"],
        [f"--{SECRET}"],
    ],
    ids=range(7),
)
def test_arguments_are_shown_without_secrets(arguments):
    learn(OPTIONS)
    shown = hide_in(["trainer", "pretrain", *arguments, "--seed", "1"])
    assert len(shown) == len(arguments) + 4
    assert_hidden(str(shown))
    assert [*shown[:2], *shown[-2:]] == ["trainer", "pretrain", "--seed", "1"]


@pytest.mark.parametrize("way", ["text", "file", "filesystem", "url"])
def test_options_are_learned_wherever_they_come_from(tmp_path, way):
    if way == "text":
        parse_storage_options(json.dumps(OPTIONS))
    elif way == "file":
        (tmp_path / "o.json").write_text(json.dumps(OPTIONS))
        parse_storage_options(f"@{tmp_path}/o.json")
    elif way == "filesystem":
        assert Folder("memory://a", OPTIONS).filesystem
    else:
        with pytest.raises(ValueError, match="cannot be opened"):
            assert Folder(f"nothing://me:{TOKEN}@host/a").filesystem
        assert hide(f"no such user {TOKEN}") == "no such user (hidden)"
        return
    for secret in SECRETS:
        assert hide(secret) == "(hidden)"


def test_a_log_record_has_no_secret(caplog, monkeypatch):
    monkeypatch.undo()
    before = logging.getLogRecordFactory()
    try:
        learn({"secret": "not-in-a-log-0815"})
        logging.getLogger("a.driver").warning("signing with %s", "not-in-a-log-0815")
        logging.getLogger("a.driver").warning("plain %d", 5)
        assert caplog.messages == ["signing with (hidden)", "plain 5"]
    finally:
        logging.setLogRecordFactory(before)


@pytest.mark.processes
def test_a_traceback_has_no_secret():
    code = """
import threading
from pipeline.storage.folder import parse_storage_options
parse_storage_options('{"secret": "sesame-4711"}')
def fail():
    raise RuntimeError("signed with " + "-".join(["sesame", "4711"]))
thread = threading.Thread(target=fail)
thread.start(), thread.join()
fail()
"""
    command, how = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    ran = subprocess.run(command, cwd=ROOT, **how, check=False)
    assert ran.returncode == 1
    assert ran.stderr.count("RuntimeError: signed with (hidden)") == 2
    assert ran.stderr.count("in fail") == 2
    assert "sesame-4711" not in ran.stderr


@pytest.mark.parametrize("command", ["verify /nowhere", "evaluate --model m --data d"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--storage_optoins", '{"secret": "sesame-4711"}'],
        ["--storage_optoins={'secret': 'sesame-4711'}"],
        ["--config", "c.yaml"],  # in which it is a mapping
        ["--config", "c.yaml", "--storage_options", "secret=sesame-4711"],
    ],
    ids=range(4),
)
def test_what_a_parser_refuses_is_said_without_secrets(
    tmp_path, monkeypatch, capsys, command, arguments
):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("storage_options: {secret: sesame-4711}\n")
    assert run_program("beambert", "Tests.", COMMANDS, [*command.split(), *arguments]) == 2
    said = "".join(capsys.readouterr())
    assert "storage_opt" in said
    assert "sesame" not in said


def test_a_run_is_written_without_secrets_and_goes_on(make_dataset, tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "data", ((20, 9), (13, 17)))
    mixture = one_dataset(open_dataset(str(data)))
    config = preset("tiny", vocab_size=mixture[0].dataset.manifest.vocab_size)
    parse_storage_options(json.dumps(OPTIONS))
    words = ["trainer", "--data", str(data), "--storage_opt", json.dumps(OPTIONS), KEY]
    monkeypatch.setattr(sys, "argv", words)
    phases, output = [Phase(8192, 8, 2, 1e-4)], tmp_path / "run"
    settings = PretrainSettings([f"s3://{KEY}:{SECRET}@b/c"], str(output), phases)
    settings = replace(settings, checkpoint=replace(settings.checkpoint, url=f"s3://b/{TOKEN}"))
    for options in (json.dumps(OPTIONS), None):  # another way in to the same data continues the run
        prepare_run(replace(settings, storage_options=options), mixture, config, 1)
    files = {path.name: path.read_text() for path in output.rglob("*") if path.is_file()}
    assert {"config.yaml", "run.json"} <= set(files)
    assert_hidden("".join(files.values()))
    assert json.loads(files["run.json"])["launches"][1]["argv"][1:3] == ["--data", str(data)]
