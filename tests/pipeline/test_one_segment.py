"""Datasets whose instances have one segment, [CLS] A [SEP], and everything that reads them."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.inspect.deep_verify import DeepCheck
from pipeline.inspect.measure import measure_group
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.document_index import open_document_index
from pipeline.shards.verify import verify_dataset
from pipeline.tokens.token_parts import unpack_documents
from tests.datasets import TINY, write_dataset
from tests.pipeline.programs import root_hash, run, write_texts

pytestmark = pytest.mark.processes
IN_MEMORY = (
    "--",
    "--runner=FnApiRunner",
    "--direct_num_workers=1",
    "--direct_running_mode=in_memory",
)
KINDS = ("doc-sentences", "single-sentence")


@pytest.fixture(scope="module")
def words(corpus, vocab_file):
    return ("build", "--input", corpus, "--vocab", vocab_file, "--workers", 1, "--num_buckets", 4)


@pytest.fixture(scope="module", params=KINDS)
def data(request, words, tmp_path_factory):
    """The folder of a dataset of a kind, to which a second build has added a pass and a length."""
    output = tmp_path_factory.mktemp("one") / request.param
    words = (*words, "--instances", request.param, "--output", output)
    assert run(*words, "--seq_lens", 64, "--passes", 1, *IN_MEMORY) == 0
    assert run(*words, "--seq_lens", 64, 8, "--passes", 2, *IN_MEMORY) == 0
    return output


def deep_findings(folder):
    dataset = open_dataset(str(folder))
    check = DeepCheck(dataset)
    return [str(each) for each in [*verify_dataset(dataset, check_block=check), *check.findings()]]


def texts_of_documents(folder):
    """By the first 64 bits of an id, a document's tokens and the lengths of its sentences."""
    return {
        int.from_bytes(each.id[:8], "big"): (each.tokens.tolist(), each.sentence_lengths.tolist())
        for part in (folder / "tokens").glob("*.tokens")
        for each in unpack_documents(part.read_bytes(), np.uint16, part.name)
    }


def texts_of_instances(dataset, seq_len, pass_index):
    """By document, the texts of its instances before they were masked, without [CLS] and [SEP]."""
    texts = defaultdict(list)
    shards = dataset.shards("train", seq_len, pass_index) + dataset.shards("validation", seq_len, 0)
    for shard in shards:
        for block in read_blocks(dataset, shard):
            ids = block.input_ids.copy()
            ids[block.masked_indices] = block.masked_lm_ids
            for row, document in enumerate(block.document_a.tolist()):
                start, stop = block.offsets[row : row + 2].tolist()
                texts[document].append(tuple(ids[start + 1 : stop - 1].tolist()))
    return texts


def can_tile(text, pieces):
    """Whether the pieces make up the text, each used once, one after another in some order."""
    if not pieces:
        return not text
    fitting = {piece for piece in pieces if text[: len(piece)] == list(piece)}
    for piece in fitting:
        others = [*pieces]
        others.remove(piece)
        if can_tile(text[len(piece) :], others):
            return True
    return False


def test_every_token_is_in_exactly_one_instance_of_a_pass(data):
    dataset = open_dataset(str(data))
    documents = texts_of_documents(data)
    assert len(documents) == 120
    for seq_len, pass_index in [(64, 0), (64, 1), (8, 0), (8, 1)]:
        instances = texts_of_instances(dataset, seq_len, pass_index)
        assert instances.keys() == documents.keys()
        for document, (text, _) in documents.items():
            assert can_tile(text, instances[document]), (seq_len, pass_index, document)
    assert deep_findings(data) == []


def test_an_instance_is_a_sentence_or_as_many_as_fit(data):
    """A length of 64 has room for 62 tokens, and every sentence here has fewer."""
    instances = texts_of_instances(open_dataset(str(data)), 64, 0)
    for document, (text, lengths) in texts_of_documents(data).items():
        ends = np.cumsum([0, *lengths]).tolist()
        sentences = sorted(tuple(text[start:stop]) for start, stop in pairwise(ends))
        if data.name == "single-sentence":
            assert sorted(instances[document]) == sentences
        else:
            assert max(map(len, instances[document])) <= 62
    means = {"doc-sentences": 40, "single-sentence": 10}
    lengths = [len(text) for texts in instances.values() for text in texts]
    assert np.mean(lengths) == pytest.approx(means[data.name], rel=0.2)


