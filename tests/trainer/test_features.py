"""`features`: vectors equal to transformers', every token once, in bounded memory."""

import gzip
import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import zstandard

from tests.trainer.lettered_model import export_lettered_model
from trainer.cli import main
from trainer.inference.features.extract import (
    FeatureExtractor,
    InputText,
    choose_layers,
    cut_windows,
)
from trainer.inference.open_model import open_model

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["The cats sat.", "a cat", "", "the the x cat sat", "dogs"]


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    return export_lettered_model(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def features(hf, file, output, *flags):
    given = ["--model", str(hf), "--input", str(file), "--output", str(output)]
    return main(["features", *given, *flags])


def rows_of(output, column=None):
    rows = pq.read_table(output).to_pylist()
    return np.array([row[column] for row in rows]) if column else rows


def facts_of(output):
    return json.loads(pq.read_metadata(output).metadata[b"beambert"])


def theirs(hf, text, **changes):
    """Hidden states [layers, tokens without [CLS] and [SEP], H] of transformers, and its whole output."""
    model = transformers.BertModel.from_pretrained(hf).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt", **changes), output_hidden_states=True)
    return torch.stack(out.hidden_states)[:, 0].numpy(), out


def test_states_of_every_token_and_layer_are_those_of_transformers(hf, text_file, tmp_path):
    assert features(hf, text_file, tmp_path / "out", "--layers", "all", "--micro_tokens", "40") == 0
    rows = rows_of(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    for number, text in enumerate(TEXTS):
        mine = [row for row in rows if row["text"] == number]
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
        assert [row["piece"] for row in mine] == pieces
        assert [(row["start"], row["end"]) for row in mine] == encoding["offset_mapping"]
        assert [row["token"] for row in mine] == list(range(len(mine)))
        assert {row["line"] for row in mine} <= {number + 1}
        expected = theirs(hf, text)[0][:, 1:-1]
        for layer in range(3):
            found = np.array([row[f"layer_{layer}"] for row in mine], dtype=np.float32)
            np.testing.assert_allclose(found.reshape(-1, 64), expected[layer], atol=1e-5)


def test_a_model_normalised_first_gives_what_transformers_gives(tmp_path, text_file):
    folder = export_lettered_model(tmp_path / "hf", pre_norm=True)
    assert features(folder, text_file, tmp_path / "out", "--layers", "-1,-2") == 0
    model = transformers.MegatronBertModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    count = batch["input_ids"].shape[1] - 2
    for layer in (1, 2):
        found = rows_of(tmp_path / "out", f"layer_{layer}")[:count]
        np.testing.assert_allclose(found, states[layer][0, 1:-1], atol=1e-5)


@pytest.mark.parametrize("rows", ["cls", "mean", "pooler"])
def test_a_vector_a_text(hf, text_file, tmp_path, rows):
    flags = ["--layers", "-1", "--rows", rows, "--micro_tokens", "40"]
    assert features(hf, text_file, tmp_path / "out", *flags) == 0
    found = rows_of(tmp_path / "out", "pooler" if rows == "pooler" else "layer_2")
    assert [row["text"] for row in rows_of(tmp_path / "out")] == list(range(len(TEXTS)))
    for text, vector in zip(TEXTS, found, strict=True):
        states, out = theirs(hf, text)
        inner = states[-1, 1:-1]
        mean = inner.mean(axis=0) if len(inner) else np.zeros(64)
        expected = {"cls": states[-1, 0], "mean": mean, "pooler": out.pooler_output[0].numpy()}
        np.testing.assert_allclose(vector, expected[rows], atol=1e-5)


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
                    contexts = [
                        min(token - window.start, window.stop - 1 - token)
                        for window in windows
                        if window.start <= token < window.stop
                    ]
                    assert min(token - chosen.start, chosen.stop - 1 - token) == max(contexts)


def test_long_texts_are_read_in_windows_and_counted(hf, tmp_path):
    words = (["the", "cat", "sat", ".", "a"] * 20)[:95]
    (tmp_path / "long.txt").write_text(" ".join(words) + "\nshort cat\n")
    flags = ["--layers", "-1", "--seq_len", "20", "--micro_tokens", "64"]
    assert features(hf, tmp_path / "long.txt", tmp_path / "out", *flags) == 0
    found = rows_of(tmp_path / "out", "layer_2")
    windows = cut_windows(95, 18, 9)
    for window in windows:
        states, _ = theirs(hf, " ".join(words[window.start : window.stop]))
        inside = slice(window.keep_start - window.start + 1, window.keep_stop - window.start + 1)
        kept = found[window.keep_start : window.keep_stop]
        np.testing.assert_allclose(kept, states[-1, inside], atol=1e-5)
    counts = facts_of(tmp_path / "out")
    assert (counts["long_texts"], counts["windows"], counts["texts"]) == (1, len(windows) + 1, 2)
    assert features(hf, tmp_path / "long.txt", tmp_path / "mean", *flags, "--rows", "mean") == 0
    mean = rows_of(tmp_path / "mean", "layer_2")[0]
    np.testing.assert_allclose(mean, found[:95].mean(axis=0), atol=1e-5)


def test_fields_and_compressed_files(hf, tmp_path):
    records = [{"body": text, "key": number} for number, text in enumerate(TEXTS[:2])]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    frames = [zstandard.compress(lines[:30].encode()), zstandard.compress(lines[30:].encode())]
    contents = {
        "a.jsonl": lines.encode(),
        "b.jsonl.gz": gzip.compress(lines.encode()),
        "c.jsonl.zst": b"".join(frames),
    }
    found = []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        flags = ["--rows", "cls", "--text_field", "body", "--layers", "-1"]
        assert features(hf, tmp_path / name, tmp_path / "out", *flags) == 0
        found.append(rows_of(tmp_path / "out"))
    assert [row["text"] for row in found[0]] == [0, 1]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"t": "y"}\n',
            "",
            "a.jsonl:2: no field 'text', found t; --text",
        ),
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
def test_what_cannot_be_read_is_named(
    hf, tmp_path, monkeypatch, capsys, name, content, flags, message
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    assert features(hf, name, "out", "--layers", "-1", *flags.split()) == 2
    assert message in capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert not Path("out").exists()


def test_layers_are_numbered_as_in_transformers():
    assert choose_layers("-1,-2,-3,-4", 12) == (12, 11, 10, 9)
    assert choose_layers("all", 2) == (0, 1, 2)
    assert choose_layers("0", 2) == (0,)


def test_words_have_the_vector_of_their_first_piece(hf):
    extractor = FeatureExtractor(open_model(str(hf)), layers="-1,-2", rows="word", seq_len=12)
    words = ("the", "cats", "dog", "\x00", "Sat", "bird", "the")
    [rows] = extractor.iterate([extractor.encode(InputText(0, 1, " ".join(words), words))])
    every = FeatureExtractor(open_model(str(hf)), layers="-1,-2", seq_len=12)
    [tokens] = every.iterate([every.encode(InputText(0, 1, " ".join(words), words))])
    assert rows.index == list(range(7))
    pieces = " ".join(piece.token for piece in tokens.texts[0].pieces)
    assert pieces == "the cat ##s d ##o ##g [UNK] sat b ##i ##r ##d the"
    assert rows.texts[0].first_pieces == [0, 1, 3, 6, 7, 8, 12]
    np.testing.assert_allclose(rows.vectors, tokens.vectors[rows.texts[0].first_pieces], atol=1e-6)
    assert (rows.texts[0].unknown_words, rows.vectors.shape) == (1, (7, 2, 64))


def test_words_of_conll_files(hf, tmp_path):
    (tmp_path / "a.conll").write_text("The O\ncats B-X\n\n-DOCSTART- O\n\ndog O\n")
    (tmp_path / "b.iob2").write_text("# a comment\n1\tsat\tO\n2\tcats\tO\n")
    flags = ["--rows", "word", "--layers", "-1"]
    assert features(hf, tmp_path / "a.conll", tmp_path / "a", *flags) == 0
    assert features(hf, tmp_path / "b.iob2", tmp_path / "b", *flags, "--token_column", "1") == 0
    names = ("text", "line", "word", "form", "token", "piece")
    found = [tuple(row[name] for name in names) for row in rows_of(tmp_path / "a")]
    cats = [(0, 1, 0, "The", 0, "the"), (0, 1, 1, "cats", 1, "cat")]
    assert found == [*cats, (1, 6, 0, "dog", 0, "d")]
    expected = theirs(hf, "The cats")[0][-1, 1:3]
    np.testing.assert_allclose(rows_of(tmp_path / "a", "layer_2")[:2], expected, atol=1e-5)
    assert [row["form"] for row in rows_of(tmp_path / "b")] == ["sat", "cats"]


def test_an_object_store_gets_the_same_file(hf, text_file, tmp_path):
    import fsspec

    assert features(hf, text_file, tmp_path / "out", "--layers", "-1") == 0
    assert features(hf, text_file, "memory://features/out", "--layers", "-1") == 0
    stored = fsspec.filesystem("memory").cat_file("/features/out")
    assert stored == (tmp_path / "out").read_bytes()
    fsspec.filesystem("memory").rm("/features", recursive=True)


PEAK = """
import sys
from tests.peak_memory import peak_megabytes
from trainer.cli import main
assert main(["features", "--layers", "all", "--micro_tokens", "2048", *sys.argv[1:]]) == 0
print(peak_megabytes())
"""


@pytest.mark.engines
def test_memory_does_not_grow_with_the_input(hf, tmp_path):
    """108,000 tokens give 79 MB of vectors; text, a line of 24,000 among it, is read as it is needed: 15 MB more."""
    peaks = []
    for name, num_lines in (("small", 100), ("big", 6_000)):
        path = tmp_path / f"{name}.txt"
        path.write_text(
            "the cat sat on the mat of a cat .\n" * num_lines + "the cat " * (num_lines * 2) + "\n"
        )
        files = ["--model", str(hf), "--input", str(path), "--output", f"{path}-out"]
        command = [sys.executable, "-c", PEAK, *files]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(float(ran.stdout.split()[-1]))
    rows = facts_of(tmp_path / "big.txt-out")["rows"]
    assert rows == 108_000
    assert peaks[1] - peaks[0] < 40, peaks
