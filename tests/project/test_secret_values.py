"""Secrets are hidden by their value, however they were given: in files, messages, logs, tracebacks."""

import gzip
import json
import logging
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pyarrow.parquet as pq
import pytest

from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset
from pipeline.storage import secret_values
from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.secret_values import hide, hide_in, identify, learn
from trainer.beambert import COMMANDS
from trainer.model.config import preset
from trainer.runs.run_folder import prepare_run
from trainer.settings import Phase, PretrainSettings
from trainer.stream.order.source import one_dataset

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
        "could not sign with (hidden), as s3://bucket/data?key=(hidden)&x=(hidden)"
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
    ("text", "shown"),
    [
        (
            "https://h/a.jsonl?X-Amz-Signature=S&token=T",
            "https://h/a.jsonl?X-Amz-Signature=*&token=*",
        ),
        ("https://h/a?sig=S:12", "https://h/a?sig=*:12"),
        ("https://h/a?sig=S: no file; why?", "https://h/a?sig=*: no file; why?"),
        ("('https://h/a?sig=a%2Fc==', 3)", "('https://h/a?sig=*', 3)"),
        ("HTTPS://h/a?S&x=T#part", "HTTPS://h/a?*&x=*#part"),
        ("simplecache::https://h/a.zip?sig=S", "simplecache::https://h/a.zip?sig=*"),
        ("zip://x.txt::https://h/a.zip?a=S;b=T", "zip://x.txt::https://h/a.zip?a=*;b=*"),
        ("s3://b/v?versionId=3.txt, byte 4", "s3://b/v?versionId=*, byte 4"),
        ("https://u:S@h/a?t=S s3://b/c?d=S.", "https://*@h/a?t=* s3://b/c?d=*."),
        ("s3://b/part-??.jsonl", "s3://b/part-??.jsonl"),
        ("/data/v?versionId=3.txt", "/data/v?versionId=3.txt"),
        ("file:///data/v?versionId=3.txt", "file:///data/v?versionId=3.txt"),
        ("what is a?b=c", "what is a?b=c"),
    ],
)
def test_values_of_a_query_are_hidden_and_its_keys_stay(text, shown):
    shown = shown.replace("*", "(hidden)")
    assert hide(text) == shown
    assert hide(shown) == shown
    assert hide_in([{text: text}]) == [{shown: shown}]


def test_a_url_that_is_signed_anew_is_the_same_input():
    one = "https://h/a.jsonl?part=1&X-Amz-Date=1&X-Amz-Signature=S"
    assert identify(one) == identify(one.replace("=S", "=T")) == "https://h/a.jsonl?part=1"
    assert identify("https://h/a?sv=1&sig=S") == "https://h/a"
    assert identify("https://h/a?id=1") != identify("https://h/a?id=2")
    for same in ("s3://b/a.jsonl", "/data/a?token=1", "s3://b/v?versionId=3", "file:///a?sig=1"):
        assert identify(same) == same


class SignedFiles(BaseHTTPRequestHandler):
    """Serves a file, by range, to those who know its signature."""

    protocol_version = "HTTP/1.1"
    data = b""
    known: ClassVar[list[str]] = []

    def do_GET(self):
        status, body = (200, self.data) if self.path in self.known else (403, b"")
        if status == 200 and (wanted := self.headers.get("Range")):
            start, stop = wanted.removeprefix("bytes=").split("-")
            status, body = 206, self.data[int(start) : int(stop) + 1]
        self.send_response(status)
        self.send_header("Content-Length", len(body))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            place = f"bytes {start}-{int(start) + len(body) - 1}/{len(self.data)}"
            self.send_header("Content-Range", place)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.mark.processes
def test_a_build_from_a_signed_url_writes_and_says_no_signature(tmp_path, capfd):
    lines = [{"text": f"River number {number}. Mountain {number * 7}."} for number in range(60)]
    SignedFiles.data = gzip.compress("".join(json.dumps(each) + "\n" for each in lines).encode())
    server = ThreadingHTTPServer(("127.0.0.1", 0), SignedFiles)
    Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"

    def build(signature, *more):
        path = f"/a.jsonl.gz?X-Amz-Signature={signature}&token={signature}00"
        SignedFiles.known = [path]
        words = f"build --output {tmp_path}/data --vocab_size 120 --passes 1 --seq_lens 64"
        given = [*words.split(), "--workers", "1", "--input", place + path, *more]
        code = run_program("beambert", "Tests.", COMMANDS, given)
        said = "".join(capfd.readouterr())
        assert signature not in said
        return code, said

    try:
        code, said = build("4f6f70656e")
        assert code == 0, said
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert {"report.json", "report.html", "sources.parquet", "vocab.json"} <= {
            path.name for path in files
        }
        held = b"".join(path.read_bytes() for path in files)
        assert b"a.jsonl.gz?X-Amz-Signature=(hidden)&token=(hidden)" in held
        assert b"4f6f70656e" not in held
        sources = pq.read_table(tmp_path / "data" / "sources.parquet").to_pylist()
        assert sources[0]["url"] == f"{place}/a.jsonl.gz?X-Amz-Signature=(hidden)&token=(hidden)"
        code, said = build("77777aaaaa")
        assert code == 0, said
        assert "is complete" in said
        code, said = build("77777bbbbb", "--text_field", "body")
        assert code == 2
        assert "error:" in said
    finally:
        server.shutdown()
        server.server_close()


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
