"""croissant.json: what catalogues of datasets and their tools read (JSON-LD, MLCommons Croissant 1.0).

Everything in it stands in manifest.json or report.json too. A build does not know its publisher:
creator, url, citeAs and datePublished are left out.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.inspect.dataset_card import NOT_STATED, describe_in_words
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import BLOCKS_TABLE, MANIFEST, SHARDS_TABLE
from pipeline.shards.records import json_bytes

CROISSANT = "croissant.json"
_TERMS = (
    "citeAs", "column", "extract", "field", "fileObject", "fileProperty", "fileSet", "format", "includes",
    "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex", "repeated",
    "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
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
    **{term: f"cr:{term}" for term in _TERMS},
}
_PARQUET = "application/x-parquet"
_FILES = {
    MANIFEST: ("application/json", "Settings, counters, totals and hashes; it is written last."),
    "vocab.txt": ("text/plain", "The vocabulary, one entry a line; the first has the id 0."),
    "tokenizer.json": (
        "application/json",
        "The same vocabulary with its rules, for the library tokenizers.",
    ),
    SHARDS_TABLE: (_PARQUET, "One row a shard: its place, counts, sha256 and content hash."),
    BLOCKS_TABLE: (_PARQUET, "One row a block: where its bytes lie in its shard, and their crc32."),
}
# Of each column: its type, whether it is a list, and what it means.
_INSTANCE = {
    "input_ids": ("sc:Integer", True, "[CLS] A [SEP] B [SEP], masked already, without padding."),
    "segment_a_length": (
        "sc:Integer",
        False,
        "Tokens of type 0, that is [CLS] A [SEP]; the rest is type 1.",
    ),
    "masked_lm_positions": (
        "sc:Integer",
        True,
        "Positions to predict, ascending, counted from [CLS].",
    ),
    "masked_lm_ids": ("sc:Integer", True, "The tokens that stood at these positions."),
    "is_random_next": ("sc:Boolean", False, "Whether B is something else than what follows A."),
    "document_a": (
        "sc:Integer",
        False,
        "The first 64 bits of the id of the document that A is from.",
    ),
    "document_b": (
        "sc:Integer",
        False,
        "The first 64 bits of the id of the document that B is from.",
    ),
}
_SHARD = {
    "name": ("sc:Text", False, "Path of the tar file in the dataset."),
    "bytes": ("sc:Integer", False, "Size of the tar file."),
    "sha256": ("sc:Text", False, "The sha256 of the tar file."),
    "content_hash": ("sc:Text", False, "Hash of what the shard holds, however it is compressed."),
    "instances": ("sc:Integer", False, "Instances in the shard."),
    "tokens": ("sc:Integer", False, "Tokens in the shard."),
}


def write_croissant(dataset: Dataset, report: Mapping[str, Any]) -> None:
    """Writes croissant.json beside the manifest; the same report gives the same bytes."""
    hashes = {name: dataset.manifest.sha256_of(name) for name in _FILES}
    hashes[MANIFEST] = hashlib.sha256(dataset.read_file(MANIFEST)).hexdigest()
    dataset.folder.write(CROISSANT, json_bytes(describe_dataset(report, hashes)))


def describe_dataset(report: Mapping[str, Any], hashes: Mapping[str, str | None]) -> dict[str, Any]:
    """What croissant.json holds; its size does not grow with the shards, whose hashes are in shards.parquet.

    Args:
        report: What report.json holds.
        hashes: The sha256 of each of the dataset's tables and files.
    """
    numbers, date = report["dataset"], report.get("build", {}).get("date")
    mixture = numbers["mixture"]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": numbers["name"],
        "description": " ".join(describe_in_words(numbers)),
        "identifier": numbers["root_hash"],
        "license": sorted({row["licence"] or NOT_STATED for row in mixture}) or [NOT_STATED],
        "inLanguage": sorted({row["language"] for row in mixture}),
        "isBasedOn": [
            {
                "@type": "sc:CreativeWork",
                "name": row["name"],
                "license": row["licence"] or NOT_STATED,
            }
            for row in mixture
        ],
        **({"dateCreated": date} if date else {}),
        "rai:dataPreprocessingProtocol": [
            f"{name}: {json.dumps(value, ensure_ascii=False, sort_keys=True)}"
            for name, value in sorted(numbers["settings"].items())
        ],
        "distribution": [*(_file_object(name, hashes[name]) for name in _FILES), *_file_sets()],
        "recordSet": [
            _record_set(
                "instance",
                "One pair of segments to pretrain on.",
                {"fileSet": {"@id": "blocks"}},
                _INSTANCE,
            ),
            _record_set(
                "shard", "One file of instances.", {"fileObject": {"@id": SHARDS_TABLE}}, _SHARD
            ),
        ],
    }


def _file_object(name: str, sha256: str | None) -> dict[str, Any]:
    encoding, description = _FILES[name]
    facts = {
        "@id": name,
        "name": name,
        "description": description,
        "contentUrl": name,
        "sha256": sha256,
    }
    return {"@type": "cr:FileObject", "encodingFormat": encoding, **facts}


def _file_sets() -> Iterator[dict[str, Any]]:
    """The tar files by a pattern, and the blocks in them."""
    for name, description, encoding, pattern in (
        ("shards", "Tar files of blocks.", "application/x-tar", "*/L*/pass-*/shard-*.tar"),
        (
            "blocks",
            "Arrow IPC streams of instances.",
            "application/vnd.apache.arrow.stream",
            "*.arrow",
        ),
    ):
        facts = {"@id": name, "name": name, "description": description, "includes": pattern}
        inside = {"containedIn": {"@id": "shards"}} if name == "blocks" else {}
        yield {"@type": "cr:FileSet", "encodingFormat": encoding, **facts, **inside}


def _record_set(
    name: str,
    description: str,
    source: Mapping[str, Any],
    columns: Mapping[str, tuple[str, bool, str]],
) -> dict[str, Any]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "name": column,
            "description": meaning,
            "dataType": kind,
            **({"repeated": True} if is_list else {}),
            "source": {**source, "extract": {"column": column}},
        }
        for column, (kind, is_list, meaning) in columns.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": description,
        "field": fields,
    }
