"""A bundle that is too large for Beam's job servers is named in the worker's log."""

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from pipeline.documents import Document
from pipeline.transforms import WriteTokens, WriteToWebDataset, bundle_output
from pipeline.transforms.bundle_output import LogLargeBundles
from pipeline.transforms.gathered_documents import size_of_given


def labels_of(pipeline: beam.Pipeline) -> str:
    return str(pipeline.to_runner_api().components.transforms)


def test_one_line_when_a_bundle_becomes_large(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bundle_output, "MOST_BYTES", 3 << 20)
    step = LogLargeBundles(len)
    mebibyte = bytes(1 << 20)
    for number_in_bundle in (3, 6, 3, 4):
        step.start_bundle()
        assert [*step.process(mebibyte)] == [mebibyte]
        for _ in range(number_in_bundle - 1):
            [*step.process(mebibyte)]
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("a bundle has sent more than 3 MiB to the runner")
    assert "--streaming --max_bundle_size=2" in caplog.messages[0]


@pytest.mark.parametrize("runner", [PortableRunner, PipelineRunner])
def test_only_runners_behind_a_job_server_get_the_step(
    tmp_path: Path, runner: type[PipelineRunner]
) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for given, transform in (
        ({"__key__": "a", "txt": "a"}, WriteToWebDataset(str(tmp_path / "samples"))),
        ("a", WriteTokens(str(tmp_path / "data"), str(vocabulary), seq_lens=[32])),
    ):
        pipeline = beam.Pipeline(runner=runner())
        _ = pipeline | beam.Create([given]) | transform
        assert ("LogLargeBundles" in labels_of(pipeline)) == (runner is PortableRunner)


def test_size_of_what_users_give() -> None:
    assert size_of_given("four") == 4
    assert size_of_given(Document("three")) == 5
    assert size_of_given(7) == 0  # refused in the next step
