"""README.md of a dataset: the Hub's metadata, sources with their licences, and nobody's edits lost."""

import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.inspect.dataset_card import CARD, dataset_card, is_unedited

ROW = {"name": "wiki", "licence": "CC BY-SA 4.0", "language": "en", "documents": 2, "tokens": 30}


def numbers(*rows, instances=4):
    group = {"split": "train", "seq_len": 64, "passes": 1, "instances": instances, "tokens": 30}
    return {
        "name": "d", "root_hash": "ab", "vocab_size": 9, "groups": [group], "mixture": rows,
        "counters": {"documents": 2, "distinct_tokens": 30, "dropped_empty": 1},
    }  # fmt: skip


def metadata(card):
    return yaml.safe_load(card.decode().split("---\n")[1])


@pytest.mark.parametrize(
    ("rows", "licence", "languages"),
    [
        ([ROW], "cc-by-sa-4.0", ["en"]),
        ([ROW, ROW | {"licence": "own: ask", "language": "de"}], ["cc-by-sa-4.0", "other"], ["de", "en"]),
        ([ROW | {"licence": ""}], "unknown", ["en"]),
        ([], "unknown", None),
    ],
)  # fmt: skip
def test_the_metadata_is_what_the_hub_takes(rows, licence, languages):
    found = metadata(dataset_card(numbers(*rows)))
    assert (found["license"], found.get("language")) == (licence, languages)
    assert found["size_categories"] == ["n<1K"]


@pytest.mark.parametrize(
    ("instances", "said"), [(1000, "1K<n<10K"), (2_000_000, "1M<n<10M"), (10**13, "n>1T")]
)
def test_sizes_are_classes_of_the_hub(instances, said):
    assert metadata(dataset_card(numbers(ROW, instances=instances)))["size_categories"] == [said]


def test_licences_stand_in_the_table_as_they_were_given():
    card = dataset_card(numbers(ROW | {"name": "a|b", "licence": "<b>mine</b>\nall"})).decode()
    assert "| a\\|b | \\<b\\>mine\\</b\\> all | en | 2 | 30 |" in card
    assert "from 2 distinct documents of 30 tokens" in card
    assert "Dropped documents: empty 1." in card


@pytest.mark.processes
def test_a_build_writes_it_and_leaves_an_edited_one(mixture, mixture_config, vocab_file, tmp_path):
    copy = Path(shutil.copytree(mixture.folder.path, tmp_path / "data"))
    card = (copy / CARD).read_bytes()
    assert is_unedited(card)
    assert "| news | CC0-1.0 | en | 70 |" in card.decode()

    def run(command, *arguments):
        words = [command, *map(str, arguments)]
        return run_program("python -m pipeline", "Tests.", COMMANDS, words)

    again = ("--config", mixture_config, "--vocab", vocab_file, "--output", copy, "--workers", 1)
    for before, after in ((b"mine", b"mine"), (card, card), (None, card)):
        (copy / CARD).unlink() if before is None else (copy / CARD).write_bytes(before)
        assert run("verify", copy) == 0
        assert run("build", *again) == 0
        assert (copy / CARD).read_bytes() == after
