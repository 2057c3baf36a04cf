"""Masks drawn anew: to the bit, of the right shares, and the same however they are read."""

import hashlib
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.shards.block import Block
from pipeline.shards.dataset import open_dataset
from tests.datasets import CLS, MASK, SEP, SPECIALS, write_dataset
from tests.pipeline import reference
from tests.trainer.step_loader import load_steps
from trainer.pretrain.objectives import unmasked_text
from trainer.settings import Phase, PretrainSettings, resolve
from trainer.stream.batches.redraw import MaskRedraw, StepInstances, restore_text

ROOT = Path(__file__).parents[2]
VOCAB_SIZE, SEQ_LEN, SEED = 100, 64, 7
PIECES = [*SPECIALS, *(f"##{n}" if n % 3 == 0 else f"w{n}" for n in range(5, VOCAB_SIZE))]
VOCABULARY = reference.Vocabulary(VOCAB_SIZE, CLS, SEP, MASK, frozenset(range(6, VOCAB_SIZE, 3)))
UNITS = reference.Settings(whole_word_masking=True, glue_across_segments=False)
BUILT = {"masked_lm_prob": 0.15, "max_predictions": 3}


def redraw_of(share_at, *whole_words, seq_len=SEQ_LEN):
    special = {"pad": 0, "unk": 1, "cls": CLS, "sep": SEP, "mask": MASK}
    datasets = []
    for each in whole_words or [False]:
        settings = {**BUILT, "whole_word_masking": each}
        manifest = SimpleNamespace(settings=settings, special_ids=special)
        read_file = lambda _: "\n".join(PIECES).encode()  # noqa: E731
        datasets.append(SimpleNamespace(url="here", read_file=read_file, manifest=manifest))
    return MaskRedraw(datasets, seq_len, SEED, share_at)


def word_at(seed, place):
    """SplitMix64 by whole numbers."""
    most = 2**64 - 1
    word = seed + (place + 1) * 0x9E3779B97F4A7C15 & most
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & most
    word = (word ^ word >> 27) * 0x94D049BB133111EB & most
    return word ^ word >> 31


