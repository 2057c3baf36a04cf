"""A store in memory that cannot be opened without its key: `keyed://folder` on fsspec."""

import json

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

OPTIONS = json.dumps({"key": "right"})
"""The value of --storage_options that opens the store."""


class KeyedFileSystem(MemoryFileSystem):
    """Needs the option `key`, as a store does that has no keys in environment variables."""

    protocol = "keyed"
    store = {}  # noqa: RUF012 - fsspec keeps a class's files here
    pseudo_dirs = [""]  # noqa: RUF012

    def __init__(self, key=None, **options):
        super().__init__(**options)
        if key != "right":
            raise ValueError("the store needs a key")

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("keyed://", "memory://", 1))


fsspec.register_implementation("keyed", KeyedFileSystem, clobber=True)


def write_to_store(path, data):
    """Writes a file to the store; its URL."""
    fsspec.filesystem("keyed", key="right").pipe_file(path, data)
    return f"keyed://{path}"
