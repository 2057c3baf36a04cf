"""croissant.json: what the format asks for, facts of the manifest and nothing else, the same bytes again."""

import hashlib
import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.inspect.croissant import CROISSANT, describe_dataset
from pipeline.shards.block import block_schema
from pipeline.shards.manifest import SHARDS_SCHEMA

# What the specification (Croissant 1.0) names in each kind of object: what must be there, and what
# else may.
KINDS = {
    "sc:Dataset": (
        "@context conformsTo name description license distribution recordSet",
        "identifier inLanguage isBasedOn dateCreated rai:dataPreprocessingProtocol",
    ),
    "cr:FileObject": ("@id name contentUrl encodingFormat sha256", "description"),
    "cr:FileSet": ("@id name encodingFormat includes", "description containedIn"),
    "cr:RecordSet": ("@id name field", "description"),
    "cr:Field": ("@id name dataType source", "description repeated"),
    "sc:CreativeWork": ("name license", ""),
}
GROUP = {"split": "train", "seq_len": 64, "passes": 1, "shards": 1, "instances": 4, "tokens": 30}
COUNTERS = {"documents": 2, "distinct_tokens": 30, "dropped_empty": 1, "dropped_duplicate": 0}
NUMBERS = {
    "name": "d", "root_hash": "ab", "vocab_size": 9, "settings": {"seed": 1}, "counters": COUNTERS,
    "groups": [GROUP], "mixture": [],
}  # fmt: skip
HASHES = dict.fromkeys(
    ("manifest.json", "vocab.txt", "tokenizer.json", "shards.parquet", "blocks.parquet"), "c0"
)


def run(*words):
    return run_program("python -m pipeline", "Tests.", COMMANDS, [*map(str, words)])


@pytest.fixture(scope="module")
def card(mixture):
    return json.loads(mixture.read_file(CROISSANT))


@pytest.fixture
def copy(mixture, tmp_path):
    return Path(shutil.copytree(mixture.folder.path, tmp_path / "data"))


def objects_in(value):
    """Every object that has a type."""
    if isinstance(value, dict):
        if "@type" in value and value["@type"] != "@json":
            yield value
        for key, each in value.items():
            yield from () if key == "@context" else objects_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects_in(each)


@pytest.mark.processes
def test_it_has_what_the_format_asks_for_and_nothing_that_it_does_not_know(card):
    for each in objects_in(card):
        must, may = ({*names.split()} for names in KINDS[each["@type"]])
        assert must <= each.keys() - {"@type"} <= must | may
    ids = [each["@id"] for each in objects_in(card) if "@id" in each]
    assert len(ids) == len({*ids})
    for each in objects_in(card):
        for reference in (each.get("containedIn"), *each.get("source", {}).values()):
            assert reference is None or "@id" not in reference or reference["@id"] in ids
    assert card["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card["dateCreated"])


@pytest.mark.processes
def test_its_facts_are_those_of_the_manifest(mixture, card):
    manifest = mixture.manifest
    assert (card["name"], card["identifier"]) == ("data", manifest.root_hash)
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


@pytest.mark.processes
def test_its_files_are_there_with_their_hashes(mixture, card):
    files, (shards, blocks) = card["distribution"][:-2], card["distribution"][-2:]
    for each in files:
        assert hashlib.sha256(mixture.folder.read(each["contentUrl"])).hexdigest() == each["sha256"]
    found = {name for name in mixture.folder.list() if fnmatch(name, shards["includes"])}
    assert found == {shard.name for shard in mixture.all_shards}
    assert (blocks["includes"], blocks["containedIn"]) == ("*.arrow", {"@id": "shards"})


@pytest.mark.processes
def test_its_fields_are_the_columns(card):
    instance, shard = card["recordSet"]
    columns, of_shards = (
        {each["source"]["extract"]["column"]: each.get("repeated", False) for each in own["field"]}
        for own in (instance, shard)
    )
    schema = block_schema("uint16")
    assert columns == {field.name: str(field.type).startswith("list") for field in schema}
    assert of_shards.keys() <= {*SHARDS_SCHEMA.names}


@pytest.mark.processes
def test_no_reader_needs_it_and_a_build_run_again_writes_the_same_bytes(
    copy, mixture_config, vocab_file
):
    before = (copy / CROISSANT).read_bytes()
    (copy / CROISSANT).write_text("changed")
    assert run("verify", copy) == 0
    (copy / CROISSANT).unlink()
    assert run("verify", copy) == 0
    words = ("--config", mixture_config, "--vocab", vocab_file, "--output", copy, "--workers", 1)
    assert run("build", *words) == 0
    assert (copy / CROISSANT).read_bytes() == before


def test_of_sources_that_nobody_knows_no_licence_is_made_up():
    card = describe_dataset({"dataset": NUMBERS}, HASHES)
    assert (card["license"], card["isBasedOn"], card["inLanguage"]) == (["not stated"], [], [])
    assert "dateCreated" not in card
    assert card["description"].endswith("in 1 pass(es). Dropped documents: empty 1.")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_the_reference_implementation_takes_it_and_reads_the_table_of_shards(mixture):
    mlcroissant = pytest.importorskip("mlcroissant")
    dataset = mlcroissant.Dataset(f"{mixture.folder.path}/{CROISSANT}")
    assert not dataset.metadata.ctx.issues.errors
    rows = [(row["shard/name"], row["shard/sha256"]) for row in dataset.records("shard")]
    expected = [(shard.name.encode(), shard.sha256.encode()) for shard in mixture.all_shards]
    assert sorted(rows) == sorted(expected)
