"""Both graphs, translated for Dataflow without a network: what the service would be sent.

They need apache-beam[gcp] and are skipped without it; scripts/test-builder runs them where they
may not be.
"""

import hashlib
import importlib
import os

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext

from pipeline.documents.files import FileRange
from pipeline.documents.parts import Part
from pipeline.jobs.exchange import plan_tasks
from pipeline.jobs.run_beam import choose_exchange, pipeline_options
from pipeline.jobs.shards_job import ShardBuilder, add_shards_graph
from pipeline.jobs.tokens_job import add_tokens_graph
from pipeline.settings import BuildSettings
from pipeline.shards.seal import Seal
from pipeline.stages.build_shards import instance_rule
from pipeline.stages.build_tokens import tokens_rule
from pipeline.tokens.buckets import BucketContents, plan_buckets
from pipeline.tokens.token_index import TokenParts
from pipeline.transforms import WriteTokens
from tokenizer.vocab import parse_vocab

pytestmark = pytest.mark.filterwarnings("ignore")  # Google's clients warn of their own dependencies

PLACE = [
    "--runner=DataflowRunner",
    "--project=some-project",
    "--region=us-central1",
    "--dry_run=true",
    "--temp_location=gs://some-bucket/tmp",
    "--staging_location=gs://some-bucket/staging",
]
IMAGE = ["--sdk_container_image=gcr.io/some-project/worker:1", "--sdk_location=container"]
WHEEL = "beambert-0.1.0-py3-none-any.whl"
NUM_PARTS, NUM_BUCKETS = 1000, 1024


@pytest.fixture(scope="module")
def client():
    """Beam's client of the service; its imports are what apache-beam[gcp] adds."""
    name = "apache_beam.runners.dataflow.internal.apiclient"
    if os.environ.get("BEAMBERT_REQUIRE_DATAFLOW"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason="needs apache-beam[gcp]", exc_type=ImportError)


@pytest.fixture(scope="module", params=["tokens", "shards by shuffle", "shards by files"])
def translated(request, client, vocab_file):
    """The pipeline and the proto of the job, with credentials and sockets out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        return translate(request.param, vocab_file, patch)


def translate(job, vocab_file, monkeypatch):
    settings = BuildSettings("gs://some-bucket/data", ["gs://some-bucket/text/*.jsonl"])
    vocabulary = parse_vocab(vocab_file.read_bytes(), "vocab.txt")
    options = pipeline_options(settings.workers, [*PLACE, *IMAGE], 4)
    pipeline = beam.Pipeline(options=options)
    if job == "tokens":
        urls = [f"gs://some-bucket/text/{n}.jsonl" for n in range(NUM_PARTS)]
        parts = [Part((FileRange(url, 0, 9, 9, "jsonl"),)) for url in urls]
        add_tokens_graph(pipeline, parts, tokens_rule(settings, vocabulary), settings.open_tokens())
    else:
        mode = "files" if "files" in job else choose_exchange("auto", options)
        assert mode in job
        buckets = plan_buckets(NUM_BUCKETS, bytes(16))
        held = BucketContents(Seal(64, 9000, f"{7:032x}"), 70, 2**38)
        tasks = plan_tasks(buckets, [128], 1, {bucket.name: held for bucket in buckets})
        keys = [hashlib.blake2b(b"%d" % n, digest_size=16).hexdigest() for n in range(NUM_PARTS)]
        names = [f"{key}-00000" for key in keys]
        tokens = TokenParts(settings.open_tokens(), "uint16", held_out=bytes(16))
        rules = {128: instance_rule(settings, vocabulary, 128)}
        builder = ShardBuilder(settings.open_output(), rules, 1, "0" * 64)
        add_shards_graph(pipeline, builder, tokens, names, tasks, mode)
    return pipeline, run_dry(pipeline, options, monkeypatch)


def run_dry(pipeline, options, monkeypatch):
    """What the service would be sent, with no network to ask anyone."""
    gcs = pytest.importorskip("apache_beam.io.gcp.gcsio")
    runner = pytest.importorskip("apache_beam.runners.dataflow.dataflow_runner")

    def refuse(*_):
        raise ConnectionRefusedError("this test has no network")

    monkeypatch.setattr("apache_beam.internal.gcp.auth.get_service_credentials", lambda _: None)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr(gcs.GcsIO, "is_soft_delete_enabled", lambda *_: False)
    return runner.DataflowRunner().run_pipeline(pipeline, options).job.proto_pipeline


def pardos(proto):
    for transform in proto.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            yield transform, beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)


def test_the_graph_asks_nothing_special_of_the_runner(translated):
    _, proto = translated
    found = list(pardos(proto))
    assert len(found) >= 2
    for transform, payload in found:
        assert len(transform.outputs) == 1, f"{transform.unique_name}: tagged outputs"
        assert not payload.state_specs, f"{transform.unique_name}: state"
        assert not payload.timer_family_specs
        assert not payload.side_inputs
        assert not payload.requests_finalization
        assert not payload.restriction_coder_id
    assert not proto.requirements


def test_keys_have_deterministic_coders(translated):
    _, proto = translated
    context = PipelineContext(proto.components)
    urn = common_urns.primitives.GROUP_BY_KEY.urn
    groups = [each for each in proto.components.transforms.values() if each.spec.urn == urn]
    assert groups
    for group in groups:
        (source,) = group.inputs.values()
        coder = context.coders[proto.components.pcollections[source].coder_id]
        assert coder.key_coder().is_deterministic(), f"{group.unique_name}: {coder}"


def test_nothing_comes_out_of_the_end_of_a_bundle(translated):
    pipeline, _ = translated
    names = []

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, node):
            if isinstance(node.transform, beam.ParDo):
                names.append(node.full_label)
                own = type(node.transform.fn).finish_bundle
                assert own is beam.DoFn.finish_bundle, node.full_label

    pipeline.visit(Visitor())
    assert names


def test_a_job_of_a_thousand_parts_stays_far_below_the_services_limit(translated):
    _, proto = translated
    print(len(proto.SerializeToString()), "bytes")
    assert len(proto.SerializeToString()) < 2 * 2**20  # Dataflow refuses requests above 10 MiB


@pytest.mark.parametrize("how", ["image", "wheel"])
def test_a_pipeline_of_your_own_brings_the_package(how, client, vocab_file, tmp_path, monkeypatch):
    """tests/stores/test_worker_package.py installs what --setup_file makes."""
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"PK\5\6" + bytes(18))  # the end of an empty zip archive
    given = {"image": IMAGE, "wheel": [f"--extra_package={wheel}"]}[how]
    options = PipelineOptions([*PLACE, *given])
    pipeline = beam.Pipeline(options=options)
    texts = pipeline | beam.Create(["The river of a silver garden."])
    _ = texts | WriteTokens(f"memory://own-{how}", vocab_file, part_bytes=65536)
    proto = run_dry(pipeline, options, monkeypatch)
    images, staged = set(), set()
    for environment in proto.components.environments.values():
        payload = beam_runner_api_pb2.DockerPayload.FromString(environment.payload)
        images.add(payload.container_image)
        for artifact in environment.dependencies:
            role = beam_runner_api_pb2.ArtifactStagingToRolePayload
            staged.add(role.FromString(artifact.role_payload).staged_name)
    if how == "image":
        assert images == {"gcr.io/some-project/worker:1"}
        assert WHEEL not in staged
    else:
        assert staged >= {WHEEL, "extra_packages.txt"}
