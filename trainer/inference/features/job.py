"""`python -m trainer features`: the texts of a file to a Parquet file of features.

A row has `text`, `line`; of a token or word `token`, `piece`, `start`, `end`, of a word also `word`
and `form`; and the vectors. The file's metadata (key "beambert", JSON) has the model and counts.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from pipeline.documents.detect import detect_format
from pipeline.documents.files import read_head
from pipeline.documents.text_files import (
    read_csv_rows,
    read_json_lines,
    read_text,
    read_text_lines,
    whole_file,
)
from pipeline.storage.compression import plain_name
from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.local import scratch_folder
from pipeline.storage.quoting import join_names
from trainer.conll.read import Columns, read_conll
from trainer.conversion.initial_weights import hash_state
from trainer.inference.features.extract import EncodedText, FeatureExtractor, FeatureRows, InputText
from trainer.inference.open_model import open_model
from trainer.inference.settings import FeaturesSettings
from trainer.process.ranks import choose_device

METADATA = b"beambert"
CONLL_SUFFIXES = (".conll", ".iob2", ".bio", ".conllu")


def write_features(settings: FeaturesSettings) -> dict[str, Any]:
    """Writes the features of the input's texts; what the file's metadata says of them."""
    opened = open_model(settings.model, parse_storage_options(settings.storage_options))
    names = ("layers", "rows", "seq_len", "micro_tokens")
    asked: dict[str, Any] = {name: getattr(settings, name) for name in names}
    extractor = FeatureExtractor(opened, **asked, device=choose_device())
    counts: Counter[str] = Counter()
    texts = tqdm(read_texts(settings), unit="text", unit_scale=True, disable=None)
    rows = extractor.iterate(_count(map(extractor.encode, texts), counts))
    folder, name = Folder.of_file(settings.output)
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
    chosen = _detect(url) if settings.format == "auto" else settings.format
    if chosen == "conll":
        columns = Columns(settings.token_column, None)
        for number, sentence in enumerate(read_conll(read_text(url), url, columns)):
            line = sentence.first_line + sentence.rows[0]
            yield InputText(number, line, " ".join(sentence.words), sentence.words)
        return
    texts = read_text_lines(url)
    if chosen in ("jsonl", "csv"):
        records = read_json_lines(url) if chosen == "jsonl" else _read_rows(url)
        texts = ((place, _field_of(each, settings.text_field, place)) for place, each in records)
    for number, (place, text) in enumerate(texts):
        yield InputText(number, int(place.rpartition(":")[2]), text)


def _detect(url: str) -> str:
    """Returns conll, jsonl, csv or text, from a file's name and first bytes, as a build does.

    Raises:
        ValueError: The file is of another format.
    """
    if plain_name(url).lower().endswith(CONLL_SUFFIXES):
        return "conll"
    file = whole_file(url)
    found = detect_format(url, read_head(url, file.size))
    if found not in ("jsonl", "csv", "text"):
        expected = "expected a text in each line, JSON lines, CSV or CoNLL"
        raise ValueError(
            f"{url}: found a file of the format {found}, {expected}; --format names it"
        )
    return found


def _read_rows(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place of each row of a CSV file, and its cells by column.

    Raises:
        ValueError: A row has another number of cells than the header.
    """
    rows = read_csv_rows(url)
    _, names = next(rows, ("", []))
    for place, cells in rows:
        if len(cells) != len(names):
            raise ValueError(f"{place}: found {len(cells)} cells, expected {len(names)}")
        yield place, dict(zip(names, cells, strict=True))


def _field_of(record: dict[str, Any], name: str, place: str) -> str:
    if name not in record:
        found = f"no field {name!r}, found {join_names(record)}"
        raise ValueError(f"{place}: {found}; --text_field names it")
    if not isinstance(text := record[name], str):
        kind = type(text).__name__
        raise ValueError(f"{place}: field {name!r} is {kind}, expected a string")  # noqa: TRY004
    return text


def _count(texts: Iterable[EncodedText], counts: Counter[str]) -> Iterator[EncodedText]:
    """Passes texts on and counts what became of them."""
    for text in texts:
        windows, is_empty = len(text.windows), not text.pieces
        counts.update(texts=1, tokens=len(text.pieces), empty_texts=is_empty)
        counts.update(long_texts=windows > 1, windows=windows, unknown_words=text.unknown_words)
        yield text


def _schema(settings: FeaturesSettings, columns: list[str], width: int) -> pa.Schema:
    number, string = pa.int32(), pa.string()
    fields = {"text": pa.int64(), "line": pa.int64()}
    if settings.rows == "word":
        fields |= {"word": number, "form": string}
    if settings.rows in ("token", "word"):
        fields |= {"token": number, "piece": string, "start": number, "end": number}
    vector = pa.list_(pa.float32(), width)
    return pa.schema(fields | dict.fromkeys(columns, vector))


def _to_table(rows: FeatureRows, schema: pa.Schema) -> pa.Table:
    index = rows.index
    columns: dict[str, Any] = {
        "text": [text.origin.number for text in rows.texts],
        "line": [text.origin.line for text in rows.texts],
    }
    if "word" in schema.names:
        places = list(zip(rows.texts, index, strict=True))
        columns |= {"word": index, "form": [(t.origin.words or ())[word] for t, word in places]}
        index = [text.first_pieces[word] for text, word in places]
    if "token" in schema.names:
        pieces = [text.pieces[token] for text, token in zip(rows.texts, index, strict=True)]
        columns |= {"token": index, "piece": [piece.token for piece in pieces]}
        columns |= {name: [getattr(piece, name) for piece in pieces] for name in ("start", "end")}
    for number, name in enumerate(schema.names[len(columns) :]):
        vectors = rows.vectors[:, number]
        columns[name] = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    return pa.table(columns, schema=schema)
