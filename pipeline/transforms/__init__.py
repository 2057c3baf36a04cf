"""Offers transforms for your own Beam pipelines (docs/library.md)."""

from pipeline.documents import Document
from pipeline.documents.source import Source
from pipeline.transforms.tokens import ReadInstances, WriteTokens, finish_build
from pipeline.transforms.webdataset import WriteToWebDataset

__all__ = (
    "Document", "ReadInstances", "Source", "WriteToWebDataset", "WriteTokens", "finish_build",
)  # fmt: skip
