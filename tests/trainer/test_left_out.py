"""Instances of listed documents are never read, in any epoch, by any rank, wherever a run goes on.

Document n of the datasets here is row n of each shard, as A and as B.
"""

import dataclasses
import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.shards.dataset import read_blocks
from pipeline.shards.document_index import Found
from pipeline.shards.document_list import (
    find_unknown,
    hash_documents,
    parse_document_list,
    read_document_list,
)
from tests.keyed_store import OPTIONS, write_to_store
from tests.trainer.step_loader import load_steps
from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.pretrain.run import Position, choose_left_out, leave_out
from trainer.runs.run_folder import RunFolder
from trainer.settings import Phase, PretrainSettings
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.source import open_mixture
from trainer.stream.order.state import parse_state

DOCUMENTS = (3, 140, 0, 61, 62, 63)
SIZES = {"rank": 0, "world_size": 1, "global_batch": 30, "micro_tokens": 4096, "seed": 3}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A pass of 180 instances with documents 0 to 119, and one of 90 with documents 0 to 59."""
    folder = tmp_path_factory.mktemp("left-out")
    write_tiny_dataset(folder / "a", instances=120, has_validation=False)
    write_tiny_dataset(folder / "b", instances=60, seed=5, has_validation=False)
    return open_mixture([f"a={folder}/a:2", f"b={folder}/b"])


@pytest.fixture
def left_out(tmp_path):
    return LeftOutDocuments(DOCUMENTS, str(tmp_path / "cache"))


def documents_by_tokens(mixture):
    """The document of each instance of two datasets, by its tokens."""
    found = {}
    for source in mixture:
        for shard in source.dataset.all_shards:
            for block in read_blocks(source.dataset, shard):
                for row in range(block.num_instances):
                    ids = block.slice(row, row + 1).input_ids
                    found.setdefault(tuple(ids.tolist()), set()).add(int(block.document_a[row]))
    return found


def tokens_of(step):
    for batch in step.micro_batches:
        for start, stop in pairwise(batch.cu_seqlens.tolist()):
            yield tuple(batch.input_ids[start:stop].tolist())


def take(mixture, num_steps, **changes):
    with load_steps(mixture, "train", 16, num_lanes=5, **(SIZES | changes)) as steps:
        return [next(steps) for _ in range(num_steps)]


def test_no_step_reads_a_listed_document_and_all_others_keep_their_order(mixture, left_out):
    documents = documents_by_tokens(mixture)
    plain = [tokens for step in take(mixture, 40, global_batch=1) for tokens in tokens_of(step)]
    expected = [tokens for tokens in plain if not documents[tokens] & {*DOCUMENTS}]
    found = take(mixture, len(expected), global_batch=1, leave_out=left_out)
    assert [tokens for step in found for tokens in tokens_of(step)] == expected
    long = take(mixture, 40, leave_out=left_out)
    read = [tokens for step in long for tokens in tokens_of(step)]
    assert len(read) == 40 * 30
    assert not any(documents[tokens] & {*DOCUMENTS} for tokens in read)
    # 1,200 instances are more than two epochs of each dataset.
    assert min(long[-1].epochs) > 2


@pytest.mark.parametrize("done", [1, 7, 23])
@pytest.mark.parametrize("world_size", [1, 4])
def test_any_ranks_go_on_from_any_step(mixture, left_out, done, world_size):
    skip = [(45, 52)]
    whole = take(mixture, 26, leave_out=left_out, skip=skip)
    state = json.loads(json.dumps(whole[done - 1].state))
    changes = {"state": state, "leave_out": left_out, "world_size": world_size}
    shares = [take(mixture, 3, rank=rank, **changes) for rank in range(world_size)]
    for expected, *steps in zip(whole[done:], *shares, strict=False):
        read = [tokens for share in steps for tokens in tokens_of(share)]
        assert read == list(tokens_of(expected))


def test_the_state_names_the_list_and_earlier_versions_refuse_it(mixture, left_out):
    state = take(mixture, 1, leave_out=left_out)[0].state
    digest = hash_documents(DOCUMENTS)
    assert (state["format"], state["left_out"]) == (3, [6, digest])
    assert parse_state(state).to_dict() == state
    assert "left_out" not in take(mixture, 1)[0].state


def test_a_list_may_only_grow_by_what_was_not_consumed(mixture, left_out):
    state = take(mixture, 2, leave_out=left_out)[-1].state
    with pytest.raises(ValueError, match=r"leaves out 6 document\(s\) .* no list is given"):
        take(mixture, 1, state=state)
    other = dataclasses.replace(left_out, documents=(140, 3, *DOCUMENTS[2:]))
    with pytest.raises(ValueError, match="which may only grow at its end"):
        take(mixture, 1, state=state, leave_out=other)
    consumed = {document for step in take(mixture, 2) for document in step_documents(mixture, step)}
    late = next(document for document in range(60) if document not in consumed)
    grown = dataclasses.replace(left_out, documents=(*DOCUMENTS, late))
    assert take(mixture, 1, state=state, leave_out=grown)[0].state["left_out"][0] == 7
    early = min(consumed - {*DOCUMENTS})
    grown = dataclasses.replace(left_out, documents=(*DOCUMENTS, early))
    with pytest.raises(ValueError, match=r"position \d+ holds a listed document, and training has"):
        take(mixture, 1, state=state, leave_out=grown)


def step_documents(mixture, step):
    documents = documents_by_tokens(mixture)
    return {document for tokens in tokens_of(step) for document in documents[tokens]}


def test_an_instance_that_holds_several_documents_is_of_the_first_in_the_list(
    mixture, left_out, monkeypatch
):
    """Row 5 of shard 1 holds documents 3 and 140, the first and the second of the list."""
    document, row = np.array([[140, 5], [3, 5], [62, 6], [140, 7]]).T
    shard = np.ones(4, np.int64)
    found = Found(document.astype(np.uint64), shard, shard, shard, row, shard, shard)
    index = SimpleNamespace(find=lambda *_: found)
    monkeypatch.setattr("trainer.stream.left_out.open_document_index", lambda *_: index)
    dataset = mixture[0].dataset
    assert left_out.instances(dataset, 16, 0).row.tolist() == [5, 6, 7]
    assert left_out.instances(dataset, 16, 0).shard.tolist() == [1, 1, 1]
    assert left_out.instances(dataset, 16, 0, num_before=1).row.tolist() == [6, 7]
    assert left_out.instances(dataset, 16, 0, num_before=2).row.tolist() == [6]
    assert left_out.instances(dataset, 16, 1).row.tolist() == []


def test_every_stream_of_a_run_is_held_to_the_list(mixture, left_out):
    states = {"16": take(mixture, 5)[-1].state}
    with pytest.raises(ValueError, match="`python -m trainer forget` trains again from before it"):
        leave_out(Position(streams=states), left_out, mixture, None)
    never = dataclasses.replace(left_out, documents=(10_000,))
    position = leave_out(Position(streams=states), never, mixture, None)
    assert position.streams["16"]["left_out"] == [1, hash_documents([10_000])]
    assert leave_out(Position(streams=states), None, mixture, None).streams == states


def test_a_pass_of_which_nothing_is_left_is_refused(mixture, left_out):
    everything = dataclasses.replace(left_out, documents=tuple(range(60)))
    with pytest.raises(
        ValueError, match=r"b: leave_out leaves nothing of pass 0 of train L16, all"
    ):
        take(mixture, 1, leave_out=everything)
    with pytest.raises(
        ValueError, match=r"b: leave_out leaves nothing of pass 0 of train L16, all"
    ):
        everything.look_into(mixture, [16])


def test_documents_are_left_out_of_the_train_split_only(tmp_path, left_out):
    """Otherwise rows of train shards would be taken for rows of validation shards."""
    write_tiny_dataset(tmp_path / "data")
    data = open_mixture([str(tmp_path / "data")])
    sizes = SIZES | {"leave_out": left_out}
    with pytest.raises(ValueError, match=r"leave_out: documents are left out of the train split,"):
        load_steps(data, "validation", 16, **sizes)


def test_what_is_looked_into_once_need_not_be_looked_into_again(mixture, left_out, tmp_path):
    known = left_out.look_into(mixture, [16])
    elsewhere = dataclasses.replace(known, cache_dir="/dev/null/cache")
    assert (
        take(mixture, 2, leave_out=elsewhere)[-1].state
        == take(mixture, 2, leave_out=known)[-1].state
    )


LIST = """\
# from `python -m trainer ask`
00000000000000ff  and words behind it

