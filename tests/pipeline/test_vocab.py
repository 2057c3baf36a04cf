"""The vocabulary stage: words counted on Beam, learned the same however work is cut."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.documents.parts import InputFile, plan_parts
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.verify import verify_dataset
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import document_id
from pipeline.tokens import word_counts
from pipeline.tokens.word_counts import (
    MAX_SAMPLE_BYTES,
    WordSeal,
    add_word_seals,
    bucket_name,
    choose_sample,
    counts_table,
    join_tables,
    read_commonest,
    sample_bits,
    seal_counts,
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


def test_seals_of_lists_add_up_to_that_of_all_their_words():
    first, second = {"the": 2, "end": 1}, {"the": 5}
    crc_the, crc_end = 0x3C456DE6, 0xFC33B1
    assert seal_counts(first) == WordSeal(3, 2 * crc_the + crc_end)
    whole = add_word_seals([{3: seal_counts(first)}, {3: seal_counts(second), 1: WordSeal(1, 9)}])
    assert whole == {1: WordSeal(1, 9), 3: seal_counts({"the": 7, "end": 1})}
    assert add_word_seals([{0: WordSeal(1, 2**64 - 1)}] * 2) == {0: WordSeal(2, 2**64 - 2)}


@pytest.fixture
def counted(tmp_path):
    """A folder of the tables of two buckets, and their seals."""
    buckets = {0: {"the": 7, "end": 1}, 5: {"a": 3}}
    for bucket, counts in buckets.items():
        (tmp_path / bucket_name(bucket)).write_bytes(counts_table(counts))
    return tmp_path, {bucket: seal_counts(counts) for bucket, counts in buckets.items()}


def test_tables_are_joined_by_their_planned_names_alone(counted):
    folder, seals = counted
    (folder / bucket_name(9)).write_bytes(counts_table({"foreign": 4}))
    assert read_commonest(join_tables(Folder(str(folder)), seals)) == (
        ["a", "end", "the"],
        [3, 1, 7],
    )


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (None, "words-00005.parquet is missing; run the same command again"),
        ({"a": 6}, "words-00005.parquet: holds 6 words .*, expected 3 words .* lost or repeated"),
        ({"b": 3}, "words-00005.parquet: holds 3 words .*, expected 3 words .* lost or repeated"),
        ({}, "words-00005.parquet: holds 0 words .*, expected 3 words"),
    ],
)
def test_a_table_of_other_counts_than_the_lists_say_is_refused(counted, counts, said):
    folder, seals = counted
    (folder / bucket_name(5)).unlink()
    if counts is not None:
        (folder / bucket_name(5)).write_bytes(counts_table(counts))
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        join_tables(Folder(str(folder)), seals)


def test_a_table_with_one_bit_changed_gives_the_same_or_is_refused(counted):
    folder, seals = counted
    path = folder / bucket_name(0)
    data = bytearray(path.read_bytes())
    expected, refused = join_tables(Folder(str(folder)), seals), 0
    for position in range(len(data)):
        data[position] ^= 4
        path.write_bytes(data)
        try:
            assert join_tables(Folder(str(folder)), seals) == expected
        except ValueError as error:
            said = str(error)
            assert re.fullmatch(r".*words-00000.parquet: .*run the same command again.*", said)
            refused += 1
        data[position] ^= 4
    assert refused > len(data) / 4


@pytest.mark.processes
@pytest.mark.parametrize(("command", "hidden"), [("vocab", "_words"), ("tokens", "tokens")])
def test_half_a_listing_stops_a_build_and_the_same_command_heals_it(
    command, hidden, learned, texts, tmp_path, monkeypatch, capsys
):
    for number in range(4):
        write_texts(tmp_path / f"{number}.jsonl", texts[30 * number : 30 * number + 30])
    output = tmp_path / "data"
    words = (command, "--input", f"{tmp_path}/*.jsonl", "--output", output, "--workers", 1)
    whole = Folder.list

    def half(self):
        found = whole(self)
        records = sorted(name for name in found if name.endswith("-last.json"))
        is_hidden = {*records[::2]} if self.path.endswith(f"/{hidden}") else set()
        return {name: size for name, size in found.items() if name not in is_hidden}

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "list", half)
        assert run(*words, *FLAGS) == 2
    said = capsys.readouterr().err
    assert "parts of the input are not complete there, such as that of" in said
    assert said.rstrip().endswith("run the same command again")
    assert run(*words, *FLAGS) == 0
    assert (output / "vocab.txt").read_bytes() == (learned / "vocab.txt").read_bytes()


@pytest.mark.processes
def test_a_vocabulary_that_was_changed_afterwards_is_refused(learned, corpus, tmp_path, capsys):
    output = tmp_path / "data"
    shutil.copytree(learned, output)
    path = output / "vocab.txt"
    path.write_text(path.read_text().replace("history", "History"))
    assert learn(corpus, output, *FLAGS) == 2
    said = capsys.readouterr().err
    assert f"{path} is not the vocabulary that vocab.json speaks of" in said
    (output / "vocab.json").write_text("{")
    assert learn(corpus, output, *FLAGS) == 2
    said = capsys.readouterr().err
    assert f"{output}/vocab.json is damaged, it is not JSON" in said
    assert "delete vocab.json beside it and run the same command again" in said


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
    monkeypatch.setattr(word_counts, "_PART_BYTES", 256)
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