def test_workers_and_the_exchange_change_nothing_and_neither_do_two_builds(data, words, tmp_path):
    flags = ("--instances", data.name, "--seq_lens", 8, 64, "--passes", 2, "--workers", 2)
    runner = IN_MEMORY if data.name == "single-sentence" else ()  # real workers for one kind
    output = tmp_path / "data"
    assert run(*words, *flags, "--output", output, "--exchange", "shuffle", *runner) == 0
    assert root_hash(output) == root_hash(data)


def test_other_instances_are_refused(data, words, capsys):
    other = KINDS[1 - KINDS.index(data.name)]
    for flags, now in (((), "segment-pairs"), (("--instances", other), other)):
        assert run(*words, *flags, "--output", data, "--seq_lens", 64, "--passes", 1) == 2
        assert f"instances was {data.name} and is now {now}" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"nsp_balance is exact, and instances .*{data.name}"):
        BuildSettings(input=["a"], output="o", instances=data.name, nsp_balance="exact")


def test_pages_and_texts_show_one_segment(data, capsys):
    numbers = json.loads((data / "report.json").read_text())["dataset"]
    assert {group["random_next_share"] for group in numbers["groups"]} == {None}
    page = (data / "report.html").read_text()
    assert "Next sentence prediction" not in page
    assert "<b>A</b>" in page
    assert "<b>B</b>" not in page
    card = (data / "README.md").read_text()
    assert f"Masked instances of one segment ({data.name}) to pretrain BERT on, from 120" in card
    assert "--config configs/pretrain/bert-base.yaml --objective mlm --data data" in card
    assert run("report", data) == 0
    assert run("inspect", data, "--seq_len", 64, "--num_instances", 2) == 0
    said = capsys.readouterr().out
    assert "random next" not in said
    assert "label: one segment; documents " in said
    assert "\n  B: " not in said


def test_exports_say_that_there_is_no_next_sentence(data, tmp_path, capsys):
    flags = ("--seq_len", 64, "--split", "validation", "--output", tmp_path / "rows")
    assert run("export", data, "--format", "parquet", *flags) == 0
    said = capsys.readouterr().out
    assert "of one segment: segment_ids and next_sentence_labels are all 0, so" in said
    [path] = (tmp_path / "rows").glob("*.parquet")
    table = pq.read_table(path)
    assert {value for row in table["segment_ids"].to_pylist() for value in row} == {0}
    assert set(table["next_sentence_labels"].to_pylist()) == {0}


def test_a_found_document_is_in_segment_a_alone(data, tmp_path):
    dataset = open_dataset(str(data))
    block = next(read_blocks(dataset, dataset.shards("train", 64, 0)[0]))
    index = open_document_index(dataset, "train", str(tmp_path), lambda _: None)
    found = index.find(block.document_a[:1], [64])
    assert len(found)
    assert found.is_a.all()
    assert not found.is_b.any()


def test_a_redacted_dataset_is_sound(data, tmp_path):
    documents = texts_of_documents(data)
    chosen = sorted(documents)[40:43]
    (tmp_path / "list").write_text("".join(f"{document:016x}\n" for document in chosen))
    output = tmp_path / "redacted"
    assert run("redact", data, "--documents", tmp_path / "list", "--output", output) == 0
    assert deep_findings(output) == []
    left = texts_of_instances(open_dataset(str(output)), 64, 1)
    assert left.keys() == documents.keys() - {*chosen}


