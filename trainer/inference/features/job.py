"""Runs `python -m trainer features`, which writes vectors for the texts of a file as Parquet.

Every row has the columns `text` (the number of the text) and `line`, and a column for each vector.
If a row stands for a token or a word, it also has `token` (the index of the token, or of the word's
first token), `piece` (its spelling), `start` and `end`. If it stands for a word, it has `word` (the
index of the word) and `form` (its spelling) too. The file's metadata (key "beambert", JSON)
contains the model and counts.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from pipeline.documents.detect import detect_format
from pipeline.documents.files import StorageOptions, read_head
from pipeline.documents.text_files import (
    read_csv_rows,
    read_json_lines,
    read_text,
    read_text_lines,
    whole_file,
)
from pipeline.storage.compression import plain_name
from pipeline.storage.folder import Folder
from pipeline.storage.local import scratch_folder
from pipeline.storage.quoting import join_names
from trainer.conll.read import Columns, read_conll
from trainer.conversion.initial_weights import hash_state
from trainer.inference.features.extract import EncodedText, FeatureExtractor, FeatureRows, InputText
from trainer.inference.open_model import open_model
from trainer.inference.settings import FeaturesSettings
from trainer.process.ranks import choose_device

METADATA = b"beambert"
"""The key of the Parquet file's metadata."""
CONLL_SUFFIXES = (".conll", ".iob2", ".bio", ".conllu")


def write_features(settings: FeaturesSettings) -> dict[str, Any]:
    """Writes the Parquet file that the settings ask for.

    Returns:
        The content of the file's metadata, by name: "model", "model_sha256", and the numbers of
        "rows", "texts", "empty_texts", "long_texts" (of several windows), "windows", "tokens" and
        "unknown_words".

    Raises:
        ValueError: The input is malformed or holds no text, or the model cannot be used.
        FileNotFoundError: The input or the model is not there.
    """
    options = settings.filesystem_options()
    opened = open_model(settings.model, options)
    extractor = FeatureExtractor(
        opened,
        layers=settings.layers,
        rows=settings.rows,
        seq_len=settings.seq_len,
        micro_tokens=settings.micro_tokens,
        device=choose_device(),
    )
    counts: Counter[str] = Counter()
    texts = tqdm(read_texts(settings), unit="text", unit_scale=True, disable=None)
    rows = extractor.iterate(_count(map(extractor.encode, texts), counts))
    folder, name = Folder.of_file(settings.output, options)
    with scratch_folder(folder.locate(name)) as temporary:
        file = temporary / "features.parquet"
        schema = _schema(settings, extractor.columns, opened.config.hidden_size)
        with pq.ParquetWriter(file, schema) as writer:
            for batch in rows:
                writer.write_table(_to_table(batch, schema))
                counts["rows"] += len(batch.index)
            if not counts["texts"]:
                raise ValueError(f"{settings.input} holds no text; expected one a line")
            facts = {"model": opened.where, "model_sha256": hash_state(opened.state), **counts}
            writer.add_key_value_metadata({METADATA: json.dumps(facts).encode()})
        folder.write(name, file)
    return facts


def read_texts(settings: FeaturesSettings) -> Iterator[InputText]:
    """Yields every text of the input, in order.

    Raises:
        ValueError: The input is malformed, or of a format from which no texts can be read.
    """
    url = settings.input
    options = settings.filesystem_options()
    input_format = _detect(url, options) if settings.format == "auto" else settings.format
    if input_format == "conll":
        columns = Columns(settings.token_column, None)
        for number, sentence in enumerate(read_conll(read_text(url, options), url, columns)):
            line = sentence.first_line + sentence.rows[0]
            yield InputText(number, line, " ".join(sentence.words), sentence.words)
        return
    texts = read_text_lines(url, options)
    if input_format in ("jsonl", "csv"):
        read_records = read_json_lines if input_format == "jsonl" else _read_rows
        records = read_records(url, options)
        texts = (
            (place, _field_of(record, settings.text_field, place)) for place, record in records
        )
    for number, (place, text) in enumerate(texts):
        yield InputText(number, int(place.rpartition(":")[2]), text)


