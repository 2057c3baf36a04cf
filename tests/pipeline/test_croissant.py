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
MUST = {
    "sc:Dataset": {
        "@context",
        "conformsTo",
        "name",
        "description",
        "license",
        "distribution",
        "recordSet",
    },
    "cr:FileObject": {"@id", "name", "contentUrl", "encodingFormat", "sha256"},
    "cr:FileSet": {"@id", "name", "encodingFormat", "includes"},
    "cr:RecordSet": {"@id", "name", "field"},
    "cr:Field": {"@id", "name", "dataType", "source"},
    "sc:CreativeWork": {"name", "license"},
}
MAY = {
    "sc:Dataset": {
        "identifier",
        "inLanguage",
        "isBasedOn",
        "dateCreated",
        "rai:dataPreprocessingProtocol",
    },
    "cr:FileObject": {"description"},
    "cr:FileSet": {"description", "containedIn"},
    "cr:RecordSet": {"description"},
    "cr:Field": {"description", "repeated"},
    "sc:CreativeWork": set(),
}
REPORT = {
    "dataset": {
        "name": "d",
        "root_hash": "ab",
        "vocab_size": 9,
        "settings": {"seed": 1},
        "counters": {
            "documents": 2,
            "distinct_tokens": 30,
            "dropped_empty": 1,
            "dropped_duplicate": 0,
        },
        "groups": [
            {
                "split": "train",
                "seq_len": 64,
                "passes": 1,
                "shards": 1,
                "instances": 4,
                "tokens": 30,
            }
        ],
        "mixture": [],
    }
}
HASHES = dict.fromkeys(
    ("manifest.json", "vocab.txt", "tokenizer.json", "shards.parquet", "blocks.parquet"), "c0"
)


def run(*arguments):
    return run_program(
        "python -m pipeline", "Tests.", COMMANDS, [str(argument) for argument in arguments]
    )


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
        kind, keys = each["@type"], each.keys() - {"@type"}
        assert MUST[kind] <= keys <= MUST[kind] | MAY[kind]
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
        assert (
            f"{group.split} L64: {group.instances:,} instances of {group.tokens:,} tokens"
            in card["description"]
        )
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
    columns = {
        each["source"]["extract"]["column"]: each.get("repeated", False)
        for each in instance["field"]
    }
    schema = block_schema("uint16")
    assert columns == {field.name: str(field.type).startswith("list") for field in schema}
    assert {each["source"]["extract"]["column"] for each in shard["field"]} <= {
        *SHARDS_SCHEMA.names
    }


@pytest.mark.processes
def test_a_build_that_is_run_again_writes_the_same_bytes(copy, mixture_config, vocab_file):
    before = (copy / CROISSANT).read_bytes()
    (copy / CROISSANT).unlink()
    assert (
        run(
            "build",
            "--config",
            mixture_config,
            "--vocab",
            vocab_file,
            "--output",
            copy,
            "--workers",
            1,
        )
        == 0
    )
    assert (copy / CROISSANT).read_bytes() == before


@pytest.mark.processes
def test_no_reader_needs_it_or_minds_what_it_says(copy):
    (copy / CROISSANT).write_text("changed")
    assert run("verify", copy) == 0
    (copy / CROISSANT).unlink()
    assert run("verify", copy) == 0


@pytest.mark.processes
def test_of_sources_that_nobody_knows_no_licence_is_made_up():
    card = describe_dataset(REPORT, HASHES)
    assert (card["license"], card["isBasedOn"], card["inLanguage"]) == (["not stated"], [], [])
    assert "dateCreated" not in card
    assert card["description"].endswith("in 1 pass(es). Dropped documents: empty 1.")


def test_its_size_does_not_grow_with_the_shards():
    many = json.loads(json.dumps(REPORT))
    many["dataset"]["groups"][0]["shards"] = 80_000
    assert describe_dataset(many, HASHES) == describe_dataset(REPORT, HASHES)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_the_reference_implementation_takes_it_and_reads_the_table_of_shards(mixture):
    mlcroissant = pytest.importorskip("mlcroissant")
    dataset = mlcroissant.Dataset(f"{mixture.folder.path}/{CROISSANT}")
    assert not dataset.metadata.ctx.issues.errors
    rows = {
        row["shard/name"].decode(): row["shard/sha256"].decode() for row in dataset.records("shard")
    }
    assert rows == {shard.name: shard.sha256 for shard in mixture.all_shards}
