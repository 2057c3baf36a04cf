"""What a runner or a store may say that is not so: lying_runner tells each lie to one build.

Lies of a runner change the groups that a shuffle brought together. Lies of a store change files:
of the token parts, of a build that was interrupted, or of a finished dataset. Each says how the
build must end.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.jobs.exchange import pack_chunk, unpack_chunk
from pipeline.jobs.shard_records import ShardRecord, format_record, parse_record
from pipeline.shards import manifest as tables
from pipeline.shards.block_tables import blocks_table
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.records import MANIFEST_HASH, BlockTable, Shard, canonical_hash
from pipeline.shards.seal import NOTHING
from pipeline.shards.shard_file import pack_shard
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents, unpack_documents

End = Literal["refused", "healed", "verify", "unharmed"]
"""The build ends with an error, builds anew, `verify` finds it, or no harm is done."""
Group = tuple[bytes, list[bytes]]
TARGET = b"train-00001-of-00004"
OTHER = b"train-00002-of-00004"
HELD_OUT = b"validation-00000-of-00001"
SHARD = "train/L64/pass-00/shard-00001.tar"
OTHER_SHARD = "train/L64/pass-01/shard-00001.tar"


@dataclass(frozen=True)
class RunnerLie:
    """What the runner delivers, out of the groups that it should and those of another build."""

    name: str
    tell: Callable[[list[Group], dict[bytes, list[bytes]]], list[Group]]
    end: End = "refused"


@dataclass(frozen=True)
class StoreLie:
    """Changes files of a dataset's folder; the second folder is another build's."""

    name: str
    tell: Callable[[Path, Path], object]
    end: End = "refused"
    before: Literal["encoded", "interrupted", "finished"] = "encoded"
    exchanges: tuple[str, ...] = ("files", "shuffle")


@dataclass(frozen=True)
class WriteLie:
    """What the store keeps of a file by path and bytes, while a build runs; None for nothing."""

    name: str
    keep: Callable[[str, bytes], bytes | None]
    end: End = "refused"


Lie = RunnerLie | StoreLie | WriteLie


def _chunks(change: Callable[[list[bytes]], list[bytes]], key: bytes = TARGET) -> Any:
    """Makes a lie about the chunks of one group."""
    return lambda groups, _: [
        (name, change(chunks) if name == key else chunks) for name, chunks in groups
    ]


def _each(change: Callable[[list[bytes]], list[bytes]]) -> Any:
    return lambda groups, _: [(name, change(chunks)) for name, chunks in groups]


def _groups(change: Callable[[Group], list[Group]], key: bytes | None = TARGET) -> Any:
    """Makes a lie that replaces one group by several or by none.

    If `key` is None, it does so with every group.
    """
    return lambda groups, _: [
        new for old in groups for new in (change(old) if key in (None, old[0]) else [old])
    ]


def _halves(group: Group) -> list[Group]:
    name, chunks = group
    return [(name, chunks[: len(chunks) // 2]), (name, chunks[len(chunks) // 2 :])]


def _move(count: int, stays: bool, source: bytes = TARGET, target: bytes = OTHER) -> Any:
    """Chunks of one group in another, and perhaps in their own besides."""

    def tell(groups: list[Group], _: object) -> list[Group]:
        found = dict(groups)
        moved = found[source][:count]
        found[target] = [*found[target], *moved]
        found[source] = found[source][0 if stays else count :]
        return list(found.items())

    return tell


def _rename(names: dict[bytes, bytes]) -> Any:
    return lambda groups, _: [(names.get(name, name), chunks) for name, chunks in groups]


def _merged(groups: list[Group], _: object) -> list[Group]:
    found = dict(groups)
    found[TARGET] = found[TARGET] + found.pop(OTHER)
    return list(found.items())


def _of_another_build(count: int | None) -> Any:
    def tell(groups: list[Group], others: dict[bytes, list[bytes]]) -> list[Group]:
        return [
            (
                name,
                [*others[name][:count], *chunks[len(others[name][:count]) :]]
                if name == TARGET
                else chunks,
            )
            for name, chunks in groups
        ]

    return tell


def documents_of(chunk: bytes) -> tuple[str, list[TokenizedDocument]]:
    """Returns the name of the part that a chunk is from, and its documents."""
    part, data = unpack_chunk(chunk)
    return part, list(unpack_documents(data, "uint16", part))


def _repack(change: Callable[[list[TokenizedDocument]], list[TokenizedDocument]]) -> Any:
    """Makes a lie about the documents of a group's longest chunk, whose checksums are right."""

    def tell(chunks: list[bytes]) -> list[bytes]:
        place = max(range(len(chunks)), key=lambda each: len(chunks[each]))
        part, documents = documents_of(chunks[place])
        return [
            *chunks[:place],
            pack_chunk(part, pack_documents(change(documents))[0]),
            *chunks[place + 1 :],
        ]

    return tell


