"""`evaluate --pairs`: the sums of transformers, ties, accuracies, and what is refused."""

import dataclasses
import gzip
import json
import math

import numpy as np
import pytest
import torch
import transformers

from tests.trainer.lettered_model import CONFIG, export_lettered_model
from trainer.cli import main
from trainer.inference.evaluate_pairs import evaluate_pairs, score_pairs
from trainer.inference.open_model import open_model
from trainer.minimal_pairs.accuracy import format_accuracies, is_right, summarize
from trainer.minimal_pairs.read import Pair, PairSet, read_pairs

SENTENCES = [
    ("The cats sat.", "The cats sat the."),
    ("A dog sat, didn't it?", "A dogs sat, didn't it?"),
    ("the the x cat sat", "x"),
    ("Zebras hug zebras.", "Zebras hugs zebras."),
    ("the cats", "the cat"),
]
# No sums of a model that reads no context tell these apart: the first two have equal words, the
# third becomes equal in lower case.
TIES = [("cat sat the dog.", "dog sat the cat."), ("a b c d", "d c b a"), ("The cat", "the cat")]


def pairs_of(sentences, groups=()):
    pairs = [Pair(f"p:{n}", *both, tuple(groups)) for n, both in enumerate(sentences, start=1)]
    return PairSet(tuple(f"column{n}" for n in range(len(groups))), pairs)


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    return export_lettered_model(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture(scope="module")
def opened(hf):
    return open_model(str(hf))


def plain_sum(model, tokenizer, sentence, pll):
    """One forward pass for every token, without packing or batches."""
    encoding = tokenizer(sentence, return_tensors="pt")
    ids, words, total = encoding.input_ids[0], encoding.word_ids(0), 0.0
    for place in range(1, len(ids) - 1):
        masked = ids.clone()
        for later in range(place, len(ids) - 1):
            if later == place or (pll == "word-l2r" and words[later] == words[place]):
                masked[later] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(masked[None])[0]
        total += logits[0, place].log_softmax(-1)[ids[place]].item()
    return total


@pytest.mark.parametrize("pll", ["original", "word-l2r"])
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_sums_are_those_of_a_plain_loop_over_transformers(hf, opened, pll, kind):
    model = getattr(transformers, kind).from_pretrained(hf).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    found = score_pairs(opened, pairs_of(SENTENCES), pll=pll, micro_tokens=50)
    expected = [
        [plain_sum(model, tokenizer, sentence, pll) for sentence in column]
        for column in zip(*SENTENCES, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_the_two_scores_differ_where_words_have_several_pieces(opened):
    original, word_l2r = (
        score_pairs(opened, pairs_of(SENTENCES), pll=pll)[0] for pll in ("original", "word-l2r")
    )
    assert np.abs(original - word_l2r)[[0, 1, 3]].min() > 0.01
    # "the the x cat sat" is words of one piece.
    assert original[2] == pytest.approx(word_l2r[2], abs=1e-5)


def test_layers_before_the_last_and_norms_before_sublayers_are_there(tmp_path):
    path = export_lettered_model(tmp_path / "hf", pre_norm=True, num_layers=3)
    model = transformers.AutoModelForMaskedLM.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    good, _ = score_pairs(open_model(str(path)), pairs_of(SENTENCES))
    expected = [plain_sum(model, tokenizer, sentence, "original") for sentence, _ in SENTENCES]
    np.testing.assert_allclose(good, expected, rtol=0, atol=1e-4)


def test_a_model_that_reads_left_to_right_predicts_each_token_from_those_before(tmp_path):
    path = export_lettered_model(tmp_path / "hf", is_causal=True)
    model = transformers.BertLMHeadModel.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    found = score_pairs(open_model(str(path)), pairs_of(SENTENCES), micro_tokens=30)
    for sums, column in zip(found, zip(*SENTENCES, strict=True), strict=True):
        for total, sentence in zip(sums, column, strict=True):
            ids = tokenizer(sentence, return_tensors="pt").input_ids
            with torch.no_grad():
                log_probabilities = model(ids).logits[0].log_softmax(-1)
            tokens = ids[0, 1:-1]
            expected = log_probabilities[torch.arange(len(tokens)), tokens].sum().item()
            assert total == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("micro_tokens", [1, 17, 40])
def test_sums_do_not_depend_on_how_rows_are_batched(opened, micro_tokens):
    whole = score_pairs(opened, pairs_of(SENTENCES))
    cut = score_pairs(opened, pairs_of(SENTENCES), micro_tokens=micro_tokens)
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-5)


def test_a_model_that_gives_both_sentences_the_same_is_wrong(opened):
    """Of all zeros it says that every token is as likely; with a bias, how common tokens are."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in opened.state.items()}
    uniform = dataclasses.replace(opened, state=zeros)
    assert evaluate_pairs(uniform, pairs_of([*TIES, ("a b", "c d")])).total.right == 0
    bias = torch.randn(CONFIG.vocab_size, generator=torch.Generator().manual_seed(3))
    unigrams = dataclasses.replace(opened, state=zeros | {"mlm_head.bias": bias})
    assert evaluate_pairs(unigrams, pairs_of(TIES)).total.right == 0
    likely, unlikely = "xz" if bias[33] > bias[35] else "zx"
    assert evaluate_pairs(unigrams, pairs_of([(likely, unlikely)])).total.right == 1


def test_ties_and_what_is_no_number_are_wrong():
    good = np.array([-1.0, -2.0, -2.0, -2.0, math.nan])
    bad = np.array([-2.0, -1.0, -2.0, -2.00001, -1.0])
    assert is_right(good, bad).tolist() == [True, False, False, False, False]


def test_pairs_that_the_tokenizer_reads_alike_are_told(hf, opened, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_text(line() * 98 + line("The cat", "the cat") + line("a dog", "a dog"))
    assert evaluate_pairs(opened, read_pairs(str(path))).ties == 2
    output = tmp_path / "found.json"
    given = ["--model", str(hf), "--pairs", str(path), "--output", str(output)]
    assert main(["evaluate", *given]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"{path}:100: both sentences are equal, so the pair counts as wrong",
        "also wrong: 1 pair(s) with equal scores, for example because the tokenizer reads both"
        " sentences alike",
    ]
    found = json.loads(output.read_text())
    assert (found["ties"], found["equal_pairs"]) == (2, 1)


def test_scores_that_are_not_finite_are_refused(opened):
    state = opened.state | {"mlm_head.bias": torch.full((CONFIG.vocab_size,), math.nan)}
    damaged = dataclasses.replace(opened, state=state)
    with pytest.raises(ValueError, match="hf: its scores are not finite"):
        score_pairs(damaged, pairs_of(SENTENCES))


def test_accuracies_of_groups_their_mean_and_errors():
    groups = [("b", "y"), ("a", "x"), ("a", "x"), ("a", "z"), ("a", "z"), ("b", "y")]
    pairs = [Pair(f"p:{n}", "g", "b", group) for n, group in enumerate(groups)]
    right = np.array([True, True, False, True, True, True])
    found = summarize(PairSet(("term", "UID"), pairs), right)
    counted = [(each.group, each.pairs, each.right) for each in found.groups]
    assert counted == [
        (("a",), 4, 3), (("a", "x"), 2, 1), (("a", "z"), 2, 2),
        (("b",), 2, 2), (("b", "y"), 2, 2),
    ]  # fmt: skip
    assert (found.total.pairs, found.total.right) == (6, 5)
    assert found.mean == (0.75 + 1.0) / 2
    assert found.groups[0].standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert found.standard_error_of_mean == pytest.approx(math.sqrt(0.75 * 0.25 / 4) / 2)
    assert format_accuracies(found).splitlines() == [
        "term / UID        pairs  accuracy  std. error",
        "a                     4    75.00%      21.65%",
        "  x                   2    50.00%      35.36%",
        "  z                   2   100.00%       0.00%",
        "b                     2   100.00%       0.00%",
        "  y                   2   100.00%       0.00%",
        "mean of 2 term        6    87.50%      10.83%",
        "all pairs             6    83.33%      15.21%",
    ]
    assert found.to_dict()["groups"][1] == {
        "term": "a", "UID": "x", "pairs": 2, "accuracy": 0.5,
        "standard_error": pytest.approx(0.35355, abs=1e-5),
    }  # fmt: skip


def test_without_columns_all_pairs_are_one_group():
    found = summarize(pairs_of(SENTENCES), np.array([True, True, True, False, False]))
    assert (found.groups, found.mean, found.total.accuracy) == ([], 0.6, 0.6)
    assert format_accuracies(found) == "all pairs        5    60.00%      21.91%"


def line(good="a cat", bad="a cats", **columns):
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **columns}) + "\n"


def test_a_file_a_folder_and_a_glob_are_read_in_order(tmp_path):
    (tmp_path / "b.jsonl").write_text(line("b 1") + "\n" + line("b 3"))
    (tmp_path / "a.JSONL.gz").write_bytes(gzip.compress(line("a 1").encode()))
    (tmp_path / "SOURCE.md").write_text("Where they are from.\n")
    (tmp_path / "notes.txt").write_text("Not pairs.\n")
    found = [
        [(pair.place.rpartition("/")[2], pair.good) for pair in read_pairs(str(name)).pairs]
        for name in (tmp_path / "b.jsonl", tmp_path, tmp_path / "*.gz")
    ]
    of_b = [("b.jsonl:1", "b 1"), ("b.jsonl:3", "b 3")]
    of_a = [("a.JSONL.gz:1", "a 1")]
    assert found == [of_b, of_a + of_b, of_a]


def test_columns_are_blimps_where_the_pairs_have_them(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        line(UID="u1", linguistics_term="s-selection", field="f", pairID=7)
        + line(UID="u2", linguistics_term="argument_structure", field="f", pairID=8)
    )
    found = read_pairs(str(path))
    assert found.columns == ("linguistics_term", "UID")
    # The paper counts these two as one of its 12 phenomena.
    assert [pair.groups for pair in found.pairs] == [
        ("argument_structure", "u1"), ("argument_structure", "u2"),
    ]  # fmt: skip
    chosen = read_pairs(str(path), ["field", "pairID"])
    assert [pair.groups for pair in chosen.pairs] == [("f", "7"), ("f", "8")]
    path.write_text(line(other=1))
    assert read_pairs(str(path)).columns == ()


def test_a_limit_takes_the_first_pairs_of_each_finest_group(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(line(f"{name} {n}", UID=name) for n in range(5) for name in "xy"))
    found = read_pairs(str(path), limit=2)
    assert [pair.good for pair in found.pairs] == ["x 0", "y 0", "x 1", "y 1"]


def test_a_few_pairs_of_equal_sentences_as_in_blimp_count_as_wrong(tmp_path, opened):
    path = tmp_path / "pairs.jsonl"
    path.write_text(line() * 99 + line("a dog", "a dog"))
    found = read_pairs(str(path))
    assert [pair.place for pair in found.equal_pairs] == [f"{path}:100"]
    assert evaluate_pairs(opened, found).total.right in (0, 99)
    path.write_text(line() * 98 + line("a dog", "a dog"))
    says = r"jsonl:99: both sentences are 'a dog', expected two .* 1 of 99 pairs .* more than 1%"
    with pytest.raises(ValueError, match=says):
        read_pairs(str(path))


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ('{"sentence_bad": "a"}\n', "", "pairs.jsonl:1: has no sentence_good, found sentence_bad;"),
        ("{}\n", "", "pairs.jsonl:1: has no sentence_good, found an empty object; expected"),
        (line() + line(bad=" "), "", "pairs.jsonl:2: sentence_bad is ' ', expected a sentence"),
        (line(good=None), "", "pairs.jsonl:1: sentence_good is None, expected a sentence"),
        (line(good="\u200b\x07"), "", "pairs.jsonl:1: sentence_good has no token of the vocab"),
        (line() + line(bad="a cat"), "", "pairs.jsonl:2: both sentences are 'a cat', expected two"),
        (line(bad="a " * 39), "", "pairs.jsonl:1: sentence_bad has 41 tokens with [CLS] and [SEP]"),
        (line(), "--group_by field", "pairs.jsonl:1: has no column field, found sentence_good,"),
        (line(UID="x") + line(), "", "pairs.jsonl:2: has no column UID, found sentence_good,"),
        (line() + line(UID="x"), "", "pairs.jsonl:2: has the column UID, and the first pair lacks"),
        (line() + line(good="a \ud800"), "", "pairs.jsonl:2: half of a character ends"),
        (line(good=["a"] * 99), "", "pairs.jsonl:1: sentence_good is ['a', 'a', "),
        (line(UID=None), "", "pairs.jsonl:1: UID is None, expected a name or a whole number"),
        ("", "", "pairs.jsonl: holds no pair, expected a JSON object with sentence_good and"),
        ("\n\n", "", "pairs.jsonl: holds no pair"),
        (line() + "good\tbad\n", "", "pairs.jsonl:2: found no JSON"),
        ('["a", "b"]\n', "", "pairs.jsonl:1: found a JSON list, expected an object"),
        (line(), "--pairs_limit -1", "pairs_limit is -1; it must be at least 0"),
        (line(), "--data x", "give either --data, a dataset, or --pairs, a file of minimal pairs"),
        (line(), "--seq_len 128", "--seq_len is about --data, which is not given; leave it out"),
    ],
)
def test_bad_input_is_one_line_that_names_file_and_line(hf, tmp_path, capsys, text, flags, message):
    (tmp_path / "pairs.jsonl").write_text(text)
    given = ["--model", str(hf), "--pairs", str(tmp_path / "pairs.jsonl"), *flags.split()]
    assert main(["evaluate", *given]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_flags_and_files_that_are_not_there_are_refused(hf, tmp_path, capsys):
    model = ["evaluate", "--model", str(hf)]
    assert main(model) == 2
    assert "give either --data, a dataset, or --pairs" in capsys.readouterr().err
    assert main([*model, "--data", "x", "--pll", "word-l2r"]) == 2
    assert "--pll is about --pairs, which is not given" in capsys.readouterr().err
    assert main([*model, "--pairs", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: no file is there, expected a file of pairs," in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("no pairs\n")
    assert main([*model, "--pairs", str(tmp_path)]) == 2
    assert f"{tmp_path}: no file is there" in capsys.readouterr().err


def test_a_run_at_a_url_is_opened_with_the_storage_options(opened, tmp_path, monkeypatch):
    asked = []

    def open_at_url(name, options):
        asked.append((name, options))
        return opened

    monkeypatch.setattr("trainer.inference.open_model.open_model", open_at_url)
    (tmp_path / "pairs.jsonl").write_text(line())
    run = ["--model", "s3://bucket/run", "--storage_options", '{"anon": true}']
    assert main(["evaluate", *run, "--pairs", str(tmp_path / "pairs.jsonl")]) == 0
    assert asked == [("s3://bucket/run", {"anon": True})]


def test_models_that_cannot_score_are_refused(opened):
    headless = {name: opened.state[name] for name in opened.state if "mlm_head" not in name}
    with pytest.raises(ValueError, match="masked language model head, which evaluate measures"):
        score_pairs(dataclasses.replace(opened, state=headless), pairs_of(SENTENCES))
    causal = dataclasses.replace(opened, config=dataclasses.replace(CONFIG, is_causal=True))
    with pytest.raises(ValueError, match=r"pll word-l2r is about masks, and .* left to right"):
        score_pairs(causal, pairs_of(SENTENCES), pll="word-l2r")


def test_the_command_prints_a_table_and_writes_the_same_as_json(hf, opened, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(line(*both, kind=both[0][0]) for both in SENTENCES))
    given = ["--model", str(hf), "--pairs", str(path), "--group_by", "kind", "--pll", "word-l2r"]
    assert main(["evaluate", *given, "--output", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{hf} on {path}, word-l2r scores"
    expected = evaluate_pairs(opened, read_pairs(str(path), ["kind"]), pll="word-l2r")
    assert printed[1:] == format_accuracies(expected).splitlines()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["mean_of"] == "kind"
    assert found["num_pairs"] == 5
    assert found["mean_accuracy"] == expected.mean
    assert [each["kind"] for each in found["groups"]] == ["A", "T", "Z", "t"]


def test_blimp_has_its_67_paradigms_and_12_phenomena(shared_data):
    found = read_pairs(str(shared_data / "data/blimp"), limit=1)
    assert len(found.pairs) == 67
    assert len({pair.groups[0] for pair in found.pairs}) == 12