def test_sources_with_weights_share_all_tokens(mixture_config, vocab_file, tmp_path):
    words = ("build", "--config", mixture_config, "--vocab", vocab_file, "--workers", 1)
    flags = ("--instances", "doc-sentences", "--whole_word_masking", "true")
    assert run(*words, *flags, "--output", tmp_path / "data", *IN_MEMORY) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    for shard in dataset.all_shards:
        assert len(shard.source_tokens) == 2
        assert sum(shard.source_tokens) == shard.tokens
    assert deep_findings(tmp_path / "data") == []
    uses = texts_of_instances(dataset, 64, 0)
    for document, (text, _) in texts_of_documents(tmp_path / "data").items():
        lengths = sum(len(piece) for piece in uses[document])
        assert lengths in (0, len(text), 3 * len(text)), "a use is the whole document"


def test_documents_of_one_sentence_are_built_and_unknown_words_still_stop(
    vocab_file, tmp_path, capsys
):
    write_texts(tmp_path / "a.jsonl", [f"river mountain engine {number}." for number in range(40)])
    flags = ("--vocab", vocab_file, "--workers", 1, "--seq_lens", 16, "--passes", 1)
    words = ("build", *flags, "--instances", "doc-sentences", "--input")
    output = tmp_path / "data"
    assert run(*words, tmp_path / "a.jsonl", "--output", output, *IN_MEMORY) == 0
    assert sum(group.instances for group in open_dataset(str(output)).manifest.groups) == 40
    write_texts(tmp_path / "b.jsonl", [f"żółw żółw żółw {number}." for number in range(40)])
    assert run(*words, tmp_path / "b.jsonl", "--output", tmp_path / "o", *IN_MEMORY) == 2
    assert "of the tokens are [UNK]" in capsys.readouterr().err
    assert not (tmp_path / "o/train").exists()


PAIRS = {"masked_lm_prob": 0.15, "max_predictions": None, "whole_word_masking": False}


@pytest.mark.parametrize(
    ("settings", "segment_a_length", "message"),
    [
        (PAIRS, [4, 5], "instance 1: one segment, expected two;"),
        (
            PAIRS | {"instances": "single-sentence"},
            [6, 3],
            "instance 1: two segments, expected one",
        ),
    ],
)
@pytest.mark.parametrize("deep", ["false", "true"])
def test_an_instance_of_the_other_kind_is_found(
    tmp_path, settings, segment_a_length, message, deep, capsys
):
    """Where all checksums are in order, by everything that reads the block."""
    block = replace(TINY, segment_a_length=np.array(segment_a_length, np.uint16))
    write_dataset(tmp_path, {("train", 8, 0, 0): [block]}, 20, settings)
    assert run("verify", tmp_path, "--deep", deep) == 2
    assert message in capsys.readouterr().out
    dataset = open_dataset(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        [*read_blocks(dataset, dataset.all_shards[0])]


@pytest.mark.parametrize(
    ("kind", "places"), [("single-sentence", [0, 1, 2, 3]), ("segment-pairs", [0, 2, 1, 3])]
)
def test_the_report_shows_four_instances_of_either_kind(tmp_path, make_block, kind, places):
    block = make_block(6)
    if kind == "single-sentence":
        input_ids = block.input_ids.copy()
        input_ids[block.offsets[:-1] + block.segment_a_length - 1] = 7  # a word for the first [SEP]
        alone = {"segment_a_length": block.lengths.astype(np.uint16), "input_ids": input_ids}
        block = replace(
            block, **alone, document_b=block.document_a, is_random_next=np.zeros(6, bool)
        )
    else:
        block = replace(block, is_random_next=np.arange(6) % 2 == 1)
    write_dataset(tmp_path, {("train", 8192, 0, 0): [block]}, 100, PAIRS | {"instances": kind})
    dataset = open_dataset(str(tmp_path))
    shown = measure_group(dataset, dataset.manifest.groups[0])["sample_instances"]
    assert [each["instance"] for each in shown] == places


def test_a_damaged_end_of_the_only_segment_is_found(tmp_path):
    settings = PAIRS | {"instances": "single-sentence"}
    block = replace(
        TINY, segment_a_length=TINY.lengths.astype(np.uint16), document_b=TINY.document_a
    )
    write_dataset(tmp_path, {("train", 8, 0, 0): [block]}, 20, settings)
    assert any("[SEP] or [MASK] among its words" in each for each in deep_findings(tmp_path))
