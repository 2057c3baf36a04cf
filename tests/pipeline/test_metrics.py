"""What a runner's page counts of a build, and workers that are not like their launcher."""

import os
from functools import partial

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner.fn_runner import RunnerResult

from pipeline.jobs import broadcast
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.shards.dataset import open_dataset
from pipeline.storage.folder import Folder
from tests.pipeline.programs import run

pytestmark = pytest.mark.processes


def test_counters_are_what_the_build_made(texts, vocab_file, tmp_path, monkeypatch):
    results, wait = [], RunnerResult.wait_until_finish

    def keep(result, *_):
        results.append(result)
        return wait(result)

    monkeypatch.setattr(RunnerResult, "wait_until_finish", keep)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    shortest = ("--min_characters", sorted(map(len, texts))[20], "--format", "text-blank-lines")
    words = ("--vocab", vocab_file, "--output", tmp_path / "data", "--seq_lens", 64, "--workers", 1)
    assert run("build", "--input", tmp_path / "a.txt", *shortest, *words) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    ours = MetricsFilter().with_namespace("beambert")
    found = [result.metrics().query(ours) for result in results]
    counted, observed = (
        {each.key.metric.name: each.committed for metrics in found for each in metrics[kind]}
        for kind in ("counters", "distributions")
    )
    made, shards = dataset.manifest.counters, dataset.all_shards
    assert counted["shards"] == len(shards)
    assert counted["instances"] == sum(shard.instances for shard in shards)
    assert counted["shard_bytes"] == sum(shard.num_bytes for shard in shards)
    parts = {"bytes_a_part", "documents_a_part", "ms_a_part"}
    documents = {"cleaned_bytes_a_document", "tokens_a_document"}
    assert observed.keys() == {*parts, *documents, "documents_a_bucket"}
    assert observed["tokens_a_document"].sum == made["distinct_tokens"]
    assert observed["cleaned_bytes_a_document"].sum == counted["cleaned_bytes"]
    assert observed["cleaned_bytes_a_document"].count == made["documents"]
    buckets = observed["documents_a_bucket"]  # of validation, and of training for each pass
    assert buckets.count == len(shards)
    assert buckets.min + buckets.max == made["documents"]
    assert counted["documents"] == made["documents"]
    assert counted["tokens"] == made["distinct_tokens"]
    assert counted["dropped_too_short"] == made["dropped_too_short"] > 0
    assert counted["documents_read"] == made["documents"] + made["dropped_too_short"]


def run_one_worker(build, folder):
    outputs = Outputs("parts", 1, 0, lambda: 0, Folder(str(folder)))
    run_graph("tokens", build, pipeline_options(1, [], 1), outputs)


def test_what_others_say_while_a_job_runs_here_is_shown(tmp_path, capfd):
    def build(pipeline):
        _ = pipeline | beam.Create([b"of another thread"]) | beam.Map(partial(os.write, 2))

    run_one_worker(build, tmp_path)
    assert "of another thread" in capfd.readouterr().err


def test_a_worker_with_other_code_ends_the_job_before_it_writes(tmp_path, monkeypatch):
    hashes = iter(["launcher", *["worker"] * 100])
    monkeypatch.setattr(broadcast, "hash_code", lambda: next(hashes))
    folder = Folder(str(tmp_path))

    def build(pipeline):
        elements = pipeline | broadcast.CreateElements(["a"], folder)
        _ = elements | beam.Map(lambda name: folder.write(name, b"made"))

    said = r"a worker has other code of this package than the launcher \(worker, exp"
    with pytest.raises(ValueError, match=said):
        run_one_worker(build, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_hash_of_the_code_is_that_of_every_file_a_build_runs(tmp_path, monkeypatch):
    (tmp_path / "room").mkdir()
    monkeypatch.setattr(broadcast, "_PACKAGES", (tmp_path,))
    found = []
    for path, text in (("a.py", "1"), ("a.json", ""), ("room/a.py", ""), ("a.py", "2")):
        (tmp_path / path).write_text(text)
        found.append(broadcast.hash_code.__wrapped__())
    assert found[0] == found[1]
    assert len(set(found)) == 3