def _shortened(document: TokenizedDocument) -> TokenizedDocument:
    """Returns a document without its last sentence, as another build may have encoded it."""
    last = int(document.sentence_lengths[-1])
    lengths = document.sentence_lengths[:-1]
    tokens = document.tokens[:-last]
    return dataclasses.replace(document, sentence_lengths=lengths, tokens=tokens)


def _without_copy(groups: list[Group], _: object) -> list[Group]:
    """Loses what one chunk holds of documents that another chunk of its group holds too."""
    for name, chunks in groups:
        parts = [documents_of(chunk) for chunk in chunks]
        for place, (part, own) in enumerate(parts):
            others = {
                document.id
                for other, (_, found) in enumerate(parts)
                if other != place
                for document in found
            }
            kept = [document for document in own if document.id not in others]
            if len(kept) < len(own):
                changed = [
                    *chunks[:place],
                    pack_chunk(part, pack_documents(kept)[0]),
                    *chunks[place + 1 :],
                ]
                return [(each, changed if each == name else found) for each, found in groups]
    raise AssertionError("no group holds a document twice; make the corpus of more copies")


RUNNER_LIES: Sequence[RunnerLie] = (
    RunnerLie("a chunk of a group is lost", _chunks(lambda chunks: chunks[1:])),
    RunnerLie("the last chunk of a group is lost", _chunks(lambda chunks: chunks[:-1])),
    RunnerLie("half of a group's chunks are lost", _chunks(lambda chunks: chunks[::2])),
    RunnerLie("half of every group's chunks are lost", _each(lambda chunks: chunks[::2])),
    RunnerLie("a group is empty", _chunks(lambda _: [])),
    RunnerLie("a group never comes", _groups(lambda _: [])),
    RunnerLie("no group comes", _groups(lambda _: [], None)),
    RunnerLie("a group comes in two parts", _groups(_halves)),
    RunnerLie("every group comes in two parts", _groups(_halves, None)),
    RunnerLie(
        "a group comes chunk by chunk",
        _groups(lambda group: [(group[0], [chunk]) for chunk in group[1]]),
    ),
    RunnerLie("a group comes twice", _groups(lambda group: [group, group])),
    RunnerLie("every group comes twice", _groups(lambda group: [group, group], None)),
    RunnerLie(
        "a group comes, then its second half again",
        _groups(lambda group: [group, _halves(group)[1]]),
    ),
    RunnerLie(
        "a group comes, then an empty one of its name",
        _groups(lambda group: [group, (group[0], [])]),
    ),
    RunnerLie("a chunk comes twice", _chunks(lambda chunks: [*chunks, chunks[0]])),
    RunnerLie("every chunk comes twice", _each(lambda chunks: chunks + chunks)),
    RunnerLie(
        "a chunk comes twice, another is lost", _chunks(lambda chunks: [chunks[0], *chunks[:-1]])
    ),
    RunnerLie(
        "a chunk comes twice, under another part's name",
        _chunks(lambda chunks: [*chunks, pack_chunk("another", bytes(unpack_chunk(chunks[0])[1]))]),
    ),
    RunnerLie(
        "an empty chunk stands in a chunk's place", _chunks(lambda chunks: [b"", *chunks[1:]])
    ),
    RunnerLie("copies of documents are lost", _without_copy),
    RunnerLie(
        "the last document of a chunk is lost", _chunks(_repack(lambda documents: documents[:-1]))
    ),
    RunnerLie(
        "a document stands twice in a chunk",
        _chunks(_repack(lambda documents: [*documents, documents[0]])),
    ),
    RunnerLie(
        "a document of other tokens stands in a chunk",
        _chunks(_repack(lambda documents: [_shortened(documents[0]), *documents[1:]])),
    ),
    RunnerLie(
        "a chunk is cut inside a document", _chunks(lambda chunks: [chunks[0][:-5], *chunks[1:]])
    ),
    RunnerLie(
        "a bit of a chunk is flipped",
        _chunks(lambda chunks: [chunks[0][:-9] + b"\xff" + chunks[0][-8:], *chunks[1:]]),
    ),
    RunnerLie("a chunk comes to another bucket", _move(1, stays=False)),
    RunnerLie("a chunk comes to its bucket and to another", _move(1, stays=True)),
    RunnerLie("a held-out chunk comes to a train bucket", _move(1, stays=False, source=HELD_OUT)),
    RunnerLie("a held-out chunk comes to both splits", _move(1, stays=True, source=HELD_OUT)),
    RunnerLie("a train chunk comes to validation", _move(1, stays=False, target=HELD_OUT)),
    RunnerLie("two groups have each other's names", _rename({TARGET: OTHER, OTHER: TARGET})),
    RunnerLie("two groups have one name", _rename({OTHER: TARGET})),
    RunnerLie("two groups come as one", _merged),
    RunnerLie("a group has a name of another build", _rename({TARGET: b"train-00001-of-00008"})),
    RunnerLie("a chunk is of another build", _of_another_build(1)),
    RunnerLie("a group is of another build", _of_another_build(None)),
    RunnerLie("chunks come in another order", _each(lambda chunks: chunks[::-1]), "unharmed"),
    RunnerLie("groups come in another order", lambda groups, _: groups[::-1], "unharmed"),
)


