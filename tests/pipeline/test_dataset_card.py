"""README.md of a dataset: what the Hub asks for, and facts of the manifest."""

import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.inspect.dataset_card import CARD, dataset_card, is_unedited
from tests.pipeline.programs import run

pytestmark = pytest.mark.processes
GROUP = {"split": "train", "seq_len": 64, "passes": 1, "shards": 1, "instances": 4, "tokens": 30}
COUNTERS = {"documents": 2, "distinct_tokens": 30, "dropped_empty": 1, "dropped_duplicate": 0}
ROW = {"name": "wiki", "licence": "CC BY-SA 4.0", "language": "en", "documents": 2, "tokens": 30}
NUMBERS = {
    "name": "d", "root_hash": "ab", "vocab_size": 9, "settings": {"seed": 1}, "counters": COUNTERS,
    "groups": [GROUP], "mixture": [],
}  # fmt: skip


@pytest.fixture
def copy(mixture, tmp_path):
    return Path(shutil.copytree(mixture.folder.path, tmp_path / "data"))


def test_a_build_writes_the_card_again_but_leaves_one_that_was_edited(
    copy, mixture_config, vocab_file
):
    card = (copy / CARD).read_bytes()
    assert is_unedited(card)
    assert "| news | CC0-1.0 | en | 70 |" in card.decode()
    words = ("--config", mixture_config, "--vocab", vocab_file, "--output", copy, "--workers", 1)
    for before, after in ((b"mine", b"mine"), (card, card), (None, card)):
        if before:
            (copy / CARD).write_bytes(before)
        else:
            (copy / CARD).unlink()
        assert run("verify", copy) == 0
        assert run("build", *words) == 0
        assert (copy / CARD).read_bytes() == after


def test_a_card_of_no_sources_makes_up_no_licence():
    card = dataset_card(NUMBERS).decode()
    assert metadata(card.encode())["license"] == "unknown"
    assert "Dropped documents: empty 1." in card


def metadata(card):
    return yaml.safe_load(card.decode().split("---\n")[1])


@pytest.mark.parametrize(
    ("rows", "licence", "languages"),
    [
        ([ROW], "cc-by-sa-4.0", ["en"]),
        ([ROW, {**ROW, "licence": "own: ask", "language": "de"}], ["cc-by-sa-4.0", "other"],
         ["de", "en"]),
        ([ROW | {"licence": ""}], "unknown", ["en"]),
        ([], "unknown", None),
    ],
)  # fmt: skip
def test_the_metadata_is_what_the_hub_takes(rows, licence, languages):
    found = metadata(dataset_card({**NUMBERS, "mixture": rows}))
    assert (found["license"], found.get("language")) == (licence, languages)
    assert found["size_categories"] == ["n<1K"]


@pytest.mark.parametrize(
    ("instances", "said"), [(1000, "1K<n<10K"), (2_000_000, "1M<n<10M"), (10**13, "n>1T")]
)
def test_sizes_are_classes_of_the_hub(instances, said):
    numbers = {**NUMBERS, "groups": [{**GROUP, "instances": instances}]}
    assert metadata(dataset_card(numbers))["size_categories"] == [said]


def test_licences_stand_in_the_table_as_they_were_given():
    row = ROW | {"name": "a|b", "licence": "<b>mine</b>\nall"}
    card = dataset_card({**NUMBERS, "mixture": [row]}).decode()
    assert "| a\\|b | \\<b\\>mine\\</b\\> all | en | 2 | 30 |" in card
    assert "from 2 distinct documents of 30 tokens" in card
    assert "Dropped documents: empty 1." in card
