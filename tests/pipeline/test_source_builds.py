"""Builds of several sources: one root hash however work is cut, counters, weights, the report."""

import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.documents.source import UNIT
from pipeline.documents.sources import count_uses
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.text.cleaning import clean_text, document_id
from tests.pipeline.programs import run, write_texts

pytestmark = pytest.mark.processes
SETTINGS_HASH = "7389804147c9cc66380d51487362383056c3e3053a704d4de7afdb2be3ea7155"
ROOT_HASH = "5100ebcfc5fd851505537be42db0e9050648dc9b6314bf0add23686de2d27915"


def prefixes_of(texts):
    """The number of each document, by the first 8 bytes of its id."""
    ids = [document_id(clean_text(text)) for text in texts]
    return {int.from_bytes(each[:8], "big"): number for number, each in enumerate(ids)}


def build(config, vocab_file, output, *flags):
    assert run("build", "--config", config, "--vocab", vocab_file, "--output", output, *flags) == 0
    return open_dataset(str(output))


def test_a_mixture_has_the_root_hash_it_always_had_however_work_is_cut(
    mixture, mixture_config, texts, tmp_path
):
    """Of documents in two sources, and near-duplicates: what this covers may never change."""
    assert mixture.manifest.settings_hash == SETTINGS_HASH
    write_texts(tmp_path / "again.jsonl", [f"{each} Again." for each in texts[:20]], "books")
    settings = json.loads(mixture_config.read_text()) | {"near_duplicates": 0.8, "vocab_size": 300}
    settings["sources"][1]["input"].append(f"{tmp_path}/again.jsonl")
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    found = []
    for exchange, part_bytes in (("files", 2048), ("shuffle", 2**20)):
        flags = ("--exchange", exchange, "--part_bytes", part_bytes, "--workers", 1)
        words = ("--config", tmp_path / "c.yaml", "--output", tmp_path / exchange)
        assert run("build", *words, *flags) == 0
        found.append(open_dataset(f"{tmp_path}/{exchange}"))
    manifest, other = (each.manifest for each in found)
    assert manifest.counters["dropped_near_duplicate"] == 20, manifest.counters
    assert {group.split for group in manifest.groups} == {"train", "validation"}
    assert (manifest.root_hash, manifest.sources) == (ROOT_HASH, other.sources)
    assert other.root_hash == ROOT_HASH
    one, two = ([shard.source_tokens for shard in each.all_shards] for each in found)
    assert one == two


def test_sources_are_counted(mixture):
    news, books = mixture.manifest.sources
    assert (news["name"], news["weight"], news["language"]) == ("news", 0.5, "en")
    names = ("documents_read", "documents", "dropped_duplicate")
    assert [news["counters"][name] for name in names] == [70, 70, 0]
    assert [books["counters"][name] for name in names] == [60, 50, 10]
    total = mixture.manifest.counters
    for name in ("documents", "cleaned_bytes", "distinct_tokens", "sentences"):
        assert news["counters"][name] + books["counters"][name] == total[name]


def uses_in(dataset, texts, pass_index, split="train"):
    """Instances that begin with each document, by its number."""
    number_of, found = prefixes_of(texts), Counter()
    for shard in dataset.shards(split, 64, pass_index):
        for block in read_blocks(dataset, shard):
            found.update(number_of[key] for key in block.document_a.tolist())
    return found


def test_weights_decide_how_often_a_document_is_used(mixture, texts):
    seed, held_out = 12345, set(uses_in(mixture, texts, 0, "validation"))
    for pass_index in range(2):
        found = uses_in(mixture, texts, pass_index)
        for number in set(range(120)) - held_out:
            weight = UNIT // 2 if number < 70 else 3 * UNIT
            uses = count_uses(weight, pass_index, seed, document_id(clean_text(texts[number])))
            assert bool(uses) == bool(found[number]), number
    plain = [found[number] for number in range(70, 120)]
    assert np.mean(plain) > 2 * np.mean([each for number, each in found.items() if number < 70])


def test_every_source_gives_to_validation_the_documents_of_its_lowest_ids(mixture, texts):
    """A document of both belongs to the first."""
    ids = {document_id(clean_text(text)).hex(): number for number, text in enumerate(texts)}
    held_out = set(uses_in(mixture, texts, 0, "validation"))
    trained = set(uses_in(mixture, texts, 0)) | set(uses_in(mixture, texts, 1))
    assert held_out | trained == set(range(120))
    assert not held_out & trained
    for source, own in zip(mixture.manifest.sources, (range(70), range(70, 120)), strict=True):
        lowest = [number for _, number in sorted(ids.items()) if number in own]
        said = source["validation"]
        assert set(lowest[: said["documents"]]) == held_out & set(own)
        assert ids[said["last_id"]] == lowest[said["documents"] - 1]
        assert 0.05 <= said["tokens"] / source["counters"]["distinct_tokens"] <= 0.1


