"""Production pairs and the oracle, against the reference program's output (docs/parity.md)."""

import itertools
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.instances import pairs as pairs_module
from pipeline.instances.pairs import Pairs, gather_pairs, make_pairs
from pipeline.seeds import draw_below, permutation, random_words, seed_for
from pipeline.text.cleaning import clean_text
from pipeline.text.sentences import split_sentences
from tests.compiled_paths import taken_path
from tests.pipeline import reference
from tokenizer.compiled import load

CLS, SEP = 101, 102


def read_rows(path: Path) -> list[list]:
    data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    return [json.loads(line) for line in data.splitlines()]


def flatten(documents: list[reference.Document]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [T], sentence lengths [S] and sentence offsets [D + 1]."""
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
    offsets = np.cumsum([0, *map(len, documents)])
    return tokens, np.array(list(map(len, sentences)), np.uint32), offsets


def production_rows(documents, seeds, seq_len, nsp_balance="reference") -> tuple[Pairs, list]:
    tokens, lengths, offsets = flatten(documents)
    pairs = make_pairs(lengths, offsets, seeds, seq_len, nsp_balance=nsp_balance)
    packed = gather_pairs(tokens, pairs, CLS, SEP)
    rows = [row.tolist() for row in np.split(packed.input_ids, packed.offsets[1:-1])]
    columns = pairs.document_a, rows, packed.segment_a_length, pairs.is_random_next
    return pairs, [list(row) for row in zip(*columns, strict=True)]


def reference_rows(documents, seeds, seq_len, nsp_balance="reference") -> list:
    labels, rows = [] if nsp_balance == "exact" else None, []
    for i, seed in enumerate(seeds):
        rule = seq_len, 0.1, Random(seed), labels
        for each in reference.create_document_pairs(documents, i, *rule):
            ids = [CLS, *each.tokens_a, SEP, *each.tokens_b, SEP]
            rows.append([i, ids, len(each.tokens_a) + 2, each.is_random_next])
    return rows


@pytest.fixture(scope="module")
def golden_documents(shared_data: Path) -> list[reference.Document]:
    return read_rows(shared_data / "golden/pairs_documents.jsonl.zst")


@pytest.mark.parametrize(("seq_len", "num_rows"), [(128, 5645), (512, 1673)])
@pytest.mark.parametrize(
    "make_rows", [lambda *a: production_rows(*a)[1], reference_rows], ids=["production", "oracle"]
)
def test_golden_pairs(shared_data, golden_documents, seq_len, num_rows, make_rows):
    golden = read_rows(shared_data / f"golden/pairs_L{seq_len}_passes2.jsonl.zst")
    assert len(golden) == num_rows
    made = []
    for pass_index in range(2):
        seeds = [1000003 * pass_index + i for i in range(len(golden_documents))]
        made += [[pass_index, *row] for row in make_rows(golden_documents, seeds, seq_len)]
    assert [[p, i, ids, a, bool(is_random)] for p, i, ids, a, is_random in golden] == made


@st.composite
def buckets(draw) -> list[reference.Document]:
    """Documents of numbered tokens; sentences from one token to far beyond an instance."""
    length = st.one_of(st.integers(1, 12), st.integers(1, 90), st.integers(200, 600))
    shapes = draw(st.lists(st.lists(length, min_size=1, max_size=14), min_size=2, max_size=5))
    tokens = itertools.count(200)
    return [[list(itertools.islice(tokens, n)) for n in shape] for shape in shapes]


@given(
    documents=buckets(),
    seed=st.integers(0, 2**128 - 9),
    seq_len=st.sampled_from([8, 16, 64, 128, 512]),
    nsp_balance=st.sampled_from(["reference", "exact"]),
)
def test_production_equals_the_oracle_given_the_same_generator(
    documents, seed, seq_len, nsp_balance
):
    seeds = [seed + i for i in range(len(documents))]
    pairs, rows = production_rows(documents, seeds, seq_len, nsp_balance)
    assert rows == reference_rows(documents, seeds, seq_len, nsp_balance)
    offsets = np.cumsum([0, *(sum(map(len, document)) for document in documents)])
    first = pairs.document_a, pairs.a_start, pairs.a_stop
    for document, start, stop in (first, (pairs.document_b, pairs.b_start, pairs.b_stop)):
        assert (start < stop).all()
        assert (offsets[document] <= start).all()
        assert (stop <= offsets[document + 1]).all()
    assert (pairs.a_stop - pairs.a_start + pairs.b_stop - pairs.b_start <= seq_len - 3).all()


@given(
    documents=buckets(),
    uses=st.none() | st.lists(st.integers(0, 1), max_size=12),
    seeds=st.tuples(*[st.integers(0, 2**128 - 1) | st.sampled_from([0, 2**32, 2**64 - 1])] * 12),
    seq_len=st.integers(5, 300),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    nsp_balance=st.sampled_from(["reference", "exact"]),
)
def test_both_paths_give_the_same(documents, uses, seeds, seq_len, short_seq_prob, nsp_balance):
    _, lengths, offsets = flatten(documents)
    seeds = seeds[: len(documents) if uses is None else len(uses)]
    rule = seq_len, short_seq_prob, nsp_balance, uses
    found = []
    for path in ("python", "compiled"):
        with taken_path(path, "pipeline.instances._instances", pairs_module, "loops"):
            columns = vars(make_pairs(lengths, offsets, seeds, *rule))
        found.append([(name, each.dtype, each.tolist()) for name, each in columns.items()])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": np.arange(0, 81, 9)},
        {"firsts": np.array([0, 9])},
        {"rows": np.array([0, 2])},
        {"rows": np.array([-1, 0])},
        {"rows": np.array([1, 1]), "seeds": np.arange(8, dtype=np.uint32)},
        {"seeds": np.arange(7, dtype=np.uint32)},
        {"b_stop": np.empty(10, np.int64)},
        {"is_random_next": np.empty(8, np.bool_)},
    ],
    ids=" ".join,
)
def test_arrays_that_do_not_fit_are_refused(changes):
    if not (loops := load("pipeline.instances._instances")):
        pytest.skip("the compiled loops are not there")
    arguments = {
        "bounds": np.arange(0, 90, 9), "firsts": np.array([0, 4, 9]), "rows": np.array([0, 1]),
        "seeds": np.arange(8, dtype=np.uint32), "max_tokens": 20, "short": 0.1, "exact": -1,
    }  # fmt: skip
    columns = zip(Pairs.__dataclass_fields__, pairs_module._DTYPES, strict=True)
    arguments |= {name: np.empty(9, dtype) for name, dtype in columns}
    assert 2 <= loops.make_pairs(*arguments.values()) <= 9
    with pytest.raises(ValueError, match="do not fit"):
        loops.make_pairs(*(arguments | changes).values())


def test_ten_unlucky_draws_give_the_next_other_document():
    """The reference takes the document itself, and calls it random (docs/parity.md 5)."""
    documents = [[[7, 8, 9]], [[10]]]
    seeds = [1555, 782]  # whose ten draws of another document all hit the document itself
    pairs, rows = production_rows(documents, seeds, 16)
    assert rows == [
        [0, [CLS, 7, 8, 9, SEP, 10, SEP], 5, True],
        [1, [CLS, 10, SEP, 7, 8, 9, SEP], 3, True],
    ]
    assert pairs.document_b.tolist() == [1, 0]
    assert rows == reference_rows(documents, seeds, 16)


@pytest.mark.parametrize("rows", [[0, 1], [0, 0, 0, 1], [1, 1]], ids=str)
def test_no_draw_gives_a_document_to_itself(rows):
    """Not in a bucket of two documents either, however often a pass uses them."""
    lengths, offsets = np.array([3, 9, 40, 5, 60, 30]), np.array([0, 3, 6])
    num_random = 0
    for start in range(0, 4000 * len(rows), len(rows)):
        pairs = make_pairs(lengths, offsets, list(range(start, start + len(rows))), 64, rows=rows)
        assert (pairs.is_random_next == (pairs.document_a != pairs.document_b)).all()
        num_random += int(pairs.is_random_next.sum())
    assert num_random > 8 * 1024, "one in 1,024 draws ten times itself"


def test_one_document_is_refused():
    with pytest.raises(ValueError, match=r"found 1 document\(s\) in the bucket, expected at least"):
        make_pairs(np.array([3, 4]), np.array([0, 2]), [1], 128)


def test_other_documents_seeds_do_not_shift_the_draws(golden_documents):
    few = golden_documents[:5]
    first, second = (production_rows(few, [n, 2, n, n, n], 128)[1] for n in (1, 9))
    assert [row for row in first if row[0] == 1] == [row for row in second if row[0] == 1]


def test_an_exact_balance_of_real_articles(shared_data):
    """Of 100,000 instances half is random, in every pass; random means another document."""
    files = find_inputs([str(shared_data / "data/wiki_en/wiki_en_0[01].txt.zst")])
    [part] = plan_parts(files, "auto", 2**30)
    documents = [split_sentences(clean_text(each.text)) for each in read_part(part)]
    lengths = np.array([len(sentence.split()) for sentences in documents for sentence in sentences])
    offsets = np.cumsum([0, *map(len, documents)])
    num_instances = 0
    for number in range(6):
        seeds = [1_000_003 * number + i for i in range(len(documents))]
        pairs = make_pairs(lengths, offsets, seeds, 128, nsp_balance="exact")
        assert (pairs.is_random_next == (pairs.document_a != pairs.document_b)).all()
        assert pairs.is_random_next.mean() == pytest.approx(0.5, abs=0.001)
        num_instances += len(pairs)
    assert num_instances >= 100_000
    plain = make_pairs(lengths, offsets, seeds, 128)
    assert plain.is_random_next.mean() > 0.52, "the reference draws more"


def test_gather_writes_one_packed_run():
    columns = [[0, 1], [4, 0], [6, 3], [0, 0], [1, 5], [2, 6], [True, False]]
    dtypes = [np.int32, np.int64, np.int64, np.int32, np.int64, np.int64, np.bool_]
    pairs = Pairs(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))
    tokens = np.array([10, 11, 12, 13, 14, 15], np.uint32)
    for path in ("python", "compiled"):
        with taken_path(path, "pipeline.instances._instances", pairs_module, "loops"):
            packed = gather_pairs(tokens, pairs, CLS, SEP)
            none = gather_pairs(tokens, pairs.take(slice(0, 0)), CLS, SEP)
        assert packed.input_ids.dtype == np.uint32
        first, second = [CLS, 14, 15, SEP, 11, SEP], [CLS, 10, 11, 12, SEP, 15, SEP]
        assert packed.input_ids.tolist() == first + second
        assert packed.offsets.tolist() == [0, 6, 13]
        assert packed.segment_a_length.tolist() == [4, 5]
        assert none.offsets.tolist() == [0]


@pytest.mark.parametrize("span", [[-1, 2, 2, 4], [0, 7, 2, 4], [2, 1, 2, 4], [0, 2, 2, 5]])
def test_spans_that_do_not_fit_are_refused(span):
    if not pairs_module.loops:
        pytest.skip("the compiled loops are not there")
    tokens, specials, out = (np.zeros(size, np.uint16) for size in (6, 2, 7))
    pairs_module.loops.gather_pairs(tokens, np.array([[0, 2, 2, 4]]), specials, out)
    with pytest.raises(ValueError, match="do not fit"):
        pairs_module.loops.gather_pairs(tokens, np.array([span]), specials, out)


def test_seeds_follow_the_documented_formula():
    assert seed_for(12345, "pairs-L128", 3, "00ff") == 0xC35005D048EE02D33715D90C7A26801B


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 1000, 2**33])
def test_draw_below_equals_randint(limit):
    ours, theirs = Random(4), Random(4)
    for _ in range(200):
        assert draw_below(limit, ours.getrandbits) == theirs.randint(0, limit - 1)
    assert ours.random() == theirs.random()


def test_random_words_are_splitmix64():
    class Fixed(Random):
        def getrandbits(self, k: int, /) -> int:
            assert k == 64
            return 1234567

    # The published test vector of SplitMix64 for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert random_words(3, Fixed()).tolist() == published


def test_permutation_is_a_fixed_order():
    assert permutation(10, Random(1)).tolist() == [2, 0, 4, 9, 8, 7, 5, 1, 3, 6]
    assert sorted(permutation(1000, Random(2))) == list(range(1000))