def mask_plainly(tokens, segment_a, share, number, seq_len, are_words):
    """Tokens as shown, positions and labels of one instance, as docs/order.md has it."""
    key = hashlib.blake2b(f"{SEED}/masks-L{seq_len}".encode(), digest_size=8).digest()
    seed, num_bits = word_at(int.from_bytes(key, "little"), number), (seq_len - 1).bit_length()

    def token_key(position):
        half = word_at(seed, position // 2) >> 32 * (position % 2) & 2**32 - 1
        return half >> num_bits << num_bits | position

    segments = [0] * segment_a + [1] * (len(tokens) - segment_a)
    words = reference.list_words(tokens, segments, VOCABULARY, UNITS)
    keys = [word_at(seed, place) for place in range(len(words))]
    if not are_words:
        words = [[position] for word in words for position in word]
        keys = [token_key(position) for [position] in words]
    most, positions = min(max(1, round(share * len(tokens))), len(tokens) - 3), []
    for _, word in sorted(zip(keys, words, strict=True)):
        positions += word if len(positions) + len(word) <= most else []
    shown = list(tokens)
    for place, position in enumerate(sorted(positions)):
        word = word_at(seed, 2**16 + place)
        chance = (word & 2**32 - 1) / 2**32
        if chance < 0.8:
            shown[position] = MASK
        elif chance >= 0.9:
            shown[position] = (word >> 32) * VOCAB_SIZE >> 32
    return shown, sorted(positions), [tokens[position] for position in sorted(positions)]


def instances_of(block):
    ends = (pairwise(each.tolist()) for each in (block.offsets, block.masked_offsets))
    for (start, stop), (first, last) in zip(*ends, strict=True):
        masks = block.masked_lm_positions[first:last], block.masked_lm_ids[first:last]
        yield block.input_ids[start:stop].tolist(), *(each.tolist() for each in masks)


@pytest.mark.parametrize("are_words", [False, True])
@pytest.mark.parametrize(("seq_len", "more"), [(24, 1_000), (200, 10)])
def test_masks_are_those_of_a_plain_reading(make_block, are_words, seq_len, more):
    block = make_block(90 + more, max_tokens=seq_len)
    redraw = redraw_of([0.15, 0.4].__getitem__, are_words, seq_len=seq_len)
    drawn = redraw(block, [StepInstances(1, 500, 90), StepInstances(0, 70_000, more)])
    shares, numbers = [0.4] * 90 + [0.15] * more, [*range(500, 590), *range(70_000, 70_000 + more)]
    texts = [tokens for tokens, _, _ in instances_of(restore_text(block))]
    rows = zip(texts, block.segment_a_length.tolist(), shares, numbers, strict=True)
    expected = [mask_plainly(*row, seq_len, are_words) for row in rows]
    assert list(instances_of(drawn)) == expected
    assert [tokens for tokens, _, _ in instances_of(restore_text(drawn))] == texts
    kept = {"input_ids", "masked_lm_positions", "masked_lm_ids", "masked_offsets"}
    for name, column in vars(drawn).items():
        before = getattr(block, name)
        assert column.dtype == before.dtype
        assert name in kept or np.array_equal(column, before)


def test_the_pages_example_is_remade_by_its_rules():
    """By plain Python, and by the product; the lines of the page are its only inputs."""
    page = (ROOT / "docs/order.md").read_text().partition("## Masks drawn anew")[2]
    block = page.split("```")[1]
    lines = dict(line.split(maxsplit=1) for line in block.strip().splitlines())
    tokens = [int(word) for word in lines["tokens"].split()]
    share = settings_of(masking="0.3-0.15").mask_share(0, 50)
    assert share == pytest.approx(0.225)
    seed = int.from_bytes(hashlib.blake2b(b"7/masks-L16", digest_size=8).digest(), "little")
    own = word_at(seed, 23)
    assert lines["seed"] == f"{seed:016x}, of the instance {own:016x}"
    assert lines["count"] == f"round(0.225 {len(tokens)}) = {round(share * len(tokens))}"
    halves = {p: word_at(own, p // 2) >> 32 * (p % 2) & 2**32 - 1 for p in range(len(tokens))}
    keys = {p: half >> 4 << 4 | p for p, half in halves.items() if tokens[p] > MASK}
    assert lines["keys"] == ", ".join(f"{p} {key:08x}" for p, key in keys.items())
    shown, positions, _ = mask_plainly(tokens, 6, share, 23, 16, False)
    assert lines["masked"] == " ".join(map(str, positions))
    assert lines["shown"] == " ".join(map(str, shown))
    one = Block(
        input_ids=np.array(tokens, np.uint16),
        offsets=np.array([0, len(tokens)], np.int32),
        segment_a_length=np.array([6], np.uint16),
        masked_lm_positions=np.zeros(0, np.uint16),
        masked_lm_ids=np.zeros(0, np.uint16),
        masked_offsets=np.zeros(2, np.int32),
        is_random_next=np.zeros(1, np.bool_),
        document_a=np.zeros(1, np.uint64),
        document_b=np.zeros(1, np.uint64),
    )
    drawn = redraw_of(lambda _: share, seq_len=16)(one, [StepInstances(50, 23, 1)])
    assert drawn.input_ids.tolist() == shown
    assert drawn.masked_lm_positions.tolist() == positions


def test_positions_are_uniform_and_replacements_80_10_10(make_block):
    """Tolerances are five standard deviations of a count."""
    one, num_rows = make_block(1, max_tokens=60), 20_000
    length, a_length = one.num_tokens, int(one.segment_a_length[0])
    block = redraw_of(lambda _: 0.3)(
        _repeat(one, num_rows), [StepInstances(step, 1_000 * step, 1_000) for step in range(20)]
    )
    count = round(0.3 * length)
    assert np.diff(block.masked_offsets).tolist() == [count] * num_rows
    per_position = np.bincount(block.masked_lm_positions, minlength=length)
    specials = [0, a_length - 1, length - 1]
    assert per_position[specials].tolist() == [0, 0, 0]
    share = count / (length - 3)
    candidates = np.delete(per_position, specials)
    assert np.abs(candidates - num_rows * share).max() < 5 * np.sqrt(num_rows * share * (1 - share))
    now, num_masked = block.input_ids[block.masked_indices], block.num_masked
    is_mask, is_kept = now == MASK, now == block.masked_lm_ids
    others = now[~is_mask & ~is_kept]
    tolerance = 5 * np.sqrt(0.25 / num_masked)
    # One in a hundred of the drawn ids is [MASK], and one the token itself.
    assert abs(is_mask.mean() - 0.801) < tolerance
    assert abs(is_kept.mean() - 0.101) < tolerance
    per_id = np.delete(np.bincount(others, minlength=VOCAB_SIZE), MASK)
    assert np.abs(per_id - per_id.mean()).max() < 6 * np.sqrt(per_id.mean())


def _repeat(one, times):
    length, num_masked = one.num_tokens, one.num_masked
    columns = {name: np.tile(column, times) for name, column in vars(one).items()}
    columns["offsets"] = np.arange(times + 1, dtype=np.int32) * length
    columns["masked_offsets"] = np.arange(times + 1, dtype=np.int32) * num_masked
    return type(one)(**columns)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, make_block):
    folder = tmp_path_factory.mktemp("redraw")
    rows = {("train", 8192, 0, n): [make_block(8, 1000 * n)] * 8 for n in range(2)}
    settings = {"lower_case": True, "whole_word_masking": False, **BUILT}
    return open_dataset(str(write_dataset(folder, rows, VOCAB_SIZE, settings)))


def share_at(step):
    return 0.3 - 0.01 * step


def take(dataset, num_steps, **changes):
    sizes = {"rank": 0, "world_size": 1, "global_batch": 12, "micro_tokens": 8192, "seed": 3}
    options = {"num_lanes": 4, "mask_share": share_at, **sizes, **changes}
    with load_steps(dataset, "train", 8192, **options) as steps:
        return list(islice(steps, num_steps))


def seen(*steps):
    """What models see of a step that these ranks share: all tokens, masked ones, and labels."""
    batches = [batch for step in steps for batch in step.micro_batches]
    masked = [batch.input_ids[batch.masked_positions] for batch in batches]
    columns = [batch.input_ids for batch in batches], masked, [b.masked_labels for b in batches]
    return [torch.cat(column).tolist() for column in columns]


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_ranks_processes_and_beginnings_see_the_same_masks(dataset, world_size):
    whole = take(dataset, 14)
    expected = [seen(step) for step in whole]
    sizes = {"micro_tokens": 8200, "state": whole[4].state, "first_step": 5}
    sizes["world_size"] = world_size
    shares = [take(dataset, 9, rank=rank, **sizes) for rank in range(world_size)]
    assert [seen(*steps) for steps in zip(*shares, strict=True)] == expected[5:]
    workers = [take(dataset, 7, worker=worker, num_workers=2) for worker in range(2)]
    turns = [step for steps in zip(*workers, strict=True) for step in steps]
    assert [seen(step) for step in turns] == expected
    assert [step.num_masked for step in turns] == [len(labels) for _, _, labels in expected]


def test_an_instance_keeps_its_text_and_is_masked_otherwise_when_it_comes_again(dataset):
    drawn, static = take(dataset, 22), take(dataset, 22, mask_share=None)
    for one, other in zip(drawn, static, strict=True):
        texts = [torch.cat([*map(unmasked_text, each.micro_batches)]) for each in (one, other)]
        assert torch.equal(*texts)
    masked = [sum(step.num_masked for step in steps) for steps in (drawn, static)]
    assert masked[0] > 1.2 * masked[1]
    again = take(dataset, 22, mask_share=lambda _: 0.3)
    assert seen(again[0]) == seen(drawn[0])
    assert seen(take(dataset, 1, seed=4)[0]) != seen(drawn[0])


def test_a_mixture_of_words_and_pieces_is_refused():
    with pytest.raises(ValueError, match="only some datasets were built with whole_word_masking"):
        redraw_of(share_at, True, False)


def settings_of(**changes):
    phases = [Phase(128, 8, 90, 1e-3), Phase(512, 8, 10, 1e-3)]
    return resolve(PretrainSettings(data=["data"], output="run", phases=phases, **changes))


def test_a_share_moves_along_the_run():
    assert settings_of().mask_shares is None
    falling = settings_of(masking="0.3-0.15")
    found = [falling.mask_share(*place) for place in ((0, 0), (0, 50), (1, 0), (1, 9))]
    assert found == pytest.approx([0.3, 0.225, 0.165, 0.1515])
    assert settings_of(masking=".4", budget_hours=2.0).mask_share(1, 10_000) == 0.4


def test_a_share_may_move_in_other_steps_than_the_runs():
    """In fewer it stays at its end, in more it does not come there."""
    found = [settings_of(masking="0.3-0.15@50").mask_share(0, step) for step in (0, 25, 50, 89)]
    assert found == pytest.approx([0.3, 0.225, 0.15, 0.15])
    assert settings_of(masking="0.3-0.15@200").mask_share(1, 0) == pytest.approx(0.2325)
    for wrong in ("0.3@50", "0.3-0.15@0", "0.3-0.15@", "0.3-0.6"):
        with pytest.raises(ValueError, match="give static, a share such as"):
            settings_of(masking=wrong)
