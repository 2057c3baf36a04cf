"""A store that sends checksums, as AWS does: what the wire damaged is asked for again."""

import json

import pytest

from pipeline.storage.folder import Folder
from tests.stores.conftest import root_hash, s3_options
from tests.stores.faulty_proxy import wrong_byte

pytestmark = pytest.mark.engines


@pytest.fixture
def damaging_store(start_proxy, moto_port):
    """damaging_store(count, files): options of moto with wrong bytes in `count` of its answers."""

    def start(count, files):
        proxy = start_proxy(moto_port, wrong_byte, count, files=files)
        return proxy, s3_options(proxy.server_address[1])

    return start


def test_a_wrong_checksum_is_asked_for_again(damaging_store, moto):
    content = bytes(range(256)) * 40
    Folder("s3://corpus/checked", moto).write("whole.bin", content)
    proxy, options = damaging_store(2, "whole.bin")
    assert Folder("s3://corpus/checked", options).read("whole.bin") == content
    assert proxy.spoiled == 2


def test_a_build_through_damaged_answers_equals_a_local_one(
    damaging_store, corpus, local, pipeline, moto
):
    for path in corpus.iterdir():
        Folder("s3://corpus/text", moto).write(path.name, path.read_bytes())
    proxy, options = damaging_store(8, "corpus/")
    folders = ("--input", "s3://corpus/text", "--output", "s3://corpus/data")
    assert pipeline("build", *folders, "--storage_options", json.dumps(options)) == 0
    assert proxy.spoiled == 8
    assert root_hash("s3://corpus/data", moto) == root_hash(local)
