"""Filters: drops are counted by reason, and a filter that misbehaves is named."""

import os
import sys
import zipfile

import py3langid.langid
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import COMMANDS
from pipeline.command_line.program import parse_settings
from pipeline.documents import Document
from pipeline.documents.counts import WORDS_OF_REASONS
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.text.filters import (
    DocumentFilter,
    FilterRule,
    call_filter,
    describe_filter,
    load_filter,
)
from pipeline.text.languages import NUM_PLACES, PLACE_CHARACTERS, language_shares, sample_text
from pipeline.tokens.document_lists import DocumentList, filter_documents
from tests.pipeline.programs import run, write_texts

GERMAN = "Der Fluss fließt langsam durch das Tal, und die Leute gehen abends am Ufer spazieren."


def build(corpus, vocab_file, output, *arguments):
    fixed = ("--vocab", vocab_file, "--passes", 1, "--seq_lens", 64)
    return run("build", "--input", corpus, "--output", output, *fixed, *arguments)


def reason_for(text, **rule):
    return DocumentFilter(FilterRule(**rule)).find_reason(Document(text, "a.jsonl:7"))


@pytest.fixture
def own_filters(tmp_path, monkeypatch):
    """A module `own_filters_of_a_test` that workers find too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    answers = {
        "keep_rivers": "None if 'iver' in text else 'no_river'",
        "keep_all": "True",
        "fail": "{}['boom']",
        "leave": "exit(3)",
        "say_no": "False",
        "shout": "'NO RIVER'",
        "too_long_a_reason": "'x' * 41",
        "empty_reason": "''",
        "reserved": "'duplicate'",
        "chatter": "'r' + str(abs(hash(text)) % 10**9)",
    }
    lines = [f"def {name}(text): return {answer}" for name, answer in answers.items()]
    module = "\n".join(["__version__ = '2'", "number = 3", "from sys import exit", *lines])
    folder.joinpath("own_filters_of_a_test.py").write_text(module)
    folder.joinpath("broken_filters_of_a_test.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield "own_filters_of_a_test"
    for name in ("own_filters_of_a_test", "broken_filters_of_a_test"):
        sys.modules.pop(name, None)


@given(st.text(max_size=40), st.integers(0, 50), st.one_of(st.none(), st.integers(1, 50)))
def test_lengths_are_of_characters_and_bounds_belong(text, least, most):
    reason = reason_for(text, min_characters=least, max_characters=most)
    assert (reason == "too_short") == (len(text) < least)
    assert (reason == "too_long") == (len(text) >= least and most is not None and len(text) > most)


def test_a_rule_at_its_defaults_keeps_all_and_says_nothing():
    assert FilterRule().keeps_all
    assert FilterRule().content() == {}
    content = BuildSettings("o", ["i"]).tokens_content("v")
    assert not {"min_characters", "languages", "filter"} & content.keys()


@pytest.mark.parametrize(
    ("rule", "content"),
    [
        ({"min_characters": 3}, {"min_characters": 3}),
        ({"max_characters": 0}, {"max_characters": 0}),
        ({"min_characters": 0, "max_characters": None}, {}),
        ({"functions": ("os.path:basename",)}, {"filter": ["os.path:basename"]}),
    ],
)
def test_a_filter_that_is_on_is_in_the_content(rule, content):
    assert FilterRule(**rule).content() == content
    assert FilterRule(**rule).keeps_all == (content == {})


def test_languages_are_in_the_content_with_the_way_they_are_told():
    content = FilterRule(languages=("de", "en", "de"), language_threshold=0.7).content()
    assert content.pop("language_method").startswith("py3langid")
    assert content == {"languages": ["de", "en"], "language_threshold": 0.7}


@pytest.mark.parametrize("reason", WORDS_OF_REASONS)
def test_every_reason_of_the_build_is_reserved(reason):
    with pytest.raises(ValueError, match=f"'{reason}', which the build counts itself"):
        call_filter("m:f", lambda _: reason, Document("text", "a.jsonl:7"))


def test_languages_are_told_apart():
    english = "The river runs slowly through the valley, and people walk along it in the evening."
    assert reason_for(english, languages=("en",)) is None
    assert reason_for(GERMAN, languages=("en",)) == "language"
    assert reason_for(GERMAN, languages=("fr", "de")) is None
    assert reason_for(english, languages=("en",), language_threshold=1.0) == "language"


@pytest.mark.parametrize("code", ["eng_Latn", "EN", "klingon"])
def test_an_unknown_language_is_refused_with_the_known_ones(code):
    with pytest.raises(ValueError, match=rf"{code} not known.* de, .* en, "):
        DocumentFilter(FilterRule(languages=("en", code)))


def test_shares_are_the_librarys_own_up_to_rounding():
    langid = py3langid.langid
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    for text in (GERMAN, "x", "中文维基百科是维基百科协作计划的中文版本", "1234 5678", GERMAN * 40):
        expected, found = dict(identifier.rank(sample_text(text))), language_shares(text)
        assert found.keys() == expected.keys()
        assert all(abs(found[code] - expected[code]) < 1e-4 for code in found)


def test_scoring_a_document_takes_a_bounded_sample_of_it():
    text = "".join(chr(97 + number % 26) for number in range(100_000))
    assert len(sample_text(text)) == NUM_PLACES * PLACE_CHARACTERS + NUM_PLACES - 1
    assert sample_text(text).startswith(text[:PLACE_CHARACTERS])
    assert sample_text(text).endswith(text[-PLACE_CHARACTERS:])
    assert sample_text("short") == "short"


def test_declarations_of_human_rights_are_in_their_languages(shared_data):
    names = {"eng": "en", "fra": "fr", "fin": "fi", "rus": "ru", "jpn": "ja", "cmn_hans": "zh"}
    with zipfile.ZipFile(shared_data / "data/udhr2/udhr2.zip") as archive:
        for name, code in names.items():
            text = archive.read(f"udhr2/{name}.txt").decode()
            assert reason_for(text, languages=(code,)) is None, name
            assert (reason_for(text, languages=("en",)) is None) == (code == "en"), name


def test_a_filter_is_asked_with_the_text(own_filters):
    rule = FilterRule(functions=(f"{own_filters}:keep_all", f"{own_filters}:keep_rivers"))
    assert rule.content() == {"filter": [f"{name} 2" for name in rule.functions]}
    texts = ("A river.", "A hill.", "No hill.")
    documents = [Document(text, f"a:{number}") for number, text in enumerate(texts, 1)]
    found = filter_documents(DocumentList("p", 0, True, documents), DocumentFilter(rule))
    assert [document.where for document in found.documents] == ["a:1"]
    assert found.counters == {"dropped_no_river": 2}
    dropped = [(each.reason, each.where, each.text) for each in found.dropped]
    assert dropped == [("no_river", "a:2", "A hill."), ("no_river", "a:3", "No hill.")]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("fail", r"it raised KeyError\('boom'\)"),
        ("leave", r"it raised SystemExit\(3\)"),
        ("say_no", "it returned False; expected None or True"),
        ("shout", "it returned 'NO RIVER'; expected"),
        ("too_long_a_reason", "it returned 'xxx"),
        ("empty_reason", "it returned ''; expected"),
        ("reserved", "'duplicate', which the build counts itself"),
    ],
)
def test_a_filter_that_misbehaves_is_named_with_the_document(own_filters, function, said):
    name = f"{own_filters}:{function}"
    with pytest.raises(ValueError, match=rf"filter {name}, document a.jsonl:7: .*{said}"):
        call_filter(name, load_filter(name), Document("text", "a.jsonl:7"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("keep_rivers", "expected module:function"),
        ("no_such_module_anywhere:f", "cannot be imported: ModuleNotFoundError"),
        ("broken_filters_of_a_test:f", r"cannot be imported: RuntimeError\('at import'\)"),
        ("own_filters_of_a_test:none_such", "has no function none_such"),
        ("own_filters_of_a_test:number", "has no function number"),
    ],
)
def test_a_filter_that_cannot_be_loaded_is_refused(own_filters, name, said):
    with pytest.raises(ValueError, match=rf"filter '?{name}.*{said}"):
        describe_filter(name)


@pytest.mark.parametrize("in_file", ["", "allow_code: true\n"])
def test_a_filter_of_a_config_file_is_code_that_a_flag_allows(in_file, tmp_path):
    def filters_of(*words):
        words = ("--config", str(config), "--output", "o", *words)
        return parse_settings("build", COMMANDS["build"], words).filter

    config = tmp_path / "data.yaml"
    config.write_text(f"{in_file}filter: [theirs:run]\n")
    with pytest.raises(ValueError, match=r"data.yaml:\d: filter names code.*--allow_code true"):
        filters_of()
    with pytest.raises(ValueError, match="--allow_code true"):
        filters_of("--allow_code", "false")
    assert filters_of("--allow_code", "true") == ["theirs:run"]
    assert filters_of("--filter", "mine:run") == ["mine:run"]
    config.write_text(f"{in_file}filter: []\n")
    assert filters_of() == []


def test_reasons_are_kinds_and_not_texts(own_filters):
    documents = [Document(f"text {number}", f"a:{number}") for number in range(200)]
    own = DocumentList("p", 0, True, documents)
    with pytest.raises(ValueError, match="reason number 101"):
        filter_documents(own, DocumentFilter(FilterRule(functions=(f"{own_filters}:chatter",))))


@pytest.mark.processes
def test_a_build_counts_what_filters_drop(
    corpus, vocab_file, own_filters, tmp_path, capsys, monkeypatch
):
    write_texts(tmp_path / "more.jsonl", [GERMAN * 3, "Too short.", "x" * 5000])
    lengths = ("--min_characters", 40, "--max_characters", 4000)
    filters = (*lengths, "--filter", f"{own_filters}:keep_rivers")
    hashes = set()
    for number, cut in enumerate([(), ("--part_bytes", 2048)]):
        output = tmp_path / f"data{number}"
        words = ("--input", corpus, tmp_path / "more.jsonl", "--output", output, *filters, *cut)
        given = ("--vocab", vocab_file, "--passes", 1, "--seq_lens", 64, "--workers", 1)
        assert run("build", *words, *given) == 0
        dataset = open_dataset(str(output))
        counters = dataset.manifest.counters
        assert (counters["dropped_too_short"], counters["dropped_too_long"]) == (1, 1)
        assert counters["dropped_no_river"] > 0
        dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
        assert counters["documents_read"] == 123 == counters["documents"] + dropped
        assert dataset.manifest.settings["filter"] == [f"{own_filters}:keep_rivers 2"]
        hashes.add(dataset.manifest.root_hash)
    assert len(hashes) == 1
    capsys.readouterr()
    assert run("inspect", output, "--dropped", "true") == 0
    shown = capsys.readouterr().out
    assert "too_short: 1 dropped" in shown
    assert "Too short." in shown
    assert "too short" in (output / "report.html").read_text()
    # Another version of the filter's module is another filter.
    monkeypatch.setattr(sys.modules[own_filters], "__version__", "3")
    assert build(corpus, vocab_file, output, *filters) == 2
    assert "keep_rivers 3" in capsys.readouterr().err


@pytest.mark.processes
def test_a_build_whose_filters_drop_everything_says_so(corpus, vocab_file, tmp_path, capsys):
    flags = ("--min_characters", 10_000, "--workers", 1)
    assert build(corpus, vocab_file, tmp_path / "data", *flags) == 2
    said = "all 120 documents of the input were dropped: too_short 120; loosen"
    assert said in capsys.readouterr().err


@pytest.mark.processes
def test_a_plan_counts_what_filters_drop(corpus, texts, vocab_file, tmp_path, capsys):
    most = sorted(map(len, texts))[60]
    flags = ("--max_characters", most, "--near_duplicates", 0.8, "--plan", "true")
    assert build(corpus, vocab_file, tmp_path / "data", *flags) == 0
    shown = capsys.readouterr().out
    assert "left out of the sample: " in shown
    assert " too_long" in shown
    assert "warning: near-duplicates cannot be told from a sample" in shown


@pytest.mark.processes
def test_a_worker_names_the_filter_that_raised(corpus, vocab_file, own_filters, tmp_path, capsys):
    name = f"{own_filters}:fail"
    assert build(corpus, vocab_file, tmp_path / "data", "--filter", name, "--workers", 2) == 2
    said = capsys.readouterr().err
    assert f"filter {name}, document " in said
    assert "it raised KeyError('boom')" in said
    assert ".jsonl:" in said


@pytest.mark.processes
def test_the_vocabulary_learns_from_what_is_kept(corpus, own_filters, tmp_path, capsys):
    texts = [f"A river with some words, number {number}." for number in range(9)]
    write_texts(tmp_path / "t.jsonl", [*texts, *["Zyzzyva quixotic fjord."] * 9])
    learned = ("vocab", "--input", tmp_path / "t.jsonl", "--vocab_size", 100, "--workers", 1)
    filters = ("--filter", f"{own_filters}:keep_rivers")
    assert run(*learned, "--output", tmp_path / "all") == 0
    assert run(*learned, "--output", tmp_path / "kept", *filters) == 0
    assert "z" in (tmp_path / "all/vocab.txt").read_text().split("\n")
    assert "z" not in (tmp_path / "kept/vocab.txt").read_text().split("\n")
    assert "from 17 words of 9 of 18 documents" in capsys.readouterr().out
    assert run(*learned, "--output", tmp_path / "all", *filters) == 2
    assert "holds a vocabulary made otherwise" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_characters": -1},
        {"num_buckets": 3},
        {"num_buckets": 131_072},
        {"max_characters": 0},
        {"min_characters": 10, "max_characters": 9},
        {"near_duplicates": 0.4},
        {"near_duplicates": 1.1},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="it must be"):
        BuildSettings("o", ["i"], **wrong)
