"""Near-duplicates: signatures, their estimate, and the rule by which documents are dropped."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.text.cleaning import clean_text, document_id
from pipeline.text.minhash import (
    NUM_HASHES,
    band_keys,
    choose_bands,
    count_matches,
    matches_for,
    share_band_probability,
    sign_texts,
    similarity_of,
    sketch_signatures,
)
from pipeline.text.sentences import split_sentences
from pipeline.tokens.grouped_rows import NUM_GROUPS
from pipeline.tokens.near_duplicates import find_near_duplicates, keep_smallest, similarity_rule
from pipeline.tokens.token_parts import join_id
from tests.pipeline.similar_texts import (
    band_rows,
    change_words,
    find_dropped,
    jaccard,
    make_text,
    oracle,
)

SHORT = st.text("ab cdé中文\n", min_size=1, max_size=60).map(clean_text).filter(bool)
CHANGED = st.tuples(st.integers(0, 12), st.sampled_from([0, 0.01, 0.03, 0.06]), st.integers(0, 40))


def test_signatures_never_change():
    texts = ["the quick brown fox jumps over the lazy dog", "维基百科是协作计划", "two words"]
    found = sign_texts(texts)
    assert found.shape == (3, NUM_HASHES)
    least = [[42597, 34489, 27643], [2864, 59, 15051], [26138, 57616, 24988]]
    assert found[:, :3].tolist() == least
    keys = [2718121923695982051, 5076063512324625434, 13773542566171059407]
    assert band_keys(found, 21, 6)[:, 0].tolist() == keys


@given(st.lists(SHORT, min_size=1, max_size=8))
def test_a_signature_depends_on_its_text_alone(texts):
    for text, row in zip(texts, sign_texts(texts), strict=True):
        assert np.array_equal(sign_texts([text])[0], row)
        assert np.array_equal(sign_texts([text.upper() if text.isascii() else text])[0], row)


def test_batches_change_nothing(monkeypatch):
    texts = [make_text(1, 3000), "中文维基" * 700, "short one", "x" * 5000, "a " * 2000 + "end"]
    whole = sign_texts(texts)
    for size in (64, 301, 1000):
        monkeypatch.setattr("pipeline.text.minhash._BATCH_BYTES", size)
        assert np.array_equal(sign_texts(texts), whole)


def test_ideographs_are_words():
    left = "中文维基百科是维基百科协作计划的中文版本自二零零二年十月二十四日正式成立由非营利组织"
    assert similarity_of(matches_of(left, left.replace("十月", "七月"))) > 0.6
    assert similarity_of(matches_of(left, left[::-1])) < 0.1


def matches_of(left, right):
    sketches = sketch_signatures(sign_texts([left, right]))
    return int(count_matches(sketches[:1], sketches[1:])[0])


def test_short_documents_are_alike_only_if_their_words_are():
    texts = ["One two three four", "one two three four", "one two three five", "one two three"]
    assert set(find_dropped(texts)) == {max(texts[:2], key=document_id)}


def test_the_estimate_errs_as_theory_says():
    errors, variances = [], []
    for seed, share in itertools.product(range(60), (0.005, 0.02, 0.05, 0.1, 0.2)):
        text = make_text(seed, 100 + 20 * seed)
        other = change_words(text, share, seed)
        exact = jaccard(text, other)
        errors.append(similarity_of(matches_of(text, other)) - exact)
        chance = exact + (1 - exact) / 16  # that four bits are equal
        variances.append(chance * (1 - chance) / NUM_HASHES * (16 / 15) ** 2)
    assert abs(np.mean(errors)) < 0.01
    assert 0.85 < np.sqrt(np.mean(np.square(errors)) / np.mean(variances)) < 1.15


def test_sketches_count_equal_places():
    rows = np.random.default_rng(1).integers(0, 65_536, (60, NUM_HASHES), np.uint16)
    expected = np.count_nonzero(rows[:30] & 15 == rows[30:] & 15, axis=1)
    sketches = sketch_signatures(rows)
    assert count_matches(sketches[:30], sketches[30:]).tolist() == expected.tolist()


@pytest.mark.parametrize("threshold", [0.5, 0.65, 0.8, 0.9, 1.0])
def test_bands_find_99_percent_at_the_threshold_with_the_fewest_keys(threshold):
    bands, rows = choose_bands(threshold)
    assert bands * rows <= NUM_HASHES
    assert share_band_probability(threshold, bands, rows) >= 0.99
    if rows < NUM_HASHES:
        assert share_band_probability(threshold, NUM_HASHES // (rows + 1), rows + 1) < 0.99
    least = matches_for(threshold)
    assert similarity_of(least) >= threshold - 1e-9 > similarity_of(least - 1)


def dropped_of(pairs):
    """Whether one of each two texts is dropped for the other."""
    found = find_dropped([*itertools.chain(*pairs)])
    return [found.get(one) == other or found.get(other) == one for one, other in pairs]


def test_planted_copies_of_real_articles_are_found(shared_data):
    files = find_inputs([str(shared_data / "data/wiki_en/wiki_en_00.txt.zst")])
    documents = (each for part in plan_parts(files, "auto", 1 << 30) for each in read_part(part))
    texts = [clean_text(document.text) for document in documents]
    texts = [text[:8000] for text in texts if len(text) > 500][:200]
    words = [word for text in texts for word in text.split()]

    def reordered(text):
        sentences = split_sentences(text)
        random.Random(1).shuffle(sentences)
        return " ".join(sentences)

    shares = (0.005, 0.01, 0.02, 0.1, 0.5)
    pairs = {n: [(text, change_words(text, n, 5, words)) for text in texts] for n in shares}
    pairs["reordered"] = [(text, reordered(text)) for text in texts]
    dropped = {kind: np.array(dropped_of(pairs[kind])) for kind in pairs}
    exact = {kind: np.array([jaccard(*pair) for pair in pairs[kind]]) for kind in pairs}
    assert dropped[0.005].mean() > 0.98
    assert dropped[0.01].mean() > 0.95
    # A word is in 5 shingles: their similarity is 0.83, about the threshold.
    assert 0.6 < dropped[0.02].mean() < 0.95
    assert dropped[0.1].mean() < 0.02
    assert dropped[0.5].mean() == 0
    assert dropped["reordered"].mean() < 0.15  # a similarity of 0.69
    found, similarity = (np.concatenate(list(each.values())) for each in (dropped, exact))
    assert found[similarity >= 0.9].mean() > 0.995
    assert found[similarity < 0.7].mean() < 0.005
    assert all(jaccard(*pair) > 0.7 for pair in find_dropped(texts).items())


@given(st.lists(CHANGED, max_size=40), st.randoms(), st.sampled_from([0.6, 0.8, 0.95]))
@settings(max_examples=25, deadline=None)
def test_what_is_found_is_the_rule_read_literally_in_any_order_and_cut(made, rng, threshold):
    made = made or [(0, 0, 0)]
    texts = [change_words(make_text(number, 80), share, seed) for number, share, seed in made]
    rule = similarity_rule(threshold)
    rows = band_rows(texts, rule)
    expected = oracle(texts, threshold)
    shuffled = rows[np.array(rng.sample(range(len(rows)), len(rows)), np.int64)]
    found = find_near_duplicates(shuffled, rule.matches)
    assert {join_id(row["high"], row["low"]) for row in found} == expected
    bytes_of_keys = (rows["key"] >> np.uint64(56)).astype(int)
    middle = rng.randrange(1, NUM_GROUPS)
    cuts = (bytes_of_keys < middle, bytes_of_keys >= middle)
    halves = [find_near_duplicates(rows[half], rule.matches) for half in cuts]
    smallest = keep_smallest(np.concatenate(halves))
    assert np.array_equal(smallest[["high", "low"]], found[["high", "low"]])
    assert all(tuple(row)[2:4] < tuple(row)[:2] for row in found)


def test_the_smallest_id_of_a_cluster_stays_and_a_huge_one_is_quick():
    texts = [change_words(make_text(1, 300), 0.003, seed) for seed in range(1500)]
    distinct = {document_id(text) for text in texts}
    found = find_dropped(texts)
    kept = distinct - {document_id(text) for text in found}
    assert min(distinct) in kept
    assert len(kept) < 0.02 * len(distinct)