def _part(folder: Path, ending: str = "tokens", place: int = 0) -> Path:
    """Returns a file of one of the largest token parts."""
    found = sorted(
        (folder / "tokens").glob("*.tokens"), key=lambda path: (-path.stat().st_size, path.name)
    )
    return found[place].with_suffix(f".{ending}")


def _rewrite(
    endings: Sequence[str], change: Callable[[list[TokenizedDocument]], list[TokenizedDocument]]
) -> Any:
    """Makes a lie that writes changed documents into some files of a part."""

    def tell(folder: Path, _: Path) -> None:
        path = _part(folder)
        documents = list(unpack_documents(path.read_bytes(), "uint16", path.name))
        for ending, data in zip(
            ("tokens", "index"), pack_documents(change(documents)), strict=True
        ):
            if ending in endings:
                path.with_suffix(f".{ending}").write_bytes(data)

    return tell


def _first_shortened(documents: list[TokenizedDocument]) -> list[TokenizedDocument]:
    return [_shortened(documents[0]), *documents[1:]]


def _renamed_document(documents: list[TokenizedDocument]) -> list[TokenizedDocument]:
    """Replaces the first document by one of the same size, whose id differs in the last bit."""
    first = documents[0]
    return [
        dataclasses.replace(first, id=first.id[:-1] + bytes([first.id[-1] ^ 1])),
        *documents[1:],
    ]


def _copy(name: str) -> Any:
    return lambda folder, other: shutil.copy(other / name, folder / name)


def _change_record(change: Callable[[ShardRecord], ShardRecord]) -> Any:
    def tell(folder: Path, _: Path) -> None:
        path = folder / f"_tasks/{SHARD}.json"
        path.write_bytes(format_record(change(parse_record(path.read_bytes()))))
        (folder / SHARD).write_bytes(
            (folder / SHARD).read_bytes()[::-1]
        )  # what the record told of is not ours

    return tell


def _of_other_settings(folder: Path, other: Path) -> None:
    for name in (SHARD, f"_tasks/{SHARD}.json"):
        shutil.copy(other / name, folder / name)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-600])


def _rows(folder: Path) -> list[tuple[Shard, BlockTable]]:
    dataset = open_dataset(str(folder))
    return [(shard, dataset.blocks(shard)) for shard in dataset.all_shards]


