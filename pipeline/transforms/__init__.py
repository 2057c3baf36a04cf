"""Offers transforms for your own Beam pipelines (docs/library.md)."""

from pipeline.documents import Document
from pipeline.documents.source import Source
from pipeline.transforms.instances import ReadInstances
from pipeline.transforms.tokens import WriteTokens, WrittenTokens, finish_build
from pipeline.transforms.webdataset import WriteToWebDataset

__all__ = (
    "Document", "ReadInstances", "Source", "WriteToWebDataset", "WriteTokens",
    "WrittenTokens", "finish_build",
)  # fmt: skip