def test_weights_may_change_over_the_same_tokens_and_validation_stays(
    mixture, mixture_config, vocab_file, tmp_path
):
    changed = json.loads(mixture_config.read_text())
    for source in changed["sources"]:
        source["weight"] = 7
    (tmp_path / "c.yaml").write_text(json.dumps(changed))
    tokens = Path(mixture.folder.path, "tokens/tokens.json")
    before, flags = tokens.stat().st_mtime_ns, ("--tokens", tokens.parent, "--workers", 1)
    heavier = build(tmp_path / "c.yaml", vocab_file, tmp_path / "data", *flags)
    assert tokens.stat().st_mtime_ns == before
    assert heavier.manifest.root_hash != mixture.manifest.root_hash
    own, others = (each.shards("validation", 64, 0) for each in (mixture, heavier))
    assert [shard.content_hash for shard in own] == [shard.content_hash for shard in others]


def test_tokens_of_instances_are_counted_by_source(mixture, texts):
    source_of = {key: number >= 70 for key, number in prefixes_of(texts).items()}
    for shard in mixture.all_shards:
        expected = [0, 0]
        for block in read_blocks(mixture, shard):
            for row in range(block.num_instances):
                one = block.slice(row, row + 1)
                length = int(one.segment_a_length[0])
                expected[source_of[int(one.document_a[0])]] += length
                expected[source_of[int(one.document_b[0])]] += len(one.input_ids) - length
        assert list(shard.source_tokens) == expected
        assert sum(expected) == shard.tokens


def test_a_single_source_is_what_input_is(corpus, vocab_file, tmp_path):
    source = {"name": "all", "input": [str(corpus)], "licence": "CC0-1.0"}
    (tmp_path / "c.yaml").write_text(json.dumps({"sources": [source]}))  # JSON is YAML too
    sizes = ("--passes", 1, "--seq_lens", 64, "--workers", 1)
    named = build(tmp_path / "c.yaml", vocab_file, tmp_path / "named", *sizes)
    words = ("--input", corpus, "--vocab", vocab_file, "--output", tmp_path / "plain")
    assert run("build", *words, *sizes) == 0
    plain = open_dataset(str(tmp_path / "plain"))
    assert named.manifest.root_hash == plain.manifest.root_hash
    assert named.manifest.settings_hash == plain.manifest.settings_hash
    assert named.read_file("shards.parquet") == plain.read_file("shards.parquet")


def test_tokens_of_other_sources_are_refused(mixture, mixture_config, vocab_file, tmp_path, capsys):
    changed = mixture_config.read_text().replace('"name": "news"', '"name": "papers"')
    (tmp_path / "c.yaml").write_text(changed)
    for command in ("build", "shards"):
        flags = ("--vocab", vocab_file, "--output", mixture.folder.path, "--workers", 1)
        assert run(command, "--config", tmp_path / "c.yaml", *flags) == 2
        assert "holds tokens of other settings: sources was" in capsys.readouterr().err


def test_the_report_shows_the_mixture(mixture, capsys):
    assert run("report", mixture.url) == 0
    text = capsys.readouterr().out
    news, books = json.loads(mixture.read_file("report.json"))["dataset"]["mixture"]
    names = ("licence", "language", "weight", "documents")
    assert [news[name] for name in names] == ["CC0-1.0", "en", 0.5, 70]
    assert (books["licence"], books["documents_read"], books["documents"]) == ("", 60, 50)
    train = [shard.source_tokens for shard in mixture.all_shards if shard.split == "train"]
    tokens = np.sum(train, axis=0)
    assert news["share_of_instances"] == pytest.approx(tokens[0] / tokens.sum(), abs=1e-5)
    share = news["tokens"] / (news["tokens"] + books["tokens"])
    assert news["share_of_corpus"] == pytest.approx(share, abs=1e-5)
    assert news["share_of_instances"] < news["share_of_corpus"]
    assert f"{news['share_of_instances']:.1%} of train instances  CC0-1.0" in text
    page = mixture.read_file("report.html").decode()
    for shown in (">news</td>", ">CC0-1.0<", ">not stated<", ">Mixture<", ">Validation by source<"):
        assert shown in page


def test_the_table_of_files_names_source_and_licence(mixture):
    rows = pq.read_table(io.BytesIO(mixture.read_file("sources.parquet"))).to_pylist()
    assert [(row["source"], row["licence"]) for row in rows] == [("news", "CC0-1.0"), ("books", "")]
    assert all(row["url"].endswith(f"/{row['source']}.jsonl") for row in rows)