def _publish(folder: Path, rows: Sequence[tuple[Shard, BlockTable]], **changes: Any) -> None:
    """Tables, pass.json and manifest of these rows, as a build would publish that believed them."""
    path = folder / tables.MANIFEST
    fields = json.loads(path.read_text())
    shards = [shard for shard, _ in rows]
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(shards))
    (folder / tables.BLOCKS_TABLE).write_bytes(blocks_table([table for _, table in rows]))
    for place in {(shard.split, shard.seq_len, shard.pass_index) for shard in shards}:
        own = [shard for shard in shards if (shard.split, shard.seq_len, shard.pass_index) == place]
        (folder / tables.pass_folder(*place) / "pass.json").write_bytes(
            tables.pass_json(own, fields["settings_hash"])
        )
    fields["groups"] = [dataclasses.asdict(group) for group in tables.group_totals(shards)]
    pinned = {
        name: (folder / name).read_bytes() for name in (tables.SHARDS_TABLE, tables.BLOCKS_TABLE)
    }
    fields["tables_sha256"] = {
        name: hashlib.sha256(data).hexdigest() for name, data in pinned.items()
    }
    fields |= {"root_hash": tables.root_hash(shards)} | changes
    fields[MANIFEST_HASH] = canonical_hash(
        {name: value for name, value in fields.items() if name != MANIFEST_HASH}
    )
    path.write_text(json.dumps(fields))


def _without_bucket(folder: Path, _: Path) -> None:
    (folder / SHARD).unlink()
    _publish(folder, [row for row in _rows(folder) if row[0].name != SHARD])


def _bucket_twice(folder: Path, _: Path) -> None:
    rows = _rows(folder)
    [(shard, table)] = [row for row in rows if row[0].name == SHARD]
    name = SHARD.replace("00001.tar", "00009.tar")
    shutil.copy(folder / SHARD, folder / name)
    _publish(
        folder,
        sorted(
            [*rows, (dataclasses.replace(shard, name=name), table)], key=lambda row: row[0].name
        ),
    )


