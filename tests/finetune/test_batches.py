"""Items to micro-batches: every item once an epoch, on one rank, in micro-batches that fit."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune import batches
from trainer.finetune.batches import Recipe, iterate_steps, make_step
from trainer.finetune.results import best_run
from trainer.finetune.settings import FinetuneSettings, check_settings
from trainer.finetune.task import Item
from trainer.finetune.text import TokenSequence


def make_items(lengths):
    rows = [np.full(length, index, np.uint16) for index, length in enumerate(lengths)]
    return [Item(n, (TokenSequence(row, 1),), np.array([n])) for n, row in enumerate(rows)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 4), st.integers(9, 30))
def test_a_step_deals_every_item_once(lengths, world_size, micro_tokens):
    items = make_items(lengths)
    step = make_step(items, world_size, micro_tokens)
    dealt = [item.example for rank in step.ranks for batch in rank for item in batch]
    assert sorted(dealt) == list(range(len(items)))
    assert len({len(rank) for rank in step.ranks}) == 1
    for batch in chain(*step.ranks):
        assert sum(len(item.sequences[0].input_ids) for item in batch) <= micro_tokens


def test_an_item_is_never_cut():
    assert [len(batch) for batch in batches.cut_items(make_items([9, 1, 1, 9]), 3)] == [1, 2, 1]


@given(num_items=st.integers(1, 40), global_batch=st.integers(1, 12), seed=st.integers(0, 5))
def test_every_item_once_an_epoch(num_items, global_batch, seed):
    recipe = Recipe(global_batch, 1e-3, 2, seed)
    steps = list(iterate_steps(make_items([3] * num_items), recipe, 1, micro_tokens=8))
    seen = [item.example for step in steps for item in step.items]
    assert [sorted(seen[:num_items]), sorted(seen[num_items:])] == [list(range(num_items))] * 2
    assert {len(step.items) for step in steps} <= {global_batch, num_items % global_batch}


def test_the_order_is_fixed_by_seed_and_epoch():
    assert batches.shuffled_order(8, seed=1, epoch=0) == [3, 1, 2, 6, 5, 0, 4, 7]
    assert batches.shuffled_order(8, seed=1, epoch=1) != batches.shuffled_order(8, seed=2, epoch=0)


def test_the_first_of_equal_runs_is_the_best():
    values = {"a": 0.5, "b": 0.7, "c": 0.7}
    runs = [{"name": name, "metrics": {"dev": {"f1": each}}} for name, each in values.items()]
    files = {"validation": [SimpleNamespace(name="dev")]}
    prepared = SimpleNamespace(files=files, task=SimpleNamespace(main_metric="f1"))
    assert best_run(runs, prepared)["name"] == "b"
    assert best_run([], prepared) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_global_batch": []}, "search_global_batch is empty"),
        ({"search_epochs": [3, 0]}, r"search_epochs is \[3, 0\]"),
        ({"warmup_fraction": 1.0}, "warmup_fraction is 1.0"),
        ({"seq_len": 4}, "seq_len is 4"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    files = {"train": ["T"], "validation": ["V"], "output": "O"}
    with pytest.raises(ValueError, match=message):
        check_settings(FinetuneSettings(task="sst2", model="M", **files, **changes))
