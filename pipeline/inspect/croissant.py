"""croissant.json: manifest and report for catalogues of datasets (MLCommons Croissant 1.0).

A build does not know its publisher: creator, url, citeAs and datePublished are left out.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.inspect.dataset_card import NOT_STATED, describe_in_words
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import BLOCKS_TABLE, MANIFEST, SHARDS_TABLE
from pipeline.shards.records import json_bytes

CROISSANT = "croissant.json"
_TERMS = """
citeAs column extract field fileObject fileProperty fileSet format includes isLiveDataset jsonPath
key md5 parentField path recordSet references regex repeated replace samplingRate separator source
subField transform
"""
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_FILES = {
    MANIFEST: ("application/json", "Settings, counters, totals and hashes; it is written last."),
    "vocab.txt": ("text/plain", "The vocabulary, one entry a line; the first has the id 0."),
    "tokenizer.json": ("application/json", "The vocabulary with its rules, for tokenizers."),
    SHARDS_TABLE: ("application/x-parquet", "One row a shard: its place, counts and hashes."),
    BLOCKS_TABLE: ("application/x-parquet", "One row a block: where its bytes lie, their crc32."),
}
_SET, _TARS, _ARROW = "cr:FileSet", "*/L*/pass-*/shard-*.tar", "application/vnd.apache.arrow.stream"
_IN_SHARDS = {"includes": "*.arrow", "containedIn": {"@id": "shards"}}
# Of each column: its type and what it means; [] marks a list.
_INSTANCE = {
    "input_ids": ("Integer[]", "[CLS] A [SEP] B [SEP], masked already, without padding."),
    "segment_a_length": ("Integer", "Tokens of type 0, that is [CLS] A [SEP]; the rest is type 1."),
    "masked_lm_positions": ("Integer[]", "Positions to predict, ascending, counted from [CLS]."),
    "masked_lm_ids": ("Integer[]", "The tokens that stood at these positions."),
    "is_random_next": ("Boolean", "Whether B is something else than what follows A."),
    "document_a": ("Integer", "The first 64 bits of the id of the document that A is from."),
    "document_b": ("Integer", "The first 64 bits of the id of the document that B is from."),
}
_SHARD = {
    "name": ("Text", "Path of the tar file in the dataset."),
    "bytes": ("Integer", "Size of the tar file."),
    "sha256": ("Text", "The sha256 of the tar file."),
    "content_hash": ("Text", "Hash of what the shard holds, however it is compressed."),
    "instances": ("Integer", "Instances in the shard."),
    "tokens": ("Integer", "Tokens in the shard."),
}


def write_croissant(dataset: Dataset, report: Mapping[str, Any]) -> None:
    """Writes croissant.json beside the manifest; the same report gives the same bytes."""
    hashes = {name: dataset.manifest.sha256_of(name) for name in _FILES}
    hashes[MANIFEST] = hashlib.sha256(dataset.read_file(MANIFEST)).hexdigest()
    dataset.folder.write(CROISSANT, json_bytes(describe_dataset(report, hashes)))


def describe_dataset(report: Mapping[str, Any], hashes: Mapping[str, str | None]) -> dict[str, Any]:
    """What croissant.json holds, from report.json and the sha256 of each of _FILES.

    Its size does not grow with the shards, whose hashes are in shards.parquet.
    """
    numbers, date = report["dataset"], report.get("build", {}).get("date")
    licences = {row["name"]: row["licence"] or NOT_STATED for row in numbers["mixture"]}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": numbers["name"],
        "description": " ".join(describe_in_words(numbers)),
        "identifier": numbers["root_hash"],
        "license": sorted({*licences.values()}) or [NOT_STATED],
        "inLanguage": sorted({row["language"] for row in numbers["mixture"]}),
        "isBasedOn": [
            {"@type": "sc:CreativeWork", "name": name, "license": licence}
            for name, licence in licences.items()
        ],
        **({"dateCreated": date} if date else {}),
        "rai:dataPreprocessingProtocol": [
            f"{name}: {json.dumps(value, ensure_ascii=False, sort_keys=True)}"
            for name, value in sorted(numbers["settings"].items())
        ],
        "distribution": [
            *(
                _file(name, what, kind, contentUrl=name, sha256=hashes[name])
                for name, (kind, what) in _FILES.items()
            ),
            _file("shards", "Tar files of blocks.", "application/x-tar", _SET, includes=_TARS),
            _file("blocks", "Arrow IPC streams of instances.", _ARROW, _SET, **_IN_SHARDS),
        ],
        "recordSet": [
            _records("instance", "One pair to pretrain on.", "fileSet", "blocks", _INSTANCE),
            _records("shard", "One file of instances.", "fileObject", SHARDS_TABLE, _SHARD),
        ],
    }


def _file(
    name: str, description: str, encoding: str, kind: str = "cr:FileObject", **facts: Any
) -> dict[str, Any]:
    return {**_described(kind, name, description), "encodingFormat": encoding, **facts}


def _described(kind: str, name: str, description: str) -> dict[str, Any]:
    return {"@type": kind, "@id": name, "name": name, "description": description}


def _records(
    name: str, description: str, kind: str, of: str, columns: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    fields = []
    for column, (value, meaning) in columns.items():
        field = _described("cr:Field", f"{name}/{column}", meaning) | {"name": column}
        field["dataType"] = f"sc:{value.removesuffix('[]')}"
        field["source"] = {kind: {"@id": of}, "extract": {"column": column}}
        fields.append(field | ({"repeated": True} if value.endswith("[]") else {}))
    return {**_described("cr:RecordSet", name, description), "field": fields}
