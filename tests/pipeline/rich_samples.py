"""Samples of every kind that docs/library.md names, written by a program of their own."""

import io
import json
import pickle
import tarfile

import numpy as np

WRITE_RICH_SAMPLES = """
import apache_beam as beam
import numpy as np
from PIL import Image

from pipeline.transforms import WriteToWebDataset

pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
sample = {
    "__key__": "a",
    "cls": 3,
    "json": {"lang": "en", "row": beam.Row(score=1)},
    "npy": np.arange(6),
    "npz": {"x": np.arange(3)},
    "png": pixels,
    "other.png": Image.fromarray(pixels),
    "pyd": {1, 2},
    "txt.gz": "packed",
}
with beam.Pipeline() as pipeline:
    pipeline | beam.Create([sample]) | WriteToWebDataset("rich")
"""


def check_rich_samples(folder):
    """Compares what the program wrote with what it was given."""
    with tarfile.open(folder / "shard-000000.tar") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    assert found["a.cls"] == b"3"
    assert json.loads(found["a.json"]) == {"lang": "en", "row": {"score": 1}}
    assert np.load(io.BytesIO(found["a.npy"])).tolist() == list(range(6))
    assert np.load(io.BytesIO(found["a.npz"]))["x"].tolist() == [0, 1, 2]
    assert found["a.png"] == found["a.other.png"]
    assert found["a.png"].startswith(b"\x89PNG")
    assert pickle.loads(found["a.pyd"]) == {1, 2}
    assert len(found) == 8
