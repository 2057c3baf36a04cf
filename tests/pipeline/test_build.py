"""The whole builder on a small corpus: one root hash however work is cut or interrupted."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.shards.block import decode_block
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.stages import build as build_stages
from pipeline.text.cleaning import clean_text, document_id
from tests.pipeline.programs import run

pytestmark = pytest.mark.processes


def build(corpus, vocab_file, output, *arguments):
    fixed = ("--vocab", vocab_file, "--passes", 2, "--workers", 1)
    fixed += () if "--seq_lens" in arguments else ("--seq_lens", 64)
    return run("build", "--input", corpus, "--output", output, *fixed, *arguments)


def written_at(folder, pattern):
    return {path: path.stat().st_mtime_ns for path in Path(folder).glob(pattern)}


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("built") / "data"
    assert build(corpus, vocab_file, output) == 0
    return open_dataset(str(output))


def all_instances(dataset, split, pass_index=0):
    for shard in dataset.shards(split, 64, pass_index):
        for block in read_blocks(dataset, shard):
            for row in range(block.num_instances):
                yield block.slice(row, row + 1)


def test_a_finished_dataset_counts_what_it_holds(built):
    counters = built.manifest.counters
    counted = [counters[name] for name in ("documents_read", "documents", "dropped_duplicate")]
    assert counted == [120, 120, 0]
    train, validation = built.manifest.groups
    assert (train.split, train.passes, validation.passes) == ("train", 2, 1)
    instances = [each for number in range(2) for each in all_instances(built, "train", number)]
    assert train.instances == len(instances)
    shown = np.concatenate([each.input_ids[each.masked_lm_positions] for each in instances])
    is_mask = shown == built.manifest.special_ids["mask"]
    labels = np.concatenate([each.masked_lm_ids for each in instances])
    is_kept = (shown == labels) & ~is_mask
    found = (len(labels), np.count_nonzero(is_mask), np.count_nonzero(is_kept))
    assert (train.masked, train.masked_as_mask, train.masked_kept) == found
    assert 0.75 < is_mask.mean() < 0.85
    first, second = (built.shards("train", 64, number) for number in range(2))
    assert [each.content_hash for each in first] != [each.content_hash for each in second]
    assert {shard.source_tokens for shard in built.all_shards} == {()}, "there is one source"


def test_a_dataset_of_one_source_has_the_bytes_it_always_had(built, corpus, vocab_file, tmp_path):
    """Those without validation are older than holding out by source, which changed the others."""
    assert build(corpus, vocab_file, tmp_path / "data", "--validation_fraction", 0) == 0
    whole = open_dataset(str(tmp_path / "data"))
    found = [each.manifest.root_hash for each in (built, whole)]
    found += [each.manifest.settings_hash for each in (built, whole)]
    assert found == [
        "4bf537ce210012570970be112acd6d700050856ea6cbf9cb4173e11ab867d9c4",
        "c807eb1db85d058de1bde6828daf5a8f8e7904d4b2e844aa336d50f34ad6ff50",
        "f4edc52b2aca4cc70a6f11a6ee32f3d04f6d1b1d4734efb025d57efc6f6e735c",
        "fceabc51858e621fe30a695fea6e08ae25f20ff09a060bce9412ca4b2f93ff68",
    ]


def test_validation_holds_as_many_tokens_as_it_may(corpus, vocab_file, tmp_path, capsys):
    """From one folder of tokens, whose parts are used again, and found by provenance."""
    usual = ("--validation_fraction", 0.5, "--tokens", tmp_path / "tokens")
    assert build(corpus, vocab_file, tmp_path / "usual", *usual) == 0
    parts = written_at(tmp_path / "tokens", "*.tokens")
    assert build(corpus, vocab_file, tmp_path / "small", *usual, "--validation_tokens", 1500) == 0
    assert parts == written_at(tmp_path / "tokens", "*.tokens")
    assert run("verify", tmp_path / "small", "--deep", "true") == 0
    held_out, said = {}, {}
    for name in ("usual", "small"):
        dataset = open_dataset(str(tmp_path / name))
        documents = {int(each.document_a[0]) for each in all_instances(dataset, "validation")}
        trained = {int(each.document_a[0]) for each in all_instances(dataset, "train")}
        assert not documents & trained
        assert len(documents | trained) == 120
        held_out[name] = sorted(documents)
        said[name] = dataset.manifest.sources[0]["validation"]
        assert said[name]["documents"] == len(documents)
        assert int(said[name]["last_id"][:16], 16) == held_out[name][-1]
    total = dataset.manifest.counters["distinct_tokens"]
    assert 0.5 * total <= said["usual"]["tokens"] < 0.51 * total
    assert 1350 <= said["small"]["tokens"] <= 1500, "documents have some 130 tokens"
    assert held_out["small"] == held_out["usual"][: len(held_out["small"])], "the lowest ids"
    capsys.readouterr()
    last = f"{held_out['small'][-1]:016x}"
    assert run("inspect", tmp_path / "small", "--documents", last) == 0
    assert "for validation, once" in capsys.readouterr().out
    assert build(corpus, vocab_file, tmp_path / "usual", *usual, "--validation_tokens", 1400) == 2
    assert "validation_tokens was 1280000 and is now 1400" in capsys.readouterr().err


def test_a_giant_of_the_lowest_id_is_trained_on_and_takes_no_validation_away(
    texts, vocab_file, tmp_path, capsys
):
    ids = sorted(document_id(clean_text(text)) for text in texts)
    giants = ("\n".join([*texts[:40], f"Giant {number}."]) for number in itertools.count())
    giant = next(text for text in giants if document_id(clean_text(text)) < ids[3])
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in [*texts, giant])
    )
    assert build(tmp_path / "in.jsonl", vocab_file, tmp_path / "data") == 0
    giant_id, dataset = document_id(clean_text(giant)), open_dataset(str(tmp_path / "data"))
    held_out = {int(each.document_a[0]) for each in all_instances(dataset, "validation")}
    assert held_out == {int.from_bytes(each[:8], "big") for each in ids[: len(held_out)]}
    assert len(held_out) >= 5
    assert int.from_bytes(giant_id[:8], "big") in {
        int(each.document_a[0]) for each in all_instances(dataset, "train")
    }
    capsys.readouterr()
    assert run("inspect", tmp_path / "data", "--documents", giant_id.hex(), ids[0].hex()) == 0
    used = [line for line in capsys.readouterr().out.split("\n") if line.startswith("  used")]
    assert used == [
        "  used      1 time(s) in each of 2 pass(es)",
        "  used      for validation, once",
    ]


def test_an_exact_balance_is_another_dataset(corpus, vocab_file, built, tmp_path):
    assert build(corpus, vocab_file, tmp_path / "data", "--nsp_balance", "exact") == 0
    exact = open_dataset(str(tmp_path / "data")).manifest
    assert exact.root_hash != built.manifest.root_hash
    train, _ = exact.groups
    assert abs(2 * train.random_next - train.instances) <= 2 * train.shards
    assert (built.manifest.settings | {"nsp_balance": "exact"}) == exact.settings


def test_the_root_hash_does_not_depend_on_files(built, texts, vocab_file, tmp_path):
    folder = tmp_path / "renamed"
    folder.mkdir()
    # Another order, other files, one copy.
    order = [texts[-1], *texts[50:-1], *texts[:50], texts[3]]
    for number, start in enumerate(range(0, len(order), 30)):
        own = order[start : start + 30]
        rows = [json.dumps({"id": number, "text": text + "\r\n"}) for text in own]
        folder.joinpath(f"{9 - number}.jsonl").write_text("\n".join(rows) + "\n")
    assert build(folder, vocab_file, tmp_path / "data") == 0
    dataset = open_dataset(str(tmp_path / "data"))
    assert dataset.manifest.root_hash == built.manifest.root_hash
    assert dataset.manifest.counters["dropped_duplicate"] == 1


def test_a_finished_build_is_left_alone(built, corpus, vocab_file, capsys):
    files = [
        *Path(built.folder.path).glob("**/shard-*.tar"),
        Path(built.folder.path, "manifest.json"),
    ]
    before = [path.stat().st_mtime_ns for path in files]
    assert build(corpus, vocab_file, built.url) == 0
    assert f"root hash {built.manifest.root_hash}" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in files] == before
    assert len(files) == len(built.all_shards) + 1


def test_an_interrupted_build_ends_with_the_same_hash(built, corpus, vocab_file, tmp_path):
    output = tmp_path / "data"
    shutil.copytree(built.folder.path, output)
    # As a kill leaves it before the manifest: a shard and its record miss, one part is stale.
    shard = built.shards("train", 64, 1)[0].name
    for name in ("manifest.json", "shards.parquet", shard):
        (output / name).unlink()
    (output / "tokens/0123-00000.tokens").write_bytes(b"of an interrupted task")
    (output / "tokens/tokens.json").unlink()
    assert build(corpus, vocab_file, output) == 0
    assert open_dataset(str(output)).manifest.root_hash == built.manifest.root_hash
    assert not (output / "tokens/0123-00000.tokens").exists()
    assert not (output / "_tasks").exists()


def test_parts_of_another_size_are_never_read(built, corpus, vocab_file, tmp_path):
    """A build killed before tokens.json goes on with parts cut otherwise: old ones are poison."""
    output = tmp_path / "data"
    assert build(corpus, vocab_file, output, "--part_bytes", 4096) == 0
    shutil.rmtree(output / "train")
    for name in ("manifest.json", "tokens/tokens.json", "tokens/prefixes.rows"):
        (output / name).unlink()
    stale = list(output.glob("tokens/*.tokens")) + list(output.glob("tokens/*.index"))
    assert len(stale) > 10
    for path in stale:
        path.write_bytes(b"of another part size")
    assert build(corpus, vocab_file, output, "--part_bytes", 16_384) == 0
    assert open_dataset(str(output)).manifest.root_hash == built.manifest.root_hash
    assert not [path for path in stale if path.exists()]
    assert run("verify", output) == 0


def test_passes_and_lengths_can_be_added(built, corpus, vocab_file, tmp_path):
    output = tmp_path / "data"
    shutil.copytree(built.folder.path, output)
    assert build(corpus, vocab_file, output, "--passes", 3, "--seq_lens", 64, 128) == 0
    dataset = open_dataset(str(output))
    assert [(group.seq_len, group.split, group.passes) for group in dataset.manifest.groups] == [
        (64, "train", 3), (128, "train", 3), (64, "validation", 1), (128, "validation", 1)
    ]  # fmt: skip
    for pass_index in range(2):
        assert dataset.shards("train", 64, pass_index) == built.shards("train", 64, pass_index)
    assert run("verify", output) == 0


# It leaves files for the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_plain_webdataset_reads_the_shards(built):
    webdataset, shards = pytest.importorskip("webdataset"), built.shards("train", 64, 0)
    urls = [f"{built.folder.path}/{shard.name}" for shard in shards]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    blocks = [decode_block(sample["arrow"], sample["__key__"]) for sample in samples]
    assert [block.num_instances for block in blocks] == [shard.instances for shard in shards]


def test_the_factors_of_compiled_modules_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs/results.md").read_text()
    table = page.partition("| work | plain Python |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| ([^|(]+?) (?:\([^|]*)?\|.*\| (\d+) \|$", table, re.MULTILINE))
    said = ", ".join(build_stages._COMPILED_MODULES.values())
    assert dict(re.findall(r"([a-z ]+?) (\d+) times(?:, )?", said)) == {
        "words to ids": rows["words to ids"],
        "cleaning": rows["cleaning English text"],
        "wikitext": rows["wikitext to paragraphs"],
        "pairs": rows["drawing pairs exactly as google-research/bert draws them"],
        "masks": rows["choosing which tokens are masked"],
    }


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_line_says_what_takes_longer_without_a_compiler(monkeypatch, capsys, is_compiled):
    monkeypatch.setattr(build_stages, "load", lambda name: name if is_compiled else None)
    build_stages._say_what_is_slow()
    said = capsys.readouterr().out
    assert said.count("\n") == (not is_compiled)
    if not is_compiled:
        assert "words to ids 51 times, cleaning" in said
        assert "build_ext --inplace" in said
