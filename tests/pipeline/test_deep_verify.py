"""`verify --deep true`: each of BERT's rules broken where checksums and hashes are in order."""

import dataclasses
from random import Random

import numpy as np
import pytest

from pipeline.inspect.deep_verify import DeepCheck
from pipeline.instances.masking import GroupDraws, MaskingRule, mask_instances
from pipeline.instances.rules import (
    InstanceRules,
    Shares,
    count_shares,
    find_unlikely_shares,
    find_violations,
)
from pipeline.shards.block import Block
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.seal import Seal
from pipeline.shards.verify import verify_dataset
from tests.datasets import CLS, MASK, PAD, SEP, UNK, edit_manifest, write_dataset
from tests.pipeline.programs import run

SEQ_LEN, VOCAB_SIZE = 64, 300
SETTINGS = {"masked_lm_prob": 0.15, "max_predictions": None, "whole_word_masking": False}
RULE = MaskingRule(MASK, VOCAB_SIZE, 10)
RULES = InstanceRules(SEQ_LEN, CLS, SEP, np.array([PAD, CLS, SEP, MASK]), RULE)
IS_CONTINUATION = np.arange(VOCAB_SIZE) % 3 == 2
WHOLE_WORDS = RULES._replace(masking=dataclasses.replace(RULE, is_continuation=IS_CONTINUATION))


def sound_block(num_instances: int, rule: MaskingRule = RULE, seed: int = 0) -> Block:
    """Instances of 8 to 64 random tokens, masked by the builder's own function."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, SEQ_LEN + 1, num_instances)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    middle = rng.integers(3, lengths - 2).astype(np.uint16)
    ids = rng.choice([UNK, *range(5, VOCAB_SIZE)], offsets[-1]).astype(np.uint16)
    ids[offsets[:-1]] = CLS
    ids[offsets[:-1] + middle - 1] = ids[offsets[1:] - 1] = SEP
    masked = mask_instances(ids.copy(), offsets, middle, rule, GroupDraws(Random(seed)))
    is_random_next = rng.random(num_instances) < 0.55
    documents = rng.integers(0, 2**63, num_instances, dtype=np.uint64)
    return Block(
        input_ids=masked.input_ids,
        offsets=offsets.astype(np.int32),
        segment_a_length=middle,
        masked_lm_positions=masked.masked_lm_positions,
        masked_lm_ids=masked.masked_lm_ids,
        masked_offsets=masked.masked_offsets.astype(np.int32),
        is_random_next=is_random_next,
        document_a=documents,
        document_b=np.where(is_random_next, np.roll(documents, 1), documents),
    )


def write(folder, *blocks, corpus=None):
    shards, seal = {("train", SEQ_LEN, 0, 0): blocks}, corpus or seal_of(blocks)
    return open_dataset(str(write_dataset(folder, shards, VOCAB_SIZE, SETTINGS, seal)))


def seal_of(blocks):
    documents = np.unique(np.concatenate([block.document_a for block in blocks]))
    return Seal(len(documents), 1, f"{np.bitwise_xor.reduce(documents):016x}{7:016x}")


def deep(dataset):
    check = DeepCheck(dataset)
    return [str(each) for each in [*verify_dataset(dataset, check_block=check), *check.findings()]]


ROW = 5  # the instance that each change below breaks


def changed(block, name, index, value):
    column = getattr(block, name).copy()
    column[index] = value
    return dataclasses.replace(block, **{name: column})


def row(_):
    return ROW


def first_masked(block):
    return int(block.masked_offsets[ROW])


def last_masked(block):
    return int(block.masked_offsets[ROW + 1]) - 1


def first_token(block):
    return block.offsets[ROW]


def end_of_a(block):
    return block.offsets[ROW] + block.segment_a_length[ROW] - 1


def last_token(block):
    return block.offsets[ROW + 1] - 1


def plain_token(block):
    """Where an unmasked token of the row's text lies in input_ids."""
    start, stop = block.offsets[ROW : ROW + 2]
    taken = {0, int(block.segment_a_length[ROW]) - 1, int(stop - start) - 1}
    own = slice(*block.masked_offsets[ROW : ROW + 2])
    taken |= set(block.masked_lm_positions[own].tolist())
    return int(start) + min(set(range(int(stop - start))) - taken)


def without_one_mask(block):
    at = first_masked(block)
    offsets = block.masked_offsets.copy()
    offsets[ROW + 1 :] -= 1
    names = ("masked_lm_positions", "masked_lm_ids")
    columns = {name: np.delete(getattr(block, name), at) for name in names}
    return dataclasses.replace(block, masked_offsets=offsets, **columns)


def swapped_positions(block):
    at = first_masked(block)
    pair = block.masked_lm_positions[at : at + 2][::-1].copy()
    return changed(block, "masked_lm_positions", slice(at, at + 2), pair)


def row_length(block):
    return int(block.offsets[ROW + 1] - block.offsets[ROW])


