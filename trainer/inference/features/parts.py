"""Files of features: parts that appear whole or not at all, each with what it holds.

    part-00000.parquet   a row each, in order: text, source, line, name, then token, piece, start,
    end of a token or
                         word, word of a word, and unless as npy the vectors, a fixed_size_list a
                         column
    part-00000.npy       the vectors as [rows, F], or [rows, C, F] of several columns; there before
    its .parquet

The .parquet's metadata (key "beambert", JSON) has the counts and the hash of the texts that the
part was made of.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.storage.folder import Folder
from trainer.inference.features.extract import FeatureRows
from trainer.inference.features.settings import FeaturesSettings, Rows

METADATA = b"beambert"


@dataclass(frozen=True)
class Layout:
    """What the columns of every part are.

    Attributes:
        rows: What a row stands for.
        columns: Names of the vectors' columns.
        width: Values of a vector.
        dtype: Number type of the vectors, a name that numpy knows.
        as_npy: Whether vectors are in files of their own.
        has_names: Whether there is a column for --id_field.
    """

    rows: Rows
    columns: tuple[str, ...]
    width: int
    dtype: str
    as_npy: bool
    has_names: bool

    @classmethod
    def of(cls, settings: FeaturesSettings, columns: Iterable[str], width: int) -> "Layout":
        """The layout that the settings ask for."""
        as_npy = settings.output_format == "npy"
        return cls(
            settings.rows,
            tuple(columns),
            width,
            settings.dtype,
            as_npy,
            settings.id_field is not None,
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the .parquet files."""
        fields = [
            ("text", pa.int64()),
            ("source", pa.dictionary(pa.int32(), pa.string())),
            ("line", pa.int64()),
        ]
        fields += [("name", pa.string())] if self.has_names else []
        if self.rows == "word":
            fields += [("word", pa.int32()), ("form", pa.string())]
        if self.rows in ("token", "word"):
            fields += [
                ("token", pa.int32()),
                ("piece", pa.string()),
                ("start", pa.int32()),
                ("end", pa.int32()),
            ]
        vector = pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)), self.width)
        fields += [] if self.as_npy else [(name, vector) for name in self.columns]
        return pa.schema(fields)

    def table(self, rows: FeatureRows) -> pa.Table:
        """Rows as a table of that schema."""
        origins = [text.origin for text in rows.texts]
        columns: dict[str, Any] = {
            "text": [origin.number for origin in origins],
            "source": pa.array(
                [origin.source for origin in origins], pa.string()
            ).dictionary_encode(),
            "line": [origin.line for origin in origins],
            "name": [origin.name for origin in origins],
        }
        if self.rows in ("token", "word"):
            is_word = self.rows == "word"
            tokens = [
                text.first_pieces[index] if is_word else index
                for text, index in zip(rows.texts, rows.index, strict=True)
            ]
            offsets = [text.offsets[token] for text, token in zip(rows.texts, tokens, strict=True)]
            columns |= {
                "token": tokens,
                "piece": [
                    text.pieces[token] for text, token in zip(rows.texts, tokens, strict=True)
                ],
                "start": [start for start, _ in offsets],
                "end": [end for _, end in offsets],
            }
            if is_word:
                columns["word"] = rows.index
                columns["form"] = [
                    (text.origin.words or ())[index]
                    for text, index in zip(rows.texts, rows.index, strict=True)
                ]
        for number, name in enumerate(self.columns):
            flat = np.ascontiguousarray(self.cast(rows.vectors[:, number])).reshape(-1)
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), self.width)
        return pa.table(
            [_as_type(columns[field.name], field.type) for field in self.schema], schema=self.schema
        )

    def cast(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Vectors in the dtype that is written.

        Raises:
            ValueError: A value is too large for float16.
        """
        cast = vectors.astype(self.dtype)
        if not np.isfinite(cast).all() and np.isfinite(vectors).all():
            raise ValueError(
                f"a value of {np.abs(vectors).max():.0f} does not fit {self.dtype}; give --dtype float32"
            )
        return cast


def write_part(
    folder: Folder,
    name: str,
    layout: Layout,
    batches: Iterable[FeatureRows],
    counted: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Writes a part, batch by batch, to a temporary file and then whole to its place.

    Args:
        folder: The folder of all parts.
        name: Name of the part, without a suffix.
        layout: The part's columns.
        batches: Rows of the part.
        counted: Asked for the part's JSON values when the batches are at their end.

    Returns:
        What its metadata says.
    """
    with tempfile.TemporaryDirectory(prefix="beambert-") as temporary:
        table_file, array_file = Path(temporary, f"{name}.parquet"), Path(temporary, f"{name}.npy")
        num_rows = 0
        with pq.ParquetWriter(table_file, layout.schema) as writer, array_file.open("wb") as arrays:
            _write_npy_header(arrays, layout, 0)
            for batch in batches:
                num_rows += len(batch.index)
                writer.write_table(layout.table(batch))
                if layout.as_npy:
                    arrays.write(np.ascontiguousarray(layout.cast(batch.vectors)).tobytes())
            facts = {**counted(), "rows": num_rows}
            writer.add_key_value_metadata({METADATA: json.dumps(facts).encode()})
            _write_npy_header(arrays, layout, num_rows)
        for file in [array_file] * layout.as_npy + [table_file]:
            folder.write(file.name, file)
    return facts


def read_part_facts(folder: Folder, name: str) -> dict[str, Any]:
    """What a part's metadata says."""
    with folder.open(name) as file:
        metadata = pq.read_metadata(file).metadata or {}
    facts: dict[str, Any] = json.loads(metadata[METADATA])
    return facts


def _write_npy_header(file: Any, layout: Layout, num_rows: int) -> None:
    """The header of so many rows; numpy leaves room in it for their number to grow."""
    shape = (
        (num_rows, layout.width)
        if len(layout.columns) == 1
        else (num_rows, len(layout.columns), layout.width)
    )
    file.seek(0)
    described = {"descr": np.dtype(layout.dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)


def _as_type(values: Any, kind: pa.DataType) -> Any:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
