"""What sources give to the vocabulary and to a plan, and two languages in one build."""

import itertools
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.source import Source
from pipeline.inspect.show import read_vocabulary
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.stages.build_shards import instance_rule
from pipeline.stages.corpus import find_corpus
from pipeline.stages.plan import describe_plan
from pipeline.tokens.buckets import plan_buckets
from pipeline.tokens.provenance import find_tokens
from pipeline.tokens.token_index import TokenParts, read_bucket
from tests.pipeline.programs import run, write_texts

pytestmark = pytest.mark.processes


def test_words_count_as_often_as_their_source_is_used(mixture_config, tmp_path):
    def counts_with(*weights):
        changed = json.loads(mixture_config.read_text()) | {"vocab_size": 120}
        for source, weight in zip(changed["sources"], weights, strict=True):
            source["weight"] = weight
        config, output = tmp_path / "c.yaml", tmp_path / "-".join(map(str, weights))
        config.write_text(json.dumps(changed))
        assert run("vocab", "--config", config, "--output", output, "--workers", 1) == 0
        table = pq.read_table(output / "word_counts.parquet")
        return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))

    even, double, mixed = counts_with(1, 1), counts_with(2, 2), counts_with(0.5, 1.5)
    assert even == double
    assert mixed["5"] == even["5"]  # only in the first source
    assert mixed["115"] == 3 * even["115"]
    assert even["river"] < mixed["river"] < 3 * even["river"]


def test_a_plan_takes_weights_into_account(mixture_config, vocab_file, mixture, tmp_path):
    settings = json.loads(mixture_config.read_text()) | {"vocab": str(vocab_file)}
    settings["sources"] = [Source(**source) for source in settings["sources"]]
    settings = BuildSettings(output=str(tmp_path / "data"), **settings)
    plan = describe_plan(settings, 1, find_corpus(settings).parts, instance_rule)
    shards = [shard for number in range(2) for shard in mixture.shards("train", 64, number)]
    train = sum(shard.instances for shard in shards)
    planned = re.search(r"L64: ([\d,]+) train instances a pass", plan)[1].replace(",", "")
    assert int(planned) == pytest.approx(train / 2, rel=0.15)
    row = r"(\w+): (\d+) documents of .*, ([\d,]+) in all; weight (\S+) makes them (\S+)%"
    rows = re.findall(row, plan)
    assert [row[:2] for row in rows] == [("news", "70"), ("books", "60")]
    used = [float(row[3]) * int(row[2].replace(",", "")) for row in rows]
    assert [row[3] for row in rows] == ["0.5", "3"]
    assert float(rows[1][4]) == pytest.approx(100 * used[1] / sum(used), abs=0.05)


def test_english_and_chinese_come_together(shared_data, tmp_path):
    english = tmp_path / "english.jsonl"
    files = find_inputs([str(shared_data / "data/wiki_en/wiki_en_00.txt.zst")])
    documents = itertools.islice(read_part(plan_parts(files, "auto", 2**30)[0]), 40)
    write_texts(english, [document.text for document in documents])
    zh = {"input": [str(shared_data / "data/wiki_zh/wiki_zh_00.txt.zst")], "language": "zh"}
    sources = [{"name": "wiki-en", "input": [str(english)]}, {"name": "wiki-zh", "weight": 2, **zh}]
    sizes = {"vocab_size": 9000, "alphabet_size": 8000, "num_buckets": 1, "passes": 1}
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"sources": sources, "workers": 1, **sizes}))  # JSON is YAML too
    assert run("build", "--config", config, "--output", tmp_path / "data") == 0
    dataset = open_dataset(str(tmp_path / "data"))
    vocabulary = read_vocabulary(dataset)
    assert sum("\u4e00" <= token[0] <= "\u9fff" for token in vocabulary.tokens) > 3000
    counted = dataset.manifest.sources[1]["counters"]
    unknown = counted.get("unknown_tokens", 0)
    assert unknown < 0.001 * counted["tokens"], "13 % with an alphabet of 1,000"

    english_row, chinese_row = json.loads(dataset.read_file("report.json"))["dataset"]["mixture"]
    tokens = english_row["tokens"], chinese_row["tokens"]
    assert chinese_row["share_of_corpus"] == pytest.approx(tokens[1] / sum(tokens), abs=1e-6)
    # A follows the weights; half of the instances have a random B, from any document alike.
    tokens_of = find_tokens(dataset)
    names, bucket = tokens_of.store["part_names"], plan_buckets(1, b"")[0]
    documents = list(read_bucket(TokenParts(tokens_of.folder, "uint16"), names, bucket))
    starts = {int.from_bytes(each.id[:8], "big"): each.source for each in documents}
    firsts, [shard] = np.zeros(2), dataset.shards("train", 128, 0)
    for block in read_blocks(dataset, shard):
        by_source = np.array([starts[int(key)] for key in block.document_a.tolist()])
        is_next = ~block.is_random_next
        firsts += np.bincount(by_source[is_next], np.diff(block.offsets)[is_next] - 3, 2)
    expected = 2 * tokens[1] / (tokens[0] + 2 * tokens[1])
    assert firsts[1] / firsts.sum() == pytest.approx(expected, abs=0.05)
    assert chinese_row["share_of_instances"] > chinese_row["share_of_corpus"]

    stop, ends_with_stop, inside = vocabulary.tokens.index("。"), 0, 0
    for document in documents:
        if document.source == 1:
            ends = np.cumsum(document.sentence_lengths.astype(int)) - 1
            ends_with_stop += int(np.count_nonzero(document.tokens[ends] == stop))
            inside += int(np.count_nonzero(np.delete(document.tokens, ends) == stop))
    assert ends_with_stop > 5000
    assert inside < 0.03 * ends_with_stop  # in quotations
