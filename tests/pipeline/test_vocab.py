"""The vocabulary stage: words counted on Beam, learned the same however work is cut."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.documents.parts import InputFile, plan_parts
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.verify import verify_dataset
from pipeline.text.cleaning import document_id
from pipeline.tokens import word_counts
from pipeline.tokens.word_counts import (
    MAX_SAMPLE_BYTES,
    choose_sample,
    counts_table,
    read_commonest,
    sample_bits,
)
from tests.pipeline.programs import run, write_texts
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED
from tokenizer.words import count_words

ROOT = Path(__file__).parents[2]
FLAGS = ("--vocab_size", "150", "--num_unused", "3")
GIB = 2**30


def learn(corpus, output, *flags):
    return run("vocab", "--input", corpus, "--output", output, "--workers", 1, *flags)


@pytest.fixture(scope="module")
def learned(corpus, tmp_path_factory):
    """The folder of a vocabulary learned by one worker."""
    output = tmp_path_factory.mktemp("learned") / "data"
    assert learn(corpus, output, *FLAGS) == 0
    return output


def read_counts(path):
    return dict(zip(*pq.read_table(path).to_pydict().values(), strict=True))


@pytest.mark.processes
def test_a_vocabulary_is_extended_and_reused_by_what_it_was_made_of(
    corpus, learned, vocab_file, tmp_path, capsys
):
    """Extended by the text that it was learned of."""
    output = tmp_path / "data"
    command = (corpus, output, "--vocab_size", 160, "--extend")
    assert learn(*command, learned / "vocab.txt") == 0
    said = capsys.readouterr().out
    old, new = (parse_vocab((each / "vocab.txt").read_bytes(), "v") for each in (learned, output))
    assert len(old) == 150
    assert len(new) == 160
    assert [index for index in range(150) if old.tokens[index] != new.tokens[index]] == [1, 2, 3]
    assert "3 [unusedN] hold new pieces, 10 follow the 150 lines; a word of" in said
    assert re.search(r" the sample takes 1\.\d+ tokens, 2\.137", said)
    assert (output / "tokenizer.json").exists()
    before = (output / "vocab.txt").stat().st_mtime_ns
    assert learn(*command, learned / "vocab.txt") == 0
    assert (output / "vocab.txt").stat().st_mtime_ns == before
    for flags, said in (
        ((vocab_file,), "extend_sha256 was"),
        ((learned / "nothing.txt",), "nothing.txt: no such file; expected a vocab.txt"),
        ((vocab_file, "--vocab", vocab_file), "both vocab and extend are given"),
    ):
        assert learn(*command, *flags) == 2
        assert said in capsys.readouterr().err


@pytest.mark.processes
def test_words_of_all_documents_make_a_vocabulary_of_berts_layout(learned, texts):
    special = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab = parse_vocab((learned / "vocab.txt").read_bytes(), "vocab.txt")
    assert vocab.tokens[:8] == ("[PAD]", *(f"[unused{n}]" for n in range(3)), *special)
    assert len(vocab) == 150
    assert "history" in vocab.ids
    counts = read_counts(learned / "word_counts.parquet")
    assert counts == count_words(texts, UNCASED)
    assert list(counts) == sorted(counts)
    assert sorted(path.name for path in learned.iterdir()) == [
        "tokenizer.json", "vocab.json", "vocab.txt", "word_counts.parquet"
    ]  # fmt: skip


@pytest.mark.processes
def test_the_same_bytes_with_other_workers_parts_names_and_hash_seed(learned, texts, tmp_path):
    for number in range(3):
        write_texts(tmp_path / f"{9 - number}.jsonl", texts[40 * number : 40 * number + 40])
    flags = ["--part_bytes", "4096", "--workers", "2", "--output", f"{tmp_path}/data", *FLAGS]
    command = [sys.executable, "-m", "pipeline", "vocab", "--input", f"{tmp_path}/*.jsonl", *flags]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    for name in ("word_counts.parquet", "vocab.txt", "tokenizer.json"):
        assert (tmp_path / "data" / name).read_bytes() == (learned / name).read_bytes(), name


@pytest.mark.processes
def test_a_finished_vocabulary_is_left_alone_and_another_refused(learned, corpus, capsys):
    before = (learned / "vocab.txt").stat().st_mtime_ns
    assert learn(corpus, learned, *FLAGS) == 0
    assert (learned / "vocab.txt").stat().st_mtime_ns == before
    assert learn(corpus, learned, *FLAGS[:2]) == 2
    assert "num_unused was 3 and is now 0" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("is_given", [False, True])
def test_nothing_is_left_of_an_interrupted_count(learned, corpus, vocab_file, tmp_path, is_given):
    (tmp_path / "_words").mkdir()
    leftover = counts_table({"leftover": 9})
    (tmp_path / "_words/words-00099.parquet").write_bytes(leftover)
    assert learn(corpus, tmp_path, *(("--vocab", vocab_file) if is_given else FLAGS)) == 0
    expected = vocab_file if is_given else learned / "vocab.txt"
    assert (tmp_path / "vocab.txt").read_bytes() == expected.read_bytes()
    assert not (tmp_path / "_words").exists()


@pytest.mark.parametrize(("text_bytes", "num_bits"), [(0, 0), (1, 0), (1.1, 1), (2, 1), (5, 3)])
def test_the_sample_is_the_largest_power_of_two_that_fits(text_bytes, num_bits):
    assert sample_bits(int(text_bytes * MAX_SAMPLE_BYTES)) == num_bits


@pytest.mark.processes
def test_only_the_sample_is_counted(corpus, texts, tmp_path, monkeypatch):
    input_bytes = sum(path.stat().st_size for path in corpus.iterdir())
    monkeypatch.setattr(word_counts, "MAX_SAMPLE_BYTES", input_bytes // 3)  # a quarter is sampled
    assert learn(corpus, tmp_path, "--part_bytes", 2048, *FLAGS) == 0
    sample = [text for text in texts if document_id(text)[0] >= 0xC0]
    assert read_counts(tmp_path / "word_counts.parquet") == count_words(sample, UNCASED)


def plan(sizes, part_bytes, source=0, text_format="jsonl"):
    files = [
        InputFile(f"memory://{source}/{number:04d}{name}", size, source)
        for number, (name, size) in enumerate(sizes)
    ]
    return plan_parts(files, text_format, part_bytes)


@pytest.mark.parametrize("part_bytes", [2**22, 2**25, 2**31])
def test_of_a_large_corpus_pieces_are_chosen_and_the_rest_is_not_read(part_bytes):
    sample = choose_sample(plan([(".jsonl", 128 * GIB)], part_bytes))
    assert set(sample.values()) == {0}, "all of their documents"
    assert [part.ranges[0].start for part in sample][:3] == [2**28, 3 * 2**28, 5 * 2**28]
    assert sum(part.text_bytes for part in sample) == 2 * GIB
    assert sample == choose_sample(plan([(".jsonl", 128 * GIB)], 2**24)), "however they are cut"


def test_of_files_that_cannot_be_cut_some_are_read_and_some_of_their_documents_counted():
    sample = choose_sample(plan([(".jsonl.gz", 320 * 10**6)] * 1024, 2**25))
    assert (len(sample), set(sample.values())) == (64, {6}), "of 1.3 TB one of 2^10"
    huge = [(".jsonl.zst", 20 * GIB), *[(".jsonl", 2**23)] * 1000]
    sample = choose_sample(plan(huge, 2**25))
    assert sorted(sample.values()) == [3] * 125 + [6], "every document with the same probability"


def test_a_corpus_that_fits_is_read_as_it_is_and_each_source_has_its_pieces():
    parts = plan([(".jsonl", 2 * GIB)], 2**25)
    assert choose_sample(parts) == dict.fromkeys(parts, 0)
    parts = [*plan([(".jsonl", 64 * GIB)], 2**25), *plan([(".jsonl", 2**28)], 2**25, source=1)]
    sizes = [0, 0]
    for part, bits in choose_sample(parts).items():
        sizes[part.source] += part.text_bytes >> bits
    assert sizes == [GIB, 2**22]


@pytest.mark.processes
def test_what_is_not_chosen_is_not_read(corpus, texts, tmp_path, monkeypatch, capsys):
    input_bytes = sum(path.stat().st_size for path in corpus.iterdir())
    monkeypatch.setattr(word_counts, "MAX_SAMPLE_BYTES", input_bytes // 4 + 1)
    monkeypatch.setattr(word_counts, "_PIECE_BYTES", 256)
    counts = []
    for part_bytes in (2048, 2**20):
        output = tmp_path / str(part_bytes)
        assert learn(corpus, output, "--part_bytes", part_bytes, *FLAGS) == 0
        counts.append(read_counts(output / "word_counts.parquet"))
        said = re.search(r"of (\d+) of (\d+) documents", capsys.readouterr().out)
        assert 10 <= int(said[1]) == int(said[2]) <= 60, "a quarter of 120 is expected"
    assert counts[0] == counts[1]


def test_only_the_commonest_words_are_learned_from(monkeypatch):
    monkeypatch.setattr(word_counts, "MAX_LEARNED_WORDS", 3)
    table = counts_table({"rare": 1, "often": 9, "c": 2, "b": 2, "d": 2})
    assert read_commonest(table) == (["b", "c", "often"], [2, 2, 9])


@pytest.mark.processes
def test_a_vocabulary_of_more_than_65536_entries_goes_through_the_whole_build(
    corpus, vocab_file, tmp_path
):
    tokens = vocab_file.read_text().split("\n")[:-1]
    wide = [*tokens[:6], *(f"filler{n}" for n in range(65_600)), *tokens[6:]]
    (tmp_path / "wide.txt").write_text("".join(f"{token}\n" for token in wide))
    flags = ("--vocab", tmp_path / "wide.txt", "--passes", 1, "--seq_lens", 64, "--workers", 1)
    assert run("build", "--input", corpus, "--output", tmp_path / "data", *flags) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    assert dataset.manifest.vocab_size == len(wide)
    assert verify_dataset(dataset) == []
    [shard] = dataset.shards("train", 64, 0)
    blocks = list(read_blocks(dataset, shard))
    assert {block.input_ids.dtype for block in blocks} == {np.dtype(np.uint32)}
    labels = np.concatenate([block.masked_lm_ids for block in blocks])
    # Masked tokens as they stood in the text: the full stop, or words above the fillers.
    assert set(labels[labels < 65_606].tolist()) <= {5}
    assert np.count_nonzero(labels >= 65_606) > 0.5 * len(labels)