def at(name, place, value):
    """A change of one value of a column; place and value may depend on the block."""
    return lambda b: changed(b, name, place(b), value(b) if callable(value) else value)


POSITIONS, LABELS, EMPTY = "masked_lm_positions", "masked_lm_ids", "a segment without a token"
SPECIAL_WORD = "[PAD], [CLS], [SEP] or [MASK] among its words"
NOT_ASCENDING = "masked positions that do not ascend"
ON_SPECIAL = "a masked position on [CLS] or [SEP]"
NOT_AGREED = "is_random_next and its documents do not agree"
BROKEN = [
    (at("input_ids", first_token, 9), "no [CLS] at its start"),
    (at("input_ids", end_of_a, 9), "no [SEP] at the end of A"),
    (at("input_ids", last_token, 9), "no [SEP] at its end"),
    (at("segment_a_length", row, 2), EMPTY),
    (at("segment_a_length", row, lambda b: row_length(b) - 1), EMPTY),
    (at("input_ids", plain_token, PAD), SPECIAL_WORD),
    (at("input_ids", plain_token, MASK), SPECIAL_WORD),
    (at(LABELS, first_masked, SEP), "a masked_lm_id of [PAD], [CLS]"),
    (swapped_positions, NOT_ASCENDING),
    (at(POSITIONS, lambda b: first_masked(b) + 1, lambda b: b.masked_lm_positions[first_masked(b)]),
     NOT_ASCENDING),
    (at(POSITIONS, first_masked, 0), ON_SPECIAL),
    (at(POSITIONS, last_masked, lambda b: row_length(b) - 1), ON_SPECIAL),
    (without_one_mask, "another number of masked positions than its length gives"),
    (at("is_random_next", row, lambda b: not b.is_random_next[ROW]), NOT_AGREED),
    (at("document_b", row, lambda b: b.document_a[ROW - (not b.is_random_next[ROW])]), NOT_AGREED),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_a_broken_rule_is_found_where_checksums_hold(tmp_path, change, said):
    dataset = write(tmp_path, sound_block(1024), change(sound_block(500, seed=1)))
    assert verify_dataset(dataset) == []
    [finding] = deep(dataset)
    assert finding.startswith(
        f"{tmp_path}/train/L64/pass-00/shard-00000.tar, block 1: 1 instance(s)"
    )
    assert f"the first is row {ROW}: {said}" in finding


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (at("input_ids", plain_token, VOCAB_SIZE), f"a token id of {VOCAB_SIZE} or more"),
        (at(LABELS, first_masked, VOCAB_SIZE), f"a masked_lm_id of {VOCAB_SIZE} or more"),
        (at(POSITIONS, last_masked, row_length), "a masked position past its end"),
        (lambda b: b, "longer than 40 tokens"),
    ],
)
def test_what_every_verification_finds_is_found_by_the_rules_too(change, said):
    rules = RULES._replace(seq_len=40) if "longer" in said else RULES
    assert any(said in each for each in find_violations(change(sound_block(50)), rules))


def test_sound_instances_pass_and_shares_are_told(tmp_path):
    dataset = write(tmp_path, sound_block(1024), sound_block(1024, seed=1), sound_block(17, seed=2))
    assert deep(dataset) == []
    check = DeepCheck(dataset)
    verify_dataset(dataset, check_block=check)
    [line] = check.describe()
    assert line.startswith("train L64: masked positions show [MASK] ")
    assert check.shares["train", SEQ_LEN].instances == 2065


def test_documents_without_instances_are_missed(tmp_path):
    """Every document of a bucket begins an instance of every pass, where the seal is seen."""
    blocks = sound_block(1024), sound_block(1024, seed=1), sound_block(17, seed=2)
    whole = seal_of(blocks)
    [finding] = deep(write(tmp_path, *blocks, corpus=dataclasses.replace(whole, documents=2100)))
    begins = "the instances of its shard begin with 2,065 documents (xor of ids "
    assert finding.startswith(f"{tmp_path}/train/L64/pass-00/shard-00000.tar, block 2: {begins}")
    said = f"the shard's seal is of 2,100 documents of 1 tokens (xor of ids {whole.ids_xor})"
    assert finding.endswith(said)
    other = dataclasses.replace(whole, ids_xor="0" * 32)
    [finding] = deep(write(tmp_path / "other", *blocks, corpus=other))
    found = f"(xor of ids {whole.ids_xor[:16]}...)"
    assert f"{found}, the shard's seal is of 2,065 documents" in finding


@pytest.mark.processes
def test_weights_leave_documents_out_of_a_pass_but_add_none(mixture):
    assert deep(mixture) == []
    first, other = mixture.shards("train", 64, 0)[:2]
    fewer = dataclasses.replace(first, seal=Seal(3, 1, "0" * 32))
    [said] = said_of(mixture, first, fewer)
    assert "at most" in said
    *_, said = said_of(mixture, other, first)  # a bucket that copies another
    assert "segment(s) are of another bucket than 0 of 4: ids of it begin with 0000" in said


