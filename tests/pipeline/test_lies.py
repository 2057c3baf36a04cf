"""A runner and a store that lie, from scripts/soak: a few lies, each told to a whole build."""

import pytest

from scripts.soak.lies import RUNNER_LIES, STORE_LIES, WRITE_LIES
from scripts.soak.list_lies import LIST_LIES
from scripts.soak.lying_runner import Liar, exchanges, make_list_liar

CHOSEN = (
    "half of every group's chunks are lost", "a group comes twice", "groups come in another order",
    "tokens of a part are of another document", "a record of part of a bucket",
    "a shard that was written is not there",
)  # fmt: skip
LIES = {lie.name: lie for lie in (*RUNNER_LIES, *STORE_LIES, *WRITE_LIES)}


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    return Liar(tmp_path_factory.mktemp("lies"))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_lie_ends_as_it_must(liar, name):
    lie = LIES[name]
    found = [liar.tell(lie, exchange) for exchange in exchanges(lie)]
    assert [(each.exchange, each.end, each.expected) for each in found] == [
        (exchange, lie.end, lie.end) for exchange in exchanges(lie)
    ], found


def test_every_lie_has_a_name_of_its_own():
    assert len(LIES) == len(RUNNER_LIES) + len(STORE_LIES) + len(WRITE_LIES) == 75


def test_lies_about_what_was_written_are_found(tmp_path):
    liar = make_list_liar(tmp_path / "lists")
    chosen = (
        "a part is lost, another of as many documents is listed twice",
        "a shard has another sha256",
        "shards are listed in another order",
    )
    ends = [(lie.name, liar.tell(lie)[0], lie.end) for lie in LIST_LIES if lie.name in chosen]
    assert ends == [(name, end, end) for name, _, end in ends]
    assert len(ends) == 3
