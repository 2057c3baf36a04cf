"""Fixtures every test may use."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings

from pipeline.shards.block import Block, block_instances
from pipeline.storage import secret_values
from tests.datasets import write_dataset

if TYPE_CHECKING:
    from trainer.process.ranks import Ranks

# A shell's background job ignores Ctrl-C, and so would every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes longer.
settings.register_profile("beambert", deadline=None, max_examples=60)
settings.load_profile("beambert")
settings.register_profile("brief", max_examples=20)  # where another Python tries them all

TIERS = ("engines", "processes", "pure")


@pytest.hookimpl(tryfirst=True)  # before -m chooses among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as pure what has no other tier; files with the longest tests come first."""
    longest: dict[Path, int] = {}
    for item in items:
        tier = next((tier for tier in TIERS if item.get_closest_marker(tier)), "pure")
        item.add_marker(tier)
        longest[item.path] = min(longest.get(item.path, len(TIERS)), TIERS.index(tier))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: longest[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests of each tier ran, and the minutes that they took of all workers."""
    tests = dict.fromkeys(TIERS, 0)
    seconds = dict.fromkeys(TIERS, 0.0)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            tier = next((tier for tier in TIERS if tier in report.keywords), "pure")
            tests[tier] += report.when == "call"
            seconds[tier] += report.duration
    terminalreporter.section("minutes by tier, summed over workers")
    for tier in reversed(TIERS):
        terminalreporter.line(f"{tier:<10}{tests[tier]:>6,} tests{seconds[tier] / 60:>8.1f} min")


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """What a test gives as a storage option would be hidden in messages of all tests after it."""
    before = frozenset(secret_values._values)
    yield
    if secret_values._values != before:
        secret_values._values.intersection_update(before)
        secret_values._pattern.cache_clear()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """BEAMBERT_TEST_DATA, with golden/ and data/; the test is skipped where it is unset."""
    folder = os.environ.get("BEAMBERT_TEST_DATA")
    if not folder:
        pytest.skip("BEAMBERT_TEST_DATA is not set: real corpora are not at hand")
    path = Path(folder)
    assert (path / "golden").is_dir(), f"BEAMBERT_TEST_DATA={folder} has no golden/"
    return path


@pytest.fixture(scope="module")
def ranks() -> "Iterator[Ranks]":
    """The one rank of a job without a launcher, with a process group until the module's end."""
    from trainer.process.ranks import start_ranks, stop_ranks  # most tests need no torch

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            patch.setenv(name, "")  # taken away at the end, so that no program inherits it
            patch.delenv(name)
        yield start_ranks()
        stop_ranks()


VOCAB_SIZE = 100


@pytest.fixture(scope="session")
def make_block() -> Callable[..., Block]:
    """make_block(num_instances, first_id=0, max_tokens=40, seed=0): random instances of 100 tokens.

    Instance n has document_a = first_id + n, so tests can tell which instances they got.
    """
    return _make_block


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Path]:
    """make_dataset(folder, train, validation=(), seq_len=8192, max_tokens=40, seed=0).

    `train` has the instances of every shard of every pass: ((20, 30), (10, 40)) is 2 passes of 2
    shards. Blocks hold 65,536 // seq_len instances: 8 at 8,192. Instance n of shard s of pass p has
    document_a = 10^8 p + 10^5 s + n.
    """
    return _make_dataset


def _make_block(
    num_instances: int, first_id: int = 0, max_tokens: int = 40, seed: int = 0
) -> Block:
    rng = np.random.default_rng([seed, first_id])
    lengths = rng.integers(min(8, max_tokens), max_tokens + 1, num_instances)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    segment_a = rng.integers(3, lengths - 2).astype(np.uint16)
    input_ids = rng.integers(5, VOCAB_SIZE, offsets[-1]).astype(np.uint16)
    input_ids[offsets[:-1]] = 2
    input_ids[offsets[:-1] + segment_a - 1] = input_ids[offsets[1:] - 1] = 3
    ordinary = [
        np.setdiff1d(np.arange(1, n - 1), [a - 1]) for n, a in zip(lengths, segment_a, strict=True)
    ]
    positions = [
        np.sort(rng.choice(choices, max(1, len(choices) * 15 // 100), replace=False))
        for choices in ordinary
    ]
    masked_offsets = np.concatenate([[0], np.cumsum([len(chosen) for chosen in positions])]).astype(
        np.int32
    )
    flat = np.concatenate(
        [
            np.zeros(0, int),
            *(chosen + start for chosen, start in zip(positions, offsets[:-1], strict=True)),
        ]
    )
    labels = input_ids[flat]
    input_ids[flat] = 4
    return Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=segment_a,
        masked_lm_positions=np.concatenate([np.zeros(0, int), *positions]).astype(np.uint16),
        masked_lm_ids=labels,
        masked_offsets=masked_offsets,
        is_random_next=rng.random(num_instances) < 0.5,
        document_a=np.arange(first_id, first_id + num_instances, dtype=np.uint64),
        document_b=rng.integers(0, 2**63, num_instances, dtype=np.uint64),
    )


def _make_dataset(
    folder: Path,
    train: Sequence[Sequence[int]],
    validation: Sequence[int] = (),
    seq_len: int = 8192,
    max_tokens: int = 40,
    seed: int = 0,
) -> Path:
    passes = {("train", i): sizes for i, sizes in enumerate(train)} | (
        {("validation", 0): validation} if validation else {}
    )
    full = block_instances(seq_len)
    shards = {}
    for (split, pass_index), sizes in passes.items():
        for index, size in enumerate(sizes):
            first_id = 10**8 * pass_index + 10**5 * index
            blocks = [
                _make_block(min(full, size - n), first_id + n, max_tokens, seed)
                for n in range(0, size, full)
            ]
            shards[split, seq_len, pass_index, index] = blocks
    return write_dataset(
        folder, shards, VOCAB_SIZE, {"lower_case": True, "seed": seed, "seq_lens": [seq_len]}
    )
