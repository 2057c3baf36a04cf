"""Several sources in one build: settings, weights, who owns a copy, equal roots however the work is cut."""

import io
import itertools
import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.buckets import choose_num_buckets, plan_buckets
from pipeline.build import find_corpus
from pipeline.build_bucket import build_bucket, gather_documents
from pipeline.build_shards import instance_rule
from pipeline.cleaning import clean_text, document_id
from pipeline.cli import COMMANDS
from pipeline.command_line import run_program
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.inspect import read_blocks, read_vocabulary
from pipeline.plan import make_plan
from pipeline.provenance import find_tokens
from pipeline.report.mixture import mixture_cards
from pipeline.seeds import seed_for
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.sources import UNIT, Source, apply_weights, choose_uses, count_factors, count_uses
from pipeline.token_index import read_bucket
from pipeline.token_parts import TokenizedDocument
from tokenizer.vocab import parse_vocab

WEIGHTS = st.integers(1, 100 * UNIT)
IDS = st.binary(min_size=16, max_size=16)


def run(*arguments):
    return run_program("python -m pipeline", "Tests.", COMMANDS, [str(argument) for argument in arguments])


# The weight formula


@given(WEIGHTS, IDS, st.integers(0, 2**63), st.integers(1, 20))
def test_every_document_is_used_floor_or_ceil_times(weight, document, seed, passes):
    uses = [count_uses(weight, pass_index, seed, document) for pass_index in range(passes)]
    assert all(weight // UNIT <= each <= -(-weight // UNIT) for each in uses)
    assert abs(sum(uses) - Fraction(weight * passes, UNIT)) < 1


@given(WEIGHTS, IDS, st.integers(0, 2**63), st.integers(0, 99))
def test_uses_are_those_of_the_formula_in_exact_fractions(weight, document, seed, pass_index):
    start = Fraction(seed_for(seed, "uses", 0, document.hex()) % 2**32, 2**32)
    w = Fraction(weight, UNIT)
    expected = (start + w * (pass_index + 1)).__floor__() - (start + w * pass_index).__floor__()
    assert count_uses(weight, pass_index, seed, document) == expected


@pytest.mark.parametrize("weight", [0.1, 0.25, 0.5, 0.75, 1.5, 2.25])
def test_uses_are_spread_evenly_over_documents_in_every_pass(weight):
    ids = [document_id(str(number)) for number in range(4000)]
    weights = [Source("a", ["x"], weight).millionths]
    for pass_index in range(3):
        rows, _ = choose_uses(ids, np.zeros(len(ids), np.uint8), weights, 12345, pass_index)
        assert len(rows) / len(ids) == pytest.approx(weight, abs=0.03)  # 4 standard deviations at most


def test_half_the_documents_are_in_every_second_pass():
    ids = [document_id(str(number)) for number in range(100)]
    chosen = [set(choose_uses(ids, np.zeros(100, np.uint8), [UNIT // 2], 1, number)[0]) for number in range(4)]
    assert chosen[0] | chosen[1] == set(range(100))
    assert not chosen[0] & chosen[1]
    assert chosen[:2] == chosen[2:]


def test_uses_are_numbered_within_a_document():
    ids = [bytes([number]) * 16 for number in range(4)]
    sources = np.array([0, 1, 0, 1], np.uint8)
    assert choose_uses(ids, sources, [UNIT, 3 * UNIT], 1, 0) == ([0, 1, 1, 1, 2, 3, 3, 3], [0, 0, 1, 2, 0, 0, 1, 2])


def test_word_counts_are_multiplied_by_the_smallest_whole_numbers():
    assert count_factors([UNIT]) == count_factors([7 * UNIT]) == [1]
    assert count_factors([UNIT, UNIT]) == [1, 1]
    assert count_factors([UNIT, UNIT // 2, 3 * UNIT // 2]) == [2, 1, 3]
    assert count_factors([UNIT, 333_333]) == [1_000_000, 333_333]


def test_buckets_are_planned_from_what_a_pass_uses():
    assert apply_weights((), [10, 5], [1000, 500]) == (1500, 15)
    assert apply_weights((UNIT // 2, 3 * UNIT), [10, 5], [1000, 500]) == (2500, 10)
    by_prefix = np.full(4096, 100)
    assert (
        choose_num_buckets(by_prefix, 2**30, None, "") == choose_num_buckets(by_prefix, 2**30, None, "", 409_600) == 8
    )
    assert choose_num_buckets(by_prefix, 2**30, None, "", 100) == 1


# Settings


def sources_file(path, *sources, **settings):
    path.write_text(json.dumps({"sources": list(sources), **settings}))  # JSON is YAML too
    return path


GOOD = {"name": "a", "input": ["x"]}


@pytest.mark.parametrize(
    ("sources", "flags", "said"),
    [
        ([GOOD], ("--input", "y"), "both input (y) and sources (a) are given"),
        ([GOOD, GOOD | {"input": ["y"]}], (), "sources[1] ('a'): sources[0] has that name too"),
        ([GOOD | {"name": " "}], (), "has no name"),
        ([GOOD | {"weight": 0}], (), "weight is 0.0, expected more than 0 and at most 100"),
        ([GOOD | {"weight": 100.5}], (), "weight is 100.5"),
        ([GOOD | {"weight": -1}], (), "weight is -1.0"),
        ([GOOD | {"weight": ".nan"}], (), "weight"),
        ([GOOD | {"weight": 0.1234567}], (), "expected at most 6 decimals"),
        ([GOOD | {"input": []}], (), "sources[0] ('a'): input is empty"),
        ([{"name": "a"}], (), "input"),
        ([GOOD | {"weigth": 2}], (), "'weigth' is not accepted; the keys are"),
        ([GOOD | {"format": "csv"}], (), "csv"),
        ([GOOD], ("--language", "zh"), "language: with sources this belongs to each of them"),
        ([GOOD | {"name": str(number)} for number in range(256)], (), "found 256, at most 255"),
    ],
)
def test_sources_that_cannot_be_are_refused(tmp_path, capsys, sources, flags, said):
    config = sources_file(tmp_path / "c.yaml", *sources)
    assert run("build", "--config", config, "--output", tmp_path / "data", *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_file_of_two_sources_is_refused(corpus, tmp_path, capsys):
    one, two = GOOD | {"input": [str(corpus)]}, {"name": "b", "input": [f"{corpus}/b.*"]}
    assert run("build", "--config", sources_file(tmp_path / "c.yaml", one, two), "--output", tmp_path / "data") == 2
    assert f"{corpus}/b.jsonl is in the input of the sources a and b" in capsys.readouterr().err


def test_input_is_one_source_and_changes_no_settings():
    plain = BuildSettings("o", ["x"], language="de", text_field="body")
    named = BuildSettings("o", sources=[Source("web", ["x"], language="de", text_field="body", licence="CC0-1.0")])
    assert plain.corpus == (Source("input", ["x"], language="de", text_field="body"),)
    assert plain.content("v", "d") == named.content("v", "d")
    assert "sources" not in plain.content("v", "d")


def test_names_weights_and_languages_of_a_mixture_are_content():
    def content(*sources):
        return BuildSettings("o", sources=list(sources)).content("v", "d")

    a, b = Source("a", ["x"]), Source("b", ["y"])
    contents = [
        content(a, b),
        content(b, a),
        content(a, Source("c", ["y"])),
        content(a, Source("b", ["y"], 2)),
        content(a, Source("b", ["y"], language="zh")),
        content(Source("a", ["x"], 2)),
    ]
    assert all(one != other for one, other in itertools.combinations(contents, 2))
    assert content(a, b) == content(a, Source("b", ["z"], licence="CC0-1.0"))


# Buckets


def make_document(number, source):
    lengths = np.array([9 + number % 7] * 12, np.uint16)
    tokens = np.full(int(lengths.sum()), 5 + number, np.uint16)  # a token says which document it is from
    return TokenizedDocument(document_id(str(number)), 10, lengths, tokens, source)


@pytest.fixture(scope="module")
def rule(vocab_file):
    return instance_rule(BuildSettings("o", ["x"]), parse_vocab(vocab_file.read_bytes(), "vocab.txt"), 64)


def rows_of(documents, rule, pass_index=0, **changes):
    blocks = build_bucket(gather_documents(documents), replace_rule(rule, **changes), pass_index, "b")
    return [block.slice(row, row + 1) for block in blocks for row in range(block.num_instances)]


def replace_rule(rule, **changes):
    return type(rule)(**(vars(rule) | changes))


def test_a_copy_belongs_to_the_source_listed_first_in_any_order():
    documents = [make_document(1, 2), make_document(1, 1), make_document(2, 0), make_document(1, 1)]
    for order in itertools.permutations(documents):
        gathered = gather_documents(order)
        assert dict(zip(gathered.ids, gathered.sources.tolist(), strict=True)) == {
            document_id("1"): 1,
            document_id("2"): 0,
        }


def test_a_weight_uses_documents_again_with_other_pairs(rule):
    documents = [make_document(number, number % 2) for number in range(20)]
    prefix = {int.from_bytes(each.id[:8], "big"): each.source for each in documents}
    once = rows_of(documents, rule)
    thrice = rows_of(documents, rule, weights=(UNIT, 3 * UNIT))
    numbers = [Counter(prefix[int(row.document_a[0])] for row in rows) for rows in (once, thrice)]
    assert numbers[1][0] == numbers[0][0]
    assert numbers[1][1] / numbers[0][1] == pytest.approx(3, rel=0.2)
    heaviest = documents[1]
    own = [row for row in thrice if int(row.document_a[0]) == int.from_bytes(heaviest.id[:8], "big")]
    assert (
        len({(int(row.segment_a_length[0]), len(row.input_ids), row.is_random_next[0]) for row in own}) > len(own) / 3
    )


def test_a_random_b_is_never_of_the_same_document_and_comes_from_unused_ones_too(rule):
    documents = [make_document(number, number % 2) for number in range(12)]
    rows = rows_of(documents, rule, weights=(UNIT, 1))  # a millionth: source 1 makes no pairs of its own
    prefix = {int.from_bytes(each.id[:8], "big"): each.source for each in documents}
    assert {prefix[int(row.document_a[0])] for row in rows} == {0}
    assert {prefix[int(row.document_b[0])] for row in rows if row.is_random_next[0]} == {0, 1}
    assert all(row.is_random_next[0] == (row.document_a[0] != row.document_b[0]) for row in rows)


def test_weight_one_gives_the_bytes_of_no_weights(rule):
    documents = [make_document(number, number % 2) for number in range(20)]
    for pass_index in range(2):
        plain = rows_of(documents, rule, pass_index)
        weighted = rows_of(documents, rule, pass_index, weights=(UNIT, UNIT))
        assert [row.input_ids.tolist() for row in plain] == [row.input_ids.tolist() for row in weighted]


def test_a_bucket_that_a_pass_does_not_use_is_an_error(rule):
    documents = [make_document(number, 0) for number in range(3)]
    with pytest.raises(ValueError, match="pass 0 uses none of the 3 documents of b: the weights"):
        rows_of(documents, rule, weights=(1,))


# Whole builds


@pytest.fixture(scope="module")
def config(texts, tmp_path_factory):
    """Two sources that share ten documents; the second is used thrice, the first in every second pass."""
    folder = tmp_path_factory.mktemp("sources")
    for name, part in (("news", texts[:70]), ("books", texts[60:])):
        folder.joinpath(f"{name}.jsonl").write_text("".join(json.dumps({name: text}) + "\n" for text in part))
    rows = [
        {"name": "news", "input": [f"{folder}/news.jsonl"], "text_field": "news", "weight": 0.5, "licence": "CC0-1.0"},
        {"name": "books", "input": [f"{folder}/books.jsonl"], "text_field": "books", "weight": 3, "language": "de"},
    ]
    return sources_file(folder / "config.yaml", *rows, passes=2, seq_lens=[64], num_buckets=4, part_bytes=4096)


def build(config, vocab_file, output, *flags):
    assert run("build", "--config", config, "--vocab", vocab_file, "--output", output, *flags) == 0
    return open_dataset(str(output))


@pytest.fixture(scope="module")
def built(config, vocab_file, tmp_path_factory):
    return build(config, vocab_file, tmp_path_factory.mktemp("built") / "data", "--workers", 1)


HOW_WORK_IS_CUT = {
    "parts": ("--workers", 1, "--part_bytes", 2**20),
    "workers": ("--workers", 2, "--part_bytes", 2048),
    "shuffle": ("--exchange", "shuffle", "--workers", 1),
    "shuffle among workers": ("--exchange", "shuffle", "--workers", 2, "--part_bytes", 2048),
}


@pytest.mark.parametrize("flags", HOW_WORK_IS_CUT.values(), ids=HOW_WORK_IS_CUT)
def test_two_sources_give_one_root_hash_however_work_is_cut(built, config, vocab_file, tmp_path, flags):
    found = build(config, vocab_file, tmp_path / "data", *flags)
    assert found.manifest.root_hash == built.manifest.root_hash
    assert found.manifest.sources == built.manifest.sources
    assert [shard.source_tokens for shard in found.all_shards] == [shard.source_tokens for shard in built.all_shards]


def test_sources_are_counted(built):
    news, books = built.manifest.sources
    assert (news["name"], news["weight"], news["language"]) == ("news", 0.5, "en")
    assert (news["counters"]["documents_read"], news["counters"]["documents"]) == (70, 70)
    assert (books["counters"]["documents_read"], books["counters"]["documents"]) == (60, 50)
    assert (news["counters"]["dropped_duplicate"], books["counters"]["dropped_duplicate"]) == (0, 10)
    total = built.manifest.counters
    for name in ("documents", "cleaned_bytes", "distinct_tokens", "sentences"):
        assert news["counters"][name] + books["counters"][name] == total[name]


def uses_in(dataset, texts, pass_index, split="train"):
    """Tokens of A by document number, divided by those of the document: about its uses, with half of B's missing."""
    number_of = {int.from_bytes(document_id(clean_text(text))[:8], "big"): n for n, text in enumerate(texts)}
    found = Counter()
    for shard in dataset.shards(split, 64, pass_index):
        for block in read_blocks(dataset, shard):
            found.update(number_of[key] for key in block.document_a.tolist())
    return found


def test_weights_decide_how_often_a_document_is_used(built, texts):
    seed, held_out = 12345, set(uses_in(built, texts, 0, "validation"))
    for pass_index in range(2):
        found = uses_in(built, texts, pass_index)
        for number in set(range(120)) - held_out:
            weight = UNIT // 2 if number < 70 else 3 * UNIT
            uses = count_uses(weight, pass_index, seed, document_id(clean_text(texts[number])))
            assert bool(uses) == bool(found[number]), number
    plain = [found[number] for number in range(70, 120)]
    assert np.mean(plain) > 2 * np.mean([each for number, each in found.items() if number < 70])


def test_validation_uses_every_document_once(built, config, vocab_file, texts, tmp_path):
    heavier = json.loads(config.read_text())
    for source in heavier["sources"]:
        source["weight"] = 7
    (tmp_path / "c.yaml").write_text(json.dumps(heavier))
    other = build(tmp_path / "c.yaml", vocab_file, tmp_path / "data", "--workers", 1)
    assert other.manifest.root_hash != built.manifest.root_hash
    own, others = (each.shards("validation", 64, 0) for each in (built, other))
    assert [shard.content_hash for shard in own] == [shard.content_hash for shard in others]


def test_tokens_of_instances_are_counted_by_source(built, texts):
    source_of = {int.from_bytes(document_id(clean_text(text))[:8], "big"): n >= 70 for n, text in enumerate(texts)}
    for shard in built.all_shards:
        expected = [0, 0]
        for block in read_blocks(built, shard):
            for row in range(block.num_instances):
                one = block.slice(row, row + 1)
                length = int(one.segment_a_length[0])
                expected[source_of[int(one.document_a[0])]] += length
                expected[source_of[int(one.document_b[0])]] += len(one.input_ids) - length
        assert list(shard.source_tokens) == expected
        assert sum(expected) == shard.tokens
    assert run("verify", built.url) == 0


def test_moving_a_document_to_another_source_is_another_dataset(texts, vocab_file, tmp_path):
    hashes = []
    for number in (60, 61):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, part in (("a", texts[:number]), ("b", texts[number:])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
        sources = [{"name": name, "input": [f"{folder}/{name}.jsonl"]} for name in "ab"]
        config = sources_file(folder / "c.yaml", *sources, passes=1, seq_lens=[64])
        hashes.append(build(config, vocab_file, folder / "data", "--workers", 1).manifest)
    assert hashes[0].settings["documents_hash"] != hashes[1].settings["documents_hash"]
    assert hashes[0].settings_hash != hashes[1].settings_hash


def test_a_single_source_is_what_input_is(corpus, vocab_file, tmp_path):
    source = {"name": "all", "input": [str(corpus)], "licence": "CC0-1.0"}
    config = sources_file(tmp_path / "c.yaml", source, passes=1, seq_lens=[64])
    named = build(config, vocab_file, tmp_path / "named", "--workers", 1)
    words = ("--input", corpus, "--output", tmp_path / "plain", "--passes", 1, "--seq_lens", 64, "--workers", 1)
    assert run("build", "--vocab", vocab_file, *words) == 0
    plain = open_dataset(str(tmp_path / "plain"))
    assert named.manifest.root_hash == plain.manifest.root_hash
    assert named.manifest.settings_hash == plain.manifest.settings_hash
    assert named.read_file("shards.parquet") == plain.read_file("shards.parquet")


def test_tokens_of_other_sources_are_refused(built, config, vocab_file, tmp_path, capsys):
    changed = json.loads(config.read_text())
    changed["sources"][0]["name"] = "papers"
    (tmp_path / "c.yaml").write_text(json.dumps(changed))
    for command in ("build", "shards"):
        flags = ("--vocab", vocab_file, "--output", built.root, "--workers", 1)
        assert run(command, "--config", tmp_path / "c.yaml", *flags) == 2
        assert "holds tokens of other settings: sources was" in capsys.readouterr().err


def test_the_report_shows_the_mixture(built, capsys):
    assert run("report", built.url) == 0
    text = capsys.readouterr().out
    news, books = json.loads(built.read_file("report.json"))["dataset"]["mixture"]
    assert (news["licence"], news["language"], news["weight"], news["documents"]) == ("CC0-1.0", "en", 0.5, 70)
    assert (books["licence"], books["documents_read"], books["documents"]) == ("", 60, 50)
    tokens = [
        sum(each) for each in zip(*(s.source_tokens for s in built.all_shards if s.split == "train"), strict=True)
    ]
    assert news["share_of_instances"] == pytest.approx(tokens[0] / sum(tokens), abs=1e-5)
    assert news["share_of_corpus"] == pytest.approx(news["tokens"] / (news["tokens"] + books["tokens"]), abs=1e-5)
    assert news["share_of_instances"] < news["share_of_corpus"]
    assert f"{news['share_of_instances']:.1%} of train instances  CC0-1.0" in text
    page = built.read_file("report.html").decode()
    for shown in ("<b>news</b>", "CC0-1.0", "not stated", f"{books['share_of_instances']:.1%}"):
        assert shown in page
    assert "Share of the train instances&#x27; tokens" in page or "Share of the train instances' tokens" in page


def test_the_table_of_files_names_source_and_licence(built):
    rows = pq.read_table(io.BytesIO(built.read_file("sources.parquet"))).to_pylist()
    assert [(row["source"], row["licence"]) for row in rows] == [("news", "CC0-1.0"), ("books", "")]
    assert all(row["url"].endswith(f"/{row['source']}.jsonl") for row in rows)


def test_names_that_are_markup_are_shown_as_text():
    row = {"name": "<b>", "licence": "a & b", "language": "en", "weight": 1.0, "documents": 1, "tokens": 1}
    page = mixture_cards([row | {"share_of_corpus": 1.0, "share_of_instances": 1.0}])
    assert "<b>&lt;b&gt;</b>" in page
    assert "a &amp; b" in page


# Vocabulary and plan


def test_words_count_as_often_as_their_source_is_used(config, tmp_path):
    def counts_with(*weights):
        changed = json.loads(config.read_text()) | {"vocab_size": 120}
        for source, weight in zip(changed["sources"], weights, strict=True):
            source["weight"] = weight
        folder = tmp_path / "-".join(map(str, weights))
        folder.mkdir()
        (folder / "c.yaml").write_text(json.dumps(changed))
        assert run("vocab", "--config", folder / "c.yaml", "--output", folder / "data", "--workers", 1) == 0
        table = pq.read_table(folder / "data/word_counts.parquet")
        return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))

    even, double, mixed = counts_with(1, 1), counts_with(2, 2), counts_with(0.5, 1.5)
    assert even == double
    assert mixed["5"] == even["5"]  # only in the first source
    assert mixed["115"] == 3 * even["115"]
    assert even["river"] < mixed["river"] < 3 * even["river"]


def test_a_plan_takes_weights_into_account(config, vocab_file, built, tmp_path):
    settings = {**json.loads(config.read_text()), "output": str(tmp_path / "data"), "vocab": str(vocab_file)}
    settings["sources"] = [Source(**source) for source in settings["sources"]]
    settings = BuildSettings(**settings)
    corpus = find_corpus(settings)
    plan = make_plan(settings, corpus.files, corpus.parts, instance_rule)
    train = [sum(shard.instances for shard in built.shards("train", 64, number)) for number in range(2)]
    assert plan.lengths[0].instances == pytest.approx(sum(train) / 2, rel=0.15)
    assert (plan.files, plan.documents) == (2, 130)


# Two languages


def test_english_and_chinese_come_together(shared_data, tmp_path):
    english = tmp_path / "english.jsonl"
    part = find_inputs([str(shared_data / "data/wiki_en/wiki_en_00.txt.zst")])
    texts = [document.text for document in itertools.islice(read_part(plan_parts(part, "auto", 2**30)[0]), 40)]
    english.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    chinese = str(shared_data / "data/wiki_zh/wiki_zh_00.txt.zst")
    sources = [
        {"name": "wiki-en", "input": [str(english)], "licence": "CC-BY-SA-3.0"},
        {"name": "wiki-zh", "input": [chinese], "language": "zh", "licence": "CC-BY-SA-3.0", "weight": 2},
    ]
    config = sources_file(tmp_path / "c.yaml", *sources, passes=1, vocab_size=6000, num_buckets=1, workers=1)
    assert run("build", "--config", config, "--output", tmp_path / "data") == 0
    dataset = open_dataset(str(tmp_path / "data"))
    vocabulary = read_vocabulary(dataset)
    assert sum("\u4e00" <= token[0] <= "\u9fff" for token in vocabulary.tokens) > 400

    english_row, chinese_row = json.loads(dataset.read_file("report.json"))["dataset"]["mixture"]
    tokens = english_row["tokens"], chinese_row["tokens"]
    assert chinese_row["share_of_corpus"] == pytest.approx(tokens[1] / sum(tokens), abs=1e-6)
    # A follows the weights; half of the instances have a random B, from any document alike.
    starts = {int.from_bytes(each.id[:8], "big"): each.source for each in encoded_documents(dataset)}
    firsts = np.zeros(2)
    for shard in dataset.shards("train", 128, 0):
        for block in read_blocks(dataset, shard):
            by_source = [starts[int(key)] for key in block.document_a.tolist()]
            is_next = ~block.is_random_next
            own = np.array(by_source)[is_next]
            firsts += np.bincount(own, np.diff(block.offsets)[is_next] - 3, 2)
    expected = 2 * tokens[1] / (tokens[0] + 2 * tokens[1])
    assert firsts[1] / firsts.sum() == pytest.approx(expected, abs=0.05)
    assert chinese_row["share_of_instances"] > chinese_row["share_of_corpus"]

    stop, ends_with_stop, inside = vocabulary.tokens.index("。"), 0, 0
    for document in encoded_documents(dataset):
        if document.source == 1:
            ends = np.cumsum(document.sentence_lengths.astype(int)) - 1
            ends_with_stop += int(np.count_nonzero(document.tokens[ends] == stop))
            inside += int(np.count_nonzero(np.delete(document.tokens, ends) == stop))
    assert ends_with_stop > 5000
    assert inside < 0.03 * ends_with_stop  # in quotations


def encoded_documents(dataset):
    tokens = find_tokens(dataset)
    names, bucket = tokens.store["part_names"], plan_buckets(1, None)[0]
    return read_bucket(tokens.filesystem, tokens.folder, names, bucket, np.uint16)