00000000000000FE
"""


def test_a_list_has_an_id_per_line():
    data = LIST.replace("FE", "fe" * 9).encode()
    data += b'{"id": "0000000000000001ab", "place": "a.txt"}\n00000000000000ff\n'
    assert parse_document_list(data, "list") == (255, 254, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf00000000000000ff\r\n00000000000000fe\r\n",  # of an editor of Windows
        "00000000000000ff a\u2028b\x85c\x0bd\x0c\x1ce\n00000000000000fe\n".encode(),
        '{"id": "00000000000000ff", "opening": "a\u2029\x85b"}\n00000000000000fe'.encode(),
    ],
)
def test_only_line_feeds_end_a_line_and_a_mark_of_utf8_is_no_text(data):
    """JSON leaves U+2028 and its like as they are in the titles that `ask` writes."""
    assert parse_document_list(data, "list") == (255, 254)


def test_lists_in_a_store_are_read_with_the_options_of_the_command():
    url = write_to_store("lists/two", b"00000000000000ff\n00000000000000fe\n")
    settings = PretrainSettings(
        data=[],
        output="RUN",
        phases=[Phase(16, 8, 4, 1.0)],
        leave_out=url,
        storage_options=OPTIONS,
    )
    assert choose_left_out(settings, (), may_grow=True) == (255, 254)
    with pytest.raises(ValueError, match="the store needs a key"):
        read_document_list(url)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST, "list:4: found '00000000000000FE', expected a document's id, or the first 16"),
        ("ff\n", "list:1: found 'ff', expected"),
        ('{"place": 3}', "list:1: found .* expected a JSON object with a document's id under id"),
        ("# nothing\n", "list lists no document"),
    ],
)
def test_other_lines_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_document_list(text.encode(), "list")


def test_documents_that_no_dataset_holds(mixture, tmp_path):
    datasets = [source.dataset for source in mixture]
    assert find_unknown(datasets, [7, 119, 120, 2**63], str(tmp_path)) == [120, 2**63]
    with pytest.raises(FileNotFoundError, match=r"no-list: there is no such file; give a list"):
        read_document_list(str(tmp_path / "no-list"))


def test_a_run_keeps_its_list(tmp_path):
    path = tmp_path / "list"
    path.write_text("00000000000000ff\n00000000000000fe\n")
    settings = PretrainSettings(
        data=[], output="RUN", phases=[Phase(16, 8, 4, 1.0)], leave_out=str(path)
    )
    assert choose_left_out(settings, (255, 254), may_grow=False) == (255, 254)
    assert choose_left_out(settings, (255,), may_grow=True) == (255, 254)
    with pytest.raises(ValueError, match=r"RUN was begun with a list of 1 document\(s\), and"):
        choose_left_out(settings, (255,), may_grow=False)
    branch = dataclasses.replace(settings, continue_from="TRUNK")
    with pytest.raises(ValueError, match=r"does not begin with the 1 document\(s\) that TRUNK"):
        choose_left_out(branch, (254,), may_grow=True)
    path.unlink()
    assert choose_left_out(settings, (255, 254), may_grow=False) == (255, 254)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        choose_left_out(settings, (), may_grow=True)


def test_a_list_that_is_not_the_runs_is_refused(tmp_path):
    run = RunFolder(tmp_path)
    assert run.read_left_out() == ()
    facts = {"id": "1", "model": {}, "launches": [], "datasets": []}
    facts["left_out"] = {"documents": 1, "hash": hash_documents([255])}
    run.facts.write_text(json.dumps(facts))
    with pytest.raises(FileNotFoundError, match=r"left_out.txt is missing; restore it"):
        run.read_left_out()
    run.left_out.write_text("00000000000000ff\n")
    assert run.read_left_out() == (255,)
    run.left_out.write_text("00000000000000fe\n")
    with pytest.raises(ValueError, match=r"left_out.txt is not the list of this run: found"):
        run.read_left_out()
