"""Names that files tell: whatever would lead out of the folder is refused before it is a path."""

import json

import fsspec
import numpy as np
import pytest

from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import parse_pass_json, pass_json
from pipeline.shards.records import Manifest
from pipeline.stages.build_tokens import read_store
from pipeline.storage.folder import Folder
from pipeline.storage.names import is_plain, require_plain, stays_below
from pipeline.tokens import token_index
from pipeline.tokens.buckets import plan_buckets
from pipeline.tokens.grouped_rows import pack_rows
from pipeline.tokens.provenance import find_tokens
from pipeline.tokens.token_index import TokenParts, find_prefix_rows, read_bucket
from pipeline.tokens.token_parts import LAYOUT

LEADING_OUT = ["..", "../a", "a/../../b", "/etc/passwd", "\\\\host\\a", "a\\..\\..\\b", ""]
NOT_PLAIN = [*LEADING_OUT, ".", "a/b", "a\\b", "a\0b", "a\nb", "x" * 256, "é" * 128, None, 1, ["a"]]
PLAIN = ["a", "model.safetensors", "..a", "a..b", ".hidden", "a b", "é力", "x" * 255, "C:a"]


@pytest.mark.parametrize("name", NOT_PLAIN, ids=repr)
def test_what_is_no_plain_name(name):
    said = r"here: found the name .*, expected a file's name without a folder"
    with pytest.raises(ValueError, match=said):
        require_plain(["fine", name], "here")


def test_what_is_a_plain_name_and_what_leads_out():
    assert [name for name in PLAIN if not is_plain(name)] == []
    assert all(stays_below(name) and stays_below(f"folder/{name}") for name in PLAIN)
    assert [path for path in LEADING_OUT if stays_below(path)] == []


@pytest.mark.parametrize("key", ["../up", "a/../../up", "/a"])
def test_a_key_that_leads_out_ends_a_listing_and_is_not_removed(key):
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pipe_file("/bucket/data/fine", b"1")
    store.store[f"/bucket/data/{key}"] = store.store["/bucket/data/fine"]  # as S3 takes any key
    try:
        said = r"memory:///bucket/data: found the key .*leads out of the folder; remove"
        with pytest.raises(ValueError, match=said):
            Folder.on(store, "/bucket/data").list()
        with pytest.raises(ValueError, match="leads out of the folder"):
            Folder.on(store, "/bucket/data").remove(["fine", key])
        assert len(store.store) == 2
    finally:
        store.store.clear()


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", 7])
def test_token_parts_with_other_names_are_refused(tmp_path, name):
    totals, names, place = {"documents_hash": "abc"}, ["a-00000", name], Folder(str(tmp_path))
    store = {"part_names": names, "totals": totals, "settings": {"layout": LAYOUT}}
    (tmp_path / "tokens.json").write_text(json.dumps(store))
    with pytest.raises(ValueError, match=r"tokens\.json: found the name"):
        read_store(place)
    fields = dict.fromkeys(Manifest.__dataclass_fields__) | {"settings": totals}
    with pytest.raises(ValueError, match=r"tokens\.json: found the name"):
        find_tokens(Dataset(place, Manifest(**fields), []), str(tmp_path))


def write_index(folder, rows):
    table = np.array([tuple(row.values()) for row in rows], token_index.PREFIX_DTYPE)
    data = pack_rows(table, table["prefix"] >> 4)
    (folder / "prefixes.rows").write_bytes(data)
    return data


@pytest.mark.parametrize(
    ("column", "value"), [("part", 1), ("part", -1), ("offset", -1), ("size", -9), ("rows", -1)]
)
def test_an_index_that_points_outside_is_refused(tmp_path, column, value):
    row = {"prefix": 5, "part": 0, "offset": 0, "size": 10, "row": 0, "rows": 1, column: value}
    write_index(tmp_path, [row])
    place, names = Folder(str(tmp_path)), ["a-00000"]
    said = rf"prefixes\.rows: {column}: found '\[{value}\]'.*delete the folder of token"
    with pytest.raises(ValueError, match=said):
        find_prefix_rows(place, names, [5])
    with pytest.raises(ValueError, match=said):
        list(read_bucket(TokenParts(place, "uint16"), names, plan_buckets(1, b"")[0]))


def test_a_pass_json_names_shards_of_its_own_folder(make_dataset, tmp_path):
    dataset = open_dataset(str(make_dataset(tmp_path / "data", ((20, 9), (13, 17)))))
    own = [shard for shard in dataset.all_shards if shard.pass_index == 1]
    folder = own[0].name.rpartition("/")[0]
    assert parse_pass_json(pass_json(own, "f" * 64), folder, "here") == ("f" * 64, own)
    said = r"here: tells of train/L8192/pass-01/shard-00000\.tar, expected shards of"
    with pytest.raises(ValueError, match=said):
        parse_pass_json(pass_json(own, "f" * 64), "train/L8192/pass-00", "here")
    fields = json.loads(pass_json(own, "f" * 64))
    names = {"name": "../../shard-00000.tar"}, {"name": f"{folder}/../x"}
    changes = (*names, {"num_bytes": -1}, {"new": 1})
    spoilt = [fields | {"shards": [fields["shards"][0] | change]} for change in changes]
    texts = [json.dumps(each).encode() for each in spoilt]
    for text in (*texts, b"[]", b"\x00", b'{"shards": 3}', b"[" * 100_000):
        with pytest.raises(ValueError, match=r"here: not a list of shards"):
            parse_pass_json(text, folder, "here")
    other = json.dumps(fields | {"pass_hash": "0" * 64}).encode()
    with pytest.raises(ValueError, match="here is damaged: its hashes are not those of its shards"):
        parse_pass_json(other, folder, "here")


def test_a_damaged_index_is_an_error_that_names_it(tmp_path):
    one = {"prefix": 0, "part": 0, "offset": 0, "size": 1, "row": 0, "rows": 1}
    rows = [one | dict.fromkeys(("prefix", "offset", "row"), each) for each in range(60)]
    whole, place = write_index(tmp_path, rows), Folder(str(tmp_path))
    found = find_prefix_rows(place, ["a"], [5, 6, 50])
    assert found == [("a", 5, 6), ("a", 6, 7), ("a", 50, 51)]
    for spoilt in (b"", whole[:-40], whole[:4] + b"\xff" + whole[5:], b"\1" + whole[1:]):
        (tmp_path / "prefixes.rows").write_bytes(spoilt)
        said = r"prefixes\.rows: .*delete the folder of token parts"
        with pytest.raises(ValueError, match=said):
            find_prefix_rows(place, ["a"], [5, 50])
