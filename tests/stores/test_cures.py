"""What a user did wrong with a store is one line that names the store and the cure."""

import json

import pytest

from pipeline.storage import faults
from pipeline.storage.faults import NoBucketError, StorageError
from pipeline.storage.folder import Folder
from tests.ports import free_port
from tests.stores.conftest import s3_options
from tests.stores.faulty_proxy import error

pytestmark = pytest.mark.engines

ABSENT = r"has no bucket( absent)?: create it, or check its name and the endpoint"
WAYS = {
    "read": lambda folder: folder.read("a"),
    "write": lambda folder: folder.write("a", b"0"),
    "list": lambda folder: folder.list(),
    "exists": lambda folder: folder.exists("a"),
    "is_file": lambda folder: folder.is_file("a"),
    "size": lambda folder: folder.size("a"),
    "read_each": lambda folder: list(folder.read_each(["a"])),
    "open": lambda folder: folder.open("a"),
}


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(faults, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(faults, "MAX_DELAY_SECONDS", 0.002)


@pytest.fixture(params=["swift_port", "moto_port"])
def port(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("way", WAYS)
def test_an_absent_bucket_is_named_whatever_is_asked(port, way):
    folder = Folder("s3://absent/data", s3_options(port))
    with pytest.raises(NoBucketError, match=rf"^s3://absent/data.*127.0.0.1:{port} {ABSENT}"):
        WAYS[way](folder)
    assert not Folder("s3://corpus/nothing", s3_options(port)).exists("a")


@pytest.mark.parametrize("way", ["write", "list", "exists"])
def test_an_absent_bucket_of_google_is_named(gcs, way):
    with pytest.raises(NoBucketError, match=rf"^gs://absent/data.* {ABSENT}"):
        WAYS[way](Folder("gs://absent/data", gcs))
    assert not Folder("gs://corpus/nothing", gcs).exists("a")


def test_a_bucket_is_asked_for_once(start_proxy, swift_port):
    proxy = start_proxy(swift_port, chooses=lambda method, path: asked.append((method, path)))
    asked = []
    folder = Folder("s3://corpus/nothing", s3_options(proxy.server_address[1]))
    assert [folder.exists(name) for name in "abc"] == [False] * 3
    assert asked.count(("HEAD", "/corpus")) == 1


@pytest.mark.parametrize("way", ["read", "write", "list", "exists", "is_file"])
@pytest.mark.parametrize("wrong", [{"secret": "not-the-secret"}, {"key": "nobody"}], ids=str)
def test_a_wrong_key_is_one_line(swift_port, way, wrong):
    folder = Folder("s3://corpus/data", s3_options(swift_port) | wrong)
    said = rf"^s3://corpus/data.*; check the credentials and the URL.*127.0.0.1:{swift_port}"
    with pytest.raises(PermissionError, match=said) as caught:
        WAYS[way](folder)
    assert "docs/object-stores.md" in str(caught.value)
    assert "not-the-secret" not in str(caught.value)


@pytest.mark.parametrize("way", ["write", "list"])
@pytest.mark.parametrize(
    "code", ["AuthorizationHeaderMalformed", "IllegalLocationConstraintException"]
)
def test_a_wrong_region_is_one_line(start_proxy, moto_port, way, code):
    proxy = start_proxy(moto_port, error(400, code), 10**9, chooses=lambda *_: True)
    folder = Folder("s3://corpus/data", s3_options(proxy.server_address[1]))
    with pytest.raises(StorageError, match=r"^s3://corpus/data.*give the region of the bucket by"):
        WAYS[way](folder)


@pytest.mark.parametrize("way", ["read", "write", "list", "exists", "is_file"])
@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (
            "http://127.0.0.1:9",
            r"6 attempt.*check http://127.0.0.1:9 \(endpoint_url in --storage_o",
        ),
        ("127.0.0.1:9000", r"Invalid endpoint: 127.0.0.1:9000; give endpoint_url, or AWS_ENDPOINT"),
        (
            "https://127.0.0.1:{port}",
            r"check https://127.0.0.1:\d+ \(endpoint_url in --storage_opt",
        ),
    ],
)
def test_a_wrong_endpoint_is_one_line(swift_port, way, endpoint, said):
    options = s3_options(swift_port) | {"endpoint_url": endpoint.format(port=swift_port)}
    with pytest.raises(StorageError, match=said) as caught:
        WAYS[way](Folder("s3://corpus/data", options))
    assert "corpus/data" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_invalid_name_of_a_bucket_is_one_line(moto):
    with pytest.raises(StorageError, match=r"^s3://No!/data/a: gave up after 1 attempt.*Invalid b"):
        Folder("s3://No!/data", moto).write("a", b"0")


def test_a_lost_upload_says_what_was_written_where_and_what_to_do(start_proxy, moto_port):
    """The store says that it took an object, which is not there."""
    is_put = lambda method, path: method == "PUT" and path.endswith("shard.tar")  # noqa: E731
    proxy = start_proxy(
        moto_port, lambda handler, *_: handler.send(200, {}, b""), 99, chooses=is_put
    )
    folder = Folder("s3://corpus/lost", s3_options(proxy.server_address[1]))
    said = (
        r"^s3://corpus/lost/shard.tar: gave up after 6 attempt.*: the store said that it took the"
        r" 10 bytes and has no such object: look for a rule, proxy or quota that drops uploads; run"
    )
    with pytest.raises(StorageError, match=said):
        folder.write("shard.tar", b"0123456789")
    proxy.left = 2
    proxy.chooses = lambda method, path: is_put(method, path) and proxy.left > 0
    folder.write("shard.tar", b"0123456789")
    assert folder.read("shard.tar") == b"0123456789"


@pytest.mark.parametrize(
    "words",
    [
        "verify s3://absent/data",
        "inspect s3://absent/data",
        "build --input s3://absent/text --output {folder}/out",
        "build --input {corpus} --output s3://absent/data",
        "build --input {corpus} --output {folder}/out --tokens s3://absent/tokens",
    ],
)
def test_a_command_on_an_absent_bucket_is_one_line(pipeline, moto, corpus, tmp_path, capfd, words):
    command, *given = words.format(corpus=corpus, folder=tmp_path).split()
    assert pipeline(command, *given, "--storage_options", json.dumps(moto)) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert len(said) == 1
    assert "s3://absent" in said[0]
    assert "bucket" in said[0]


def test_a_store_that_is_not_there_is_named_with_its_endpoint(pipeline, capfd):
    options = json.dumps(s3_options(port := free_port()))
    assert pipeline("verify", "s3://corpus/data", "--storage_options", options) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"check http://127.0.0.1:{port} (endpoint_url in --storage_options" in said
