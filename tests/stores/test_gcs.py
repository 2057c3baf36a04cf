"""A build and a redaction on an emulator of Google's store: equal to local ones."""

import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from tests.stores.conftest import assert_same_batches, root_hash

pytestmark = pytest.mark.engines


def test_a_build_and_a_redaction_on_gcs_equal_local_ones(
    local, gcs, corpus, pipeline, tmp_path, capsys
):
    store = fsspec.filesystem("gs", **gcs)
    for path in corpus.iterdir():
        store.pipe_file(f"corpus/text/{path.name}", path.read_bytes())
    options = ("--storage_options", '{"token": "anon"}')
    folders = ("--input", "gs://corpus/text", "--output", "gs://corpus/data")
    assert pipeline("build", *folders, *options) == 0
    assert root_hash("gs://corpus/data", gcs) == root_hash(local)
    assert pipeline("verify", "gs://corpus/data", *options) == 0
    assert_same_batches(open_dataset("gs://corpus/data", gcs), open_dataset(str(local)))

    document = (local / "documents.ids").read_bytes()[-16:].hex()
    (tmp_path / "list").write_text(f"{document}\n")
    flags = ("--documents", tmp_path / "list", "--output")
    there = ("gs://corpus/redacted", *options)
    assert pipeline("redact", "gs://corpus/data", *flags, *there) == 0
    assert "are copied by the store itself" in capsys.readouterr().out
    assert pipeline("redact", local, *flags, tmp_path / "new") == 0
    assert root_hash("gs://corpus/redacted", gcs) == root_hash(tmp_path / "new")
    assert pipeline("verify", "gs://corpus/redacted", "--absent", tmp_path / "list", *options) == 0
