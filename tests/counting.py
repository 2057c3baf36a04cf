"""A store in memory that counts requests, by kind and file: `counted://folder` on fsspec."""

import threading
from collections import Counter

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class CountingFileSystem(MemoryFileSystem):
    """Counts what is asked of it from outside; what a request asks of itself is none."""

    protocol = "counted"
    store = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    requests = []  # noqa: RUF012 of all instances: fsspec makes one for each thread
    _inside = threading.local()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counted://", "memory://", 1))

    def count(self, kind, ending=""):
        """How many requests of a kind were made for files whose names end so."""
        return sum(found == kind and path.endswith(ending) for found, path in self.requests)

    def kinds(self):
        """Requests by kind."""
        return Counter(kind for kind, _ in self.requests)


def _counted(kind):
    def request(self, path, *arguments, **options):
        if getattr(self._inside, "is_asked", False):
            return getattr(MemoryFileSystem, kind)(self, path, *arguments, **options)
        self.requests.append(
            (kind, options.get("rpath", arguments[0] if kind == "put_file" else path))
        )
        self._inside.is_asked = True
        try:
            return getattr(MemoryFileSystem, kind)(self, path, *arguments, **options)
        finally:
            self._inside.is_asked = False

    return request


for _kind in (
    "cat_file",
    "pipe_file",
    "put_file",
    "rm_file",
    "info",
    "size",
    "exists",
    "isfile",
    "isdir",
    "find",
    "ls",
):
    setattr(CountingFileSystem, _kind, _counted(_kind))
fsspec.register_implementation("counted", CountingFileSystem, clobber=True)


def empty_store():
    """The store, without files and with nothing counted."""
    store = fsspec.filesystem("counted")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    store.requests.clear()
    return store
