"""croissant.json and README.md of a dataset: what catalogues ask for, and facts of the manifest."""

import hashlib
import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from pipeline.inspect.croissant import CROISSANT, describe_dataset
from pipeline.inspect.dataset_card import CARD, dataset_card, is_unedited
from pipeline.shards.block import block_schema
from pipeline.shards.manifest import SHARDS_SCHEMA
from tests.pipeline.programs import run

pytestmark = pytest.mark.processes
GROUP = {"split": "train", "seq_len": 64, "passes": 1, "shards": 1, "instances": 4, "tokens": 30}
COUNTERS = {"documents": 2, "distinct_tokens": 30, "dropped_empty": 1, "dropped_duplicate": 0}
ROW = {"name": "wiki", "licence": "CC BY-SA 4.0", "language": "en", "documents": 2, "tokens": 30}
NUMBERS = {
    "name": "d", "root_hash": "ab", "vocab_size": 9, "settings": {"seed": 1}, "counters": COUNTERS,
    "groups": [GROUP], "mixture": [],
}  # fmt: skip
HASHES = dict.fromkeys(
    ("manifest.json", "vocab.txt", "tokenizer.json", "shards.parquet", "blocks.parquet"), "c0"
)


@pytest.fixture(scope="module")
def card(mixture):
    return json.loads(mixture.read_file(CROISSANT))


@pytest.fixture
def copy(mixture, tmp_path):
    return Path(shutil.copytree(mixture.folder.path, tmp_path / "data"))


def test_its_facts_are_those_of_the_manifest(mixture, card):
    manifest = mixture.manifest
    assert (card["name"], card["identifier"]) == ("data", manifest.root_hash)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card["dateCreated"])
    assert (card["license"], card["inLanguage"]) == (["CC0-1.0", "not stated"], ["de", "en"])
    assert [(each["name"], each["license"]) for each in card["isBasedOn"]] == [
        ("news", "CC0-1.0"), ("books", "not stated")
    ]  # fmt: skip
    assert f"from {manifest.counters['documents']:,} distinct documents" in card["description"]
    assert f"duplicate {manifest.counters['dropped_duplicate']:,}" in card["description"]
    for group in manifest.groups:
        held = f"{group.instances:,} instances of {group.tokens:,} tokens"
        assert f"{group.split} L64: {held}" in card["description"]
    said = dict(line.split(": ", 1) for line in card["rai:dataPreprocessingProtocol"])
    assert {name: json.loads(value) for name, value in said.items()} == manifest.settings


def test_its_files_are_there_with_their_hashes(mixture, card):
    files, (shards, blocks) = card["distribution"][:-2], card["distribution"][-2:]
    for each in files:
        assert hashlib.sha256(mixture.folder.read(each["contentUrl"])).hexdigest() == each["sha256"]
    found = {name for name in mixture.folder.list() if fnmatch(name, shards["includes"])}
    assert found == {shard.name for shard in mixture.all_shards}
    assert (blocks["includes"], blocks["containedIn"]) == ("*.arrow", {"@id": "shards"})


def test_its_fields_are_the_columns(card):
    instance, shard = card["recordSet"]
    columns, of_shards = (
        {each["source"]["extract"]["column"]: each.get("repeated", False) for each in own["field"]}
        for own in (instance, shard)
    )
    schema = block_schema("uint16")
    assert columns == {field.name: str(field.type).startswith("list") for field in schema}
    assert of_shards.keys() <= {*SHARDS_SCHEMA.names}


def test_builds_write_them_again_but_leave_a_card_that_was_edited(copy, mixture_config, vocab_file):
    croissant, card = ((copy / name).read_bytes() for name in (CROISSANT, CARD))
    assert is_unedited(card)
    assert "| news | CC0-1.0 | en | 70 |" in card.decode()
    words = ("--config", mixture_config, "--vocab", vocab_file, "--output", copy, "--workers", 1)
    for before, after in ((b"mine", b"mine"), (card, card), (None, card)):
        for path, data in ((copy / CARD, before), (copy / CROISSANT, before and b"changed")):
            path.write_bytes(data) if data else path.unlink()
        assert run("verify", copy) == 0
        assert run("build", *words) == 0
        assert (copy / CARD).read_bytes() == after
        assert (copy / CROISSANT).read_bytes() == croissant


def test_of_sources_that_nobody_knows_no_licence_is_made_up():
    card = describe_dataset({"dataset": NUMBERS}, HASHES)
    assert (card["license"], card["isBasedOn"], card["inLanguage"]) == (["not stated"], [], [])
    assert "dateCreated" not in card
    assert card["description"].endswith("in 1 pass(es). Dropped documents: empty 1.")


@pytest.mark.filterwarnings("ignore")
def test_the_reference_implementation_takes_it_and_reads_the_table_of_shards(mixture):
    mlcroissant = pytest.importorskip("mlcroissant")
    dataset = mlcroissant.Dataset(f"{mixture.folder.path}/{CROISSANT}")
    assert not dataset.metadata.ctx.issues.errors
    rows = [(row["shard/name"], row["shard/sha256"]) for row in dataset.records("shard")]
    expected = [(shard.name.encode(), shard.sha256.encode()) for shard in mixture.all_shards]
    assert sorted(rows) == sorted(expected)


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