def _detect(url: str, options: StorageOptions) -> str:
    """Detects the format of a file by its name and first bytes: conll, jsonl, csv or text.

    Raises:
        ValueError: The file is of another format.
    """
    if plain_name(url).lower().endswith(CONLL_SUFFIXES):
        return "conll"
    file = whole_file(url, options)
    detected = detect_format(url, read_head(url, file.size, options))
    if detected not in ("jsonl", "csv", "text"):
        expected = "expected a text in each line, JSON lines, CSV or CoNLL"
        raise ValueError(
            f"{url}: found a file of the format {detected}, {expected}; --format names it"
        )
    return detected


def _read_rows(url: str, options: StorageOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields file and line of each row of a CSV file, and the row's cells by column.

    Raises:
        ValueError: A row has another number of cells than the header.
    """
    rows = read_csv_rows(url, options)
    _, names = next(rows, ("", []))
    for place, cells in rows:
        if len(cells) != len(names):
            raise ValueError(f"{place}: found {len(cells)} cells, expected {len(names)}")
        yield place, dict(zip(names, cells, strict=True))


def _field_of(record: dict[str, Any], name: str, place: str) -> str:
    """Returns the text in a field of a record.

    Raises:
        ValueError: The record has no such field, or its value is no string.
    """
    if name not in record:
        says = f"no field {name!r}, found {join_names(record)}"
        raise ValueError(f"{place}: {says}; --text_field names it")
    text = record[name]
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ValueError(f"{place}: field {name!r} is {kind}, expected a string")  # noqa: TRY004
    return text


def _count(texts: Iterable[EncodedText], counts: Counter[str]) -> Iterator[EncodedText]:
    """Yields the texts unchanged and counts them.

    Args:
        texts: The encoded texts.
        counts: The numbers of texts, empty texts, texts of several windows, tokens, windows and
            unknown words are added to this counter as texts are yielded.
    """
    for text in texts:
        num_windows = len(text.windows)
        counts.update(
            texts=1,
            tokens=len(text.pieces),
            empty_texts=int(not text.pieces),
            long_texts=int(num_windows > 1),
            windows=num_windows,
            unknown_words=text.unknown_words,
        )
        yield text


def _schema(settings: FeaturesSettings, columns: list[str], width: int) -> pa.Schema:
    """Returns the columns of the Parquet file.

    Args:
        settings: The settings, whose `rows` decide which columns describe a row.
        columns: The names of the columns of vectors.
        width: The number of values of a vector.
    """
    number = pa.int32()
    string = pa.string()
    fields = {"text": pa.int64(), "line": pa.int64()}
    if settings.rows == "word":
        fields |= {"word": number, "form": string}
    if settings.rows in ("token", "word"):
        fields |= {"token": number, "piece": string, "start": number, "end": number}
    vector = pa.list_(pa.float32(), width)
    return pa.schema(fields | dict.fromkeys(columns, vector))


def _to_table(rows: FeatureRows, schema: pa.Schema) -> pa.Table:
    """Converts the rows of a micro-batch to a table with the schema."""
    index = rows.index
    columns: dict[str, Any] = {
        "text": [text.origin.number for text in rows.texts],
        "line": [text.origin.line for text in rows.texts],
    }
    if "word" in schema.names:
        words = list(zip(rows.texts, index, strict=True))
        columns["word"] = index
        columns["form"] = [(text.origin.words or ())[word] for text, word in words]
        index = [text.first_pieces[word] for text, word in words]
    if "token" in schema.names:
        pieces = [text.pieces[token] for text, token in zip(rows.texts, index, strict=True)]
        columns["token"] = index
        columns["piece"] = [piece.token for piece in pieces]
        columns["start"] = [piece.start for piece in pieces]
        columns["end"] = [piece.end for piece in pieces]
    for number, name in enumerate(schema.names[len(columns) :]):
        vectors = rows.vectors[:, number]
        columns[name] = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    return pa.table(columns, schema=schema)