def said_of(dataset, shard, row, **changes):
    """What is said of the blocks of a shard that another row stands for."""
    check = DeepCheck(dataset)
    check.__dict__ |= changes
    return [what for block in read_blocks(dataset, shard) for what in check(row, block)]


@pytest.mark.processes
def test_the_last_ids_held_out_are_those_of_the_manifest(mixture):
    [shard] = mixture.shards("validation", 64, 0)
    sources = [{"validation": {"last_id": "f" * 32}}]
    [said] = said_of(mixture, shard, shard, _sources=sources)
    last_ids = f"the last ids of sources held out are {'f' * 32}"
    assert said.startswith(f"the manifest says that {last_ids}; ")


def test_segment_b_is_of_a_document_of_its_bucket(tmp_path):
    block = sound_block(300)
    row = int(np.flatnonzero(block.is_random_next)[0])
    foreign = changed(block, "document_b", row, 7)
    [finding] = deep(write(tmp_path, foreign))
    assert finding.endswith("1 segment(s) B are of documents that begin no instance of its shard")


def test_a_block_of_no_instances_breaks_nothing():
    empty = sound_block(3).slice(1, 1)
    assert list(find_violations(empty, RULES)) == list(find_violations(empty, WHOLE_WORDS)) == []
    assert count_shares(empty, RULES) == Shares()
    assert list(find_unlikely_shares(Shares(), VOCAB_SIZE)) == []


def test_whole_words_are_masked_whole_and_no_more_than_the_count():
    block = sound_block(400, WHOLE_WORDS.masking, seed=3)
    assert list(find_violations(block, WHOLE_WORDS)) == []
    assert "another number of masked positions" in next(find_violations(block, RULES))
    found = find_violations(sound_block(400, seed=3), WHOLE_WORDS)
    assert any("a word masked in part" in each for each in found)
    more = WHOLE_WORDS._replace(masking=dataclasses.replace(WHOLE_WORDS.masking, max_predictions=1))
    assert "more masked positions than its length gives" in next(find_violations(block, more))


@pytest.mark.parametrize(
    ("shown", "is_likely"),
    [((8000, 1000), True), ((8200, 900), True), ((8300, 850), False), ((8000, 1250), False)],
)
def test_shares_of_masks_are_held_to_chance(shown, is_likely):
    found = list(find_unlikely_shares(Shares(1000, 560, 10_000, *shown), 30_000))
    assert bool(found) != is_likely
    assert all("expected 80, 10 and 10 %: chi-square" in each for each in found)


@pytest.mark.parametrize(
    ("random_next", "is_likely"), [(5000, True), (10_000, True), (4710, True), (4690, False)]
)
def test_fewer_than_half_of_the_pairs_are_never_random(random_next, is_likely):
    found = list(find_unlikely_shares(Shares(10_000, random_next, 0, 0, 0), 30_000))
    assert bool(found) != is_likely
    assert all("expected half or more" in each for each in found)


def test_a_dataset_masked_otherwise_is_found_by_its_shares(tmp_path):
    block = sound_block(1024)
    [finding] = deep(write(tmp_path, changed(block, "input_ids", block.masked_indices, MASK)))
    said = "train L64: masked positions show [MASK] 100.00 %"
    assert finding.startswith(f"{tmp_path}/manifest.json, {said}")


@pytest.mark.processes
@pytest.mark.parametrize("whole_words", ["false", "true"])
def test_what_the_builder_makes_is_sound(corpus, vocab_file, tmp_path, capsys, whole_words):
    flags = ("--vocab", vocab_file, "--workers", 1, "--passes", 2, "--seq_lens", 64, 128)
    flags += ("--whole_word_masking", whole_words)
    assert run("build", "--input", corpus, "--output", tmp_path, *flags) == 0
    assert run("verify", tmp_path, "--deep", "true") == 0
    said = capsys.readouterr().out
    assert "train L64: masked positions show [MASK] " in said
    assert "train L128: masked positions show [MASK] " in said


@pytest.mark.processes
def test_the_command_names_the_block_and_fails(tmp_path, capsys):
    write(tmp_path, changed(sound_block(300), "input_ids", 0, 9))
    assert run("verify", tmp_path) == 0
    assert run("verify", tmp_path, "--deep", "true") == 2
    said = capsys.readouterr()
    assert "shard-00000.tar, block 0: 1 instance(s), the first is row 0: no [CLS]" in said.out
    assert said.err == "", "no bar where nobody looks"
    edit_manifest(tmp_path, vocab_size=VOCAB_SIZE - 1)
    assert run("verify", tmp_path, "--deep", "true") == 2
    assert "vocab.txt: 300 entries, the manifest says 299" in capsys.readouterr().err


@pytest.mark.processes
def test_settings_that_say_nothing_of_masks_are_refused(make_dataset, tmp_path, capsys):
    make_dataset(tmp_path, ((20,),))
    assert run("verify", tmp_path, "--deep", "true") == 2
    said = "the manifest's settings say nothing of masked_lm_prob, max_predictions"
    assert said in capsys.readouterr().err