def _partial_bucket(folder: Path, _: Path) -> None:
    """Publishes a shard with the seal of fewer documents, as a build that believed its runner."""

    def told(shard: Shard) -> Shard:
        seal = dataclasses.replace(shard.seal, documents=shard.seal.documents // 2)
        return dataclasses.replace(shard, seal=seal) if shard.name == SHARD else shard

    _publish(folder, [(told(shard), table) for shard, table in _rows(folder)])


def _without_instances(folder: Path, _: Path) -> None:
    """Replaces a shard by one of the first instances of its bucket alone.

    All checksums, counts and seals fit.
    """
    dataset = open_dataset(str(folder))
    rows = _rows(folder)
    [place] = [place for place, (shard, _) in enumerate(rows) if shard.name == SHARD]
    shard = rows[place][0]
    first = next(iter(read_blocks(dataset, shard))).slice(0, 20)
    mask_id = dataset.manifest.special_ids["mask"]
    tar, row, table = pack_shard([first], "train", shard.seq_len, 0, SHARD, mask_id, shard.seal)
    rows[place] = row, table
    (folder / SHARD).write_bytes(tar)
    _publish(folder, rows)


def _another_manifest_seal(folder: Path, other: Path) -> None:
    seal = json.loads((other / tables.MANIFEST).read_text())["seal"]
    _publish(folder, _rows(folder), seal=seal)


STORE_LIES: Sequence[StoreLie] = (
    StoreLie("tokens of a part lack a document", _rewrite(["tokens"], lambda found: found[:-1])),
    StoreLie(
        "tokens of a part hold a document twice",
        _rewrite(["tokens"], lambda found: [*found, found[0]]),
    ),
    StoreLie("tokens of a part are of another run", _rewrite(["tokens"], _first_shortened)),
    StoreLie("tokens of a part are of another document", _rewrite(["tokens"], _renamed_document)),
    StoreLie("the index of a part lacks a document", _rewrite(["index"], lambda found: found[:-1])),
    StoreLie("the index of a part is of another run", _rewrite(["index"], _first_shortened)),
    StoreLie(
        "a stale part: tokens and index lack a document",
        _rewrite(["tokens", "index"], lambda found: found[:-1]),
    ),
    StoreLie(
        "a stale part: tokens and index are of another run",
        _rewrite(["tokens", "index"], _first_shortened),
    ),
    StoreLie(
        "a part of another build: one document is another",
        _rewrite(["tokens", "index"], _renamed_document),
    ),
    StoreLie("tokens of a part are cut", lambda folder, _: _cut(_part(folder))),
    StoreLie("tokens of a part are lost", lambda folder, _: _part(folder).unlink()),
    StoreLie("the index of a part is lost", lambda folder, _: _part(folder, "index").unlink()),
    StoreLie(
        "the index over all parts is lost",
        lambda folder, _: (folder / "tokens/prefixes.rows").unlink(),
        exchanges=("files",),  # the only one that reads it
    ),
    StoreLie(
        "the index over all parts is another build's",
        _copy("tokens/prefixes.rows"),
        exchanges=("files",),
    ),
    StoreLie(
        "tokens of a part are another part's",
        lambda folder, _: _part(folder).write_bytes(_part(folder, place=1).read_bytes()),
    ),
    StoreLie(
        "a record is lost",
        lambda folder, _: (folder / f"_tasks/{SHARD}.json").unlink(),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record is cut",
        lambda folder, _: _cut(folder / f"_tasks/{SHARD}.json"),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record without its shard",
        lambda folder, _: (folder / SHARD).unlink(),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record whose shard is cut",
        lambda folder, _: _cut(folder / SHARD),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record of part of a bucket",
        _change_record(
            lambda old: dataclasses.replace(old, shard=dataclasses.replace(old.shard, seal=NOTHING))
        ),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record of other settings, its shard of the same size",
        _change_record(lambda old: dataclasses.replace(old, settings_hash="1" * 64)),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record of another shard",
        _change_record(
            lambda old: dataclasses.replace(
                old, shard=dataclasses.replace(old.shard, name=SHARD.replace("pass-00", "pass-01"))
            )
        ),
        "healed",
        "interrupted",
    ),
    StoreLie(
        "a record and its shard of another build", _of_other_settings, "healed", "interrupted"
    ),
    StoreLie("a dataset without one bucket", _without_bucket, "verify", "finished"),
    StoreLie("a dataset with a bucket twice", _bucket_twice, "verify", "finished"),
    StoreLie("a dataset with part of a bucket", _partial_bucket, "verify", "finished"),
    StoreLie(
        "a shard of part of its bucket's instances, its seal of all",
        _without_instances,
        "verify",
        "finished",
    ),
    StoreLie("a dataset with another build's seal", _another_manifest_seal, "verify", "finished"),
    StoreLie("documents.ids is another build's", _copy("documents.ids"), "verify", "finished"),
)


def _keep(name: str, change: Callable[[bytes], bytes | None]) -> Any:
    return lambda path, data: change(data) if path.endswith(name) else data


WRITE_LIES: Sequence[WriteLie] = (
    WriteLie("a shard that was written is not there", _keep(SHARD, lambda _: None)),
    WriteLie("a record that was written is not there", _keep(f"{SHARD}.json", lambda _: None)),
    WriteLie("a shard was kept in part", _keep(SHARD, lambda data: data[:-512])),
    WriteLie("a record was kept in part", _keep(f"{SHARD}.json", lambda data: data[:-40])),
    WriteLie(
        "a slower attempt's record of part of a bucket is kept",
        _keep(f"{SHARD}.json", lambda data: data.replace(b'"documents": ', b'"documents": 1')),
    ),
    WriteLie(
        "another build's record is kept",
        _keep(
            f"{SHARD}.json",
            lambda data: data.replace(b'"settings_hash": "', b'"settings_hash": "0'),
        ),
    ),
    WriteLie(
        "no shard of a pass is kept", lambda path, data: None if "/pass-01/shard" in path else data
    ),
    WriteLie(
        "a shard was kept with a changed byte",
        _keep(SHARD, lambda data: data[:600] + b"\xaa" + data[601:]),
        "verify",
    ),
)
