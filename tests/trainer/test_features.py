"""`features`: vectors equal to transformers', every token once, in bounded memory."""

import gzip
import json
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import zstandard

from tests.loaded_python import run_python
from tests.trainer.lettered_model import export_lettered_model
from trainer.cli import main
from trainer.inference.features.extract import FeatureExtractor, InputText, cut_windows
from trainer.inference.features.job import read_texts
from trainer.inference.open_model import open_model
from trainer.inference.settings import FeaturesSettings

TEXTS = ["The cats sat.", "a cat", "", "the the x cat sat", "dogs"]
LAST = ["--layers", "-1"]


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    return export_lettered_model(tmp_path_factory.mktemp("model") / "hf")


def features(hf, file, *flags):
    output = file.with_suffix(".parquet")
    given = ["--model", str(hf), "--input", str(file), "--output", str(output)]
    assert main(["features", *given, *flags]) == 0
    return output


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def rows_of(output, column=None):
    rows = pq.read_table(output).to_pylist()
    return np.array([row[column] for row in rows]) if column else rows


def theirs(hf, text):
    """Hidden states [layers, tokens with [CLS] and [SEP], H] of transformers, and its output."""
    model = transformers.AutoModel.from_pretrained(hf).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
    return torch.stack(out.hidden_states)[:, 0].numpy(), out


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_states_of_every_token_and_layer_are_those_of_transformers(tmp_path, text_file, pre_norm):
    hf = export_lettered_model(tmp_path / "hf", pre_norm=pre_norm)
    rows = rows_of(features(hf, text_file, "--layers", "all", "--micro_tokens", "40"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    for number, text in enumerate(TEXTS):
        mine = [row for row in rows if row["text"] == number]
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
        assert [row["piece"] for row in mine] == pieces
        assert [(row["start"], row["end"]) for row in mine] == encoding["offset_mapping"]
        places = [(row["line"], row["token"]) for row in mine]
        assert places == [(number + 1, token) for token in range(len(mine))]
        expected = theirs(hf, text)[0][:, 1:-1]
        for layer in range(3):
            found = np.array([row[f"layer_{layer}"] for row in mine], dtype=np.float32)
            close(found.reshape(-1, 64), expected[layer])


@pytest.mark.parametrize("rows", ["cls", "mean", "pooler"])
def test_a_vector_a_text(hf, text_file, rows):
    output = features(hf, text_file, *LAST, "--rows", rows, "--micro_tokens", "40")
    found = rows_of(output, "pooler" if rows == "pooler" else "layer_2")
    assert [row["text"] for row in rows_of(output)] == list(range(len(TEXTS)))
    for text, vector in zip(TEXTS, found, strict=True):
        states, out = theirs(hf, text)
        inner = states[-1, 1:-1]
        mean = inner.mean(axis=0) if len(inner) else np.zeros(64)
        expected = {"cls": states[-1, 0], "mean": mean, "pooler": out.pooler_output[0].numpy()}
        close(vector, expected[rows])


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_every_token_is_in_one_window_and_in_the_one_with_most_context(size):
    for num_tokens in range(40):
        for stride in range(1, size + 1):
            windows = cut_windows(num_tokens, size, stride)
            kept = [range(each.keep_start, each.keep_stop) for each in windows]
            assert [*chain(*kept)] == list(range(num_tokens))
            for chosen in windows:
                assert chosen.stop - chosen.start == min(size, num_tokens)
                for token in range(chosen.keep_start, chosen.keep_stop):
                    around = [each for each in windows if each.start <= token < each.stop]
                    contexts = [min(token - each.start, each.stop - 1 - token) for each in around]
                    assert min(token - chosen.start, chosen.stop - 1 - token) == max(contexts)


def test_counts_of_a_single_text_are_numbers(hf, tmp_path):
    (tmp_path / "one.txt").write_text("the cat\n")
    output = features(hf, tmp_path / "one.txt", *LAST)
    facts = pq.read_metadata(output).metadata[b"beambert"]
    assert b'"empty_texts": 0, "long_texts": 0, "windows": 1' in facts


def test_long_texts_are_read_in_windows_and_counted(hf, tmp_path):
    words = (["the", "cat", "sat", ".", "a"] * 20)[:95]
    file, flags = tmp_path / "long.txt", [*LAST, "--seq_len", "20", "--micro_tokens", "64"]
    file.write_text(" ".join(words) + "\nshort cat\n")
    output = features(hf, file, *flags)
    found, windows = rows_of(output, "layer_2"), cut_windows(95, 18, 9)
    for window in windows:
        states, _ = theirs(hf, " ".join(words[window.start : window.stop]))
        inside = slice(window.keep_start - window.start + 1, window.keep_stop - window.start + 1)
        close(found[window.keep_start : window.keep_stop], states[-1, inside])
    counts = json.loads(pq.read_metadata(output).metadata[b"beambert"])
    assert (counts["long_texts"], counts["windows"], counts["texts"]) == (1, len(windows) + 1, 2)
    features(hf, file, *flags, "--rows", "mean")
    close(rows_of(output, "layer_2")[0], found[:95].mean(axis=0))


def test_fields_compressed_files_and_object_stores(hf, bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"body": text, "key": number} for number, text in enumerate(TEXTS[:2])]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    frames = zstandard.compress(lines[:30]) + zstandard.compress(lines[30:])
    contents = {"a.jsonl": lines, "b.jsonl.gz": gzip.compress(lines), "c.jsonl.zst": frames}
    flags = [*LAST, "--rows", "cls", "--text_field", "body"]
    outputs = ["a", f"file://{tmp_path}/b", "memory://features/out"]
    for (name, content), output in zip(contents.items(), outputs, strict=True):
        Path(name).write_bytes(content)
        files = ["--model", str(hf), "--input", name, "--output", output]
        assert main(["features", *files, *flags]) == 0
    assert [row["text"] for row in rows_of("a")] == [0, 1]
    assert Path("a").read_bytes() == Path("b").read_bytes() == bucket.cat_file("/features/out")


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"t": "y"}\n', "", "a.jsonl:2: no field 'text', found t"),
        ("a.jsonl", b'{"text": 3}\n', "", "a.jsonl:1: field 'text' is int, expected a string"),
        ("a.jsonl", b"{\n", "", "a.jsonl:1: found no JSON"),
        ("a.txt", b"fine\n\xff\n", "", "a.txt:2: found the byte 0xff"),
        ("a.txt", b"", "", "a.txt holds no text"),
        ("a.txt", b"x\n", "--layers 5", "names 5; the model has 0 (embeddings) to 2, or -3 to -1"),
        ("a.txt", b"x\n", "--layers 2,-1", "layers 2,-1 names a layer twice: they are (2, 2)"),
        ("a.txt", b"x\n", "--layers last", "is 'last'; expected numbers separated by commas, or"),
        ("a.txt", b"x\n", "--seq_len 99", "seq_len is 99;"),
        ("a.txt", b"x\n", "--rows word", "rows word asks for words; give a CoNLL file"),
    ],
)
def test_what_cannot_be_read_is_said(
    hf, tmp_path, monkeypatch, capsys, name, content, flags, message
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    files = ["--model", str(hf), "--input", name, "--output", "out"]
    assert main(["features", *files, *LAST, *flags.split()]) == 2
    assert message in capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert not Path("out").exists()


def test_words_have_the_vector_of_their_first_piece(hf):
    words = ("the", "cats", "dog", "\x00", "Sat", "bird", "the")
    text, found = InputText(0, 1, " ".join(words), words), []
    for rows in ("word", "token"):
        extractor = FeatureExtractor(open_model(str(hf)), layers="-1,-2", rows=rows, seq_len=12)
        found += extractor.iterate([extractor.encode(text)])
    of_words, tokens = found
    assert of_words.index == list(range(7))
    pieces = " ".join(piece.token for piece in tokens.texts[0].pieces)
    assert pieces == "the cat ##s d ##o ##g [UNK] sat b ##i ##r ##d the"
    assert of_words.texts[0].first_pieces == [0, 1, 3, 6, 7, 8, 12]
    close(of_words.vectors, tokens.vectors[of_words.texts[0].first_pieces])
    assert (of_words.texts[0].unknown_words, of_words.vectors.shape) == (1, (7, 2, 64))


def test_words_of_conll_files(hf, tmp_path):
    (tmp_path / "a.conll").write_text("The O\ncats B-X\n\n-DOCSTART- O\n\ndog O\n")
    (tmp_path / "b.iob2").write_text("# a comment\n1\tsat\tO\n2\tcats\tO\n")
    flags = [*LAST, "--rows", "word"]
    first = features(hf, tmp_path / "a.conll", *flags)
    second = features(hf, tmp_path / "b.iob2", *flags, "--token_column", "1")
    names = ("text", "line", "word", "form", "token", "piece")
    found = [tuple(row[name] for name in names) for row in rows_of(first)]
    cats = [(0, 1, 0, "The", 0, "the"), (0, 1, 1, "cats", 1, "cat")]
    assert found == [*cats, (1, 6, 0, "dog", 0, "d")]
    close(rows_of(first, "layer_2")[:2], theirs(hf, "The cats")[0][-1, 1:3])
    assert [row["form"] for row in rows_of(second)] == ["sat", "cats"]


PEAK = """
import sys
from tests.peak_memory import peak_megabytes
from trainer.cli import main
assert main(["features", "--layers", "all", "--micro_tokens", "2048", *sys.argv[1:]]) == 0
print(peak_megabytes())
"""


@pytest.mark.engines
def test_memory_does_not_grow_with_the_input(hf, tmp_path):
    """108,000 tokens give 79 MB of vectors; text is read as it is needed: 15 to 45 MB more."""
    peaks = []
    for name, num_lines in (("small.txt", 100), ("big.txt", 6_000)):
        path, text = tmp_path / name, "the cat sat on the mat of a cat .\n" * num_lines
        path.write_text(text + "the cat " * (num_lines * 2) + "\n")
        files = ["--model", hf, "--input", path, "--output", f"{path}-out"]
        peaks.append(float(run_python(["-c", PEAK, *files]).stdout.split()[-1]))
    assert pq.read_metadata(tmp_path / "big.txt-out").num_rows == 108_000
    assert peaks[1] - peaks[0] < 60, peaks


@pytest.mark.parametrize(
    ("name", "data", "texts"),
    [
        ("A.JSONL", b'{"text": "one"}\n{"text": "two"}\n', [("one", 1), ("two", 2)]),
        ("a.csv", b'id;text\n1;"one; two"\n2;three\n', [("one; two", 2), ("three", 3)]),
        ("a.txt", b"one\n\r\ntwo", [("one", 1), ("", 2), ("two", 3)]),
    ],
)
def test_texts_are_read_as_a_build_reads_them(tmp_path, name, data, texts):
    (tmp_path / name).write_bytes(data)
    settings = FeaturesSettings(input=str(tmp_path / name), output="o", model="m")
    assert [(each.text, each.line) for each in read_texts(settings)] == texts


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json", b'[{"text": "one"}]', "begins with a JSON array, .*jq -c"),
        ("a.pdf", b"%PDF-1.7 of a file", "found a PDF document, .*pdftotext"),
        ("a.html", b"<html>", "found a file of the format html, expected a text in each line"),
    ],
)
def test_files_that_hold_no_texts_are_refused(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    settings = FeaturesSettings(input=str(tmp_path / name), output="o", model="m")
    with pytest.raises(ValueError, match=said):
        list(read_texts(settings))
