"""Ranges of files read in the thread that asks, by less than the filesystem's own way; each makes one attempt.

s3fs passes every piece of a body
through an event loop of its own, five times the CPU a byte: threads that wait for a socket need
none. A local file takes three system calls here, in fsspec's opener more, and each lets other
threads in.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from fsspec.implementations.local import LocalFileSystem

_UNDERSTOOD = {"key", "secret", "token", "endpoint_url", "client_kwargs", "config_kwargs"}
_MAX_CONNECTIONS = (
    1024  # kept: more than anybody has threads. One is opened only when all the others are in use.
)
_REFUSED, _MISSING = 403, 404

RangeReader = Callable[[str, int, int], bytes]


def range_reader(filesystem: Any) -> RangeReader | None:
    """A function of path, first byte and one after the last; None where the filesystem itself has to do it."""
    if type(filesystem) is LocalFileSystem:
        return read_local if hasattr(os, "pread") else None
    return s3_range_reader(filesystem)


def read_local(path: str, start: int, stop: int) -> bytes:
    """Bytes start to stop - 1 of a local file, or as many as there are."""
    file = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(file, stop - start, start)
        while len(data) < stop - start and (
            more := os.pread(file, stop - start - len(data), start + len(data))
        ):
            data += more
    finally:
        os.close(file)
    return data


def s3_range_reader(filesystem: Any) -> RangeReader | None:
    """For S3; None for every other store, and for options that only s3fs knows."""
    protocol = (
        filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    )
    if protocol != "s3" or not set(filesystem.storage_options) <= _UNDERSTOOD:
        return None
    client = _make_client(filesystem.storage_options)

    def read(path: str, start: int, stop: int) -> bytes:
        from botocore.exceptions import ClientError

        bucket, _, key = path.partition("/")
        try:
            body = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")[
                "Body"
            ]
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == _MISSING:
                raise FileNotFoundError(path) from error
            if status == _REFUSED:
                raise PermissionError(str(error)) from error
            raise
        # A store or a proxy that knows no ranges sends the whole file: a byte too many tells that
        # as well as all of it. Closing ends a connection on which there is more to come; any other
        # is in the pool again.
        with contextlib.closing(body):
            data: bytes = body.read(stop - start + 1)
        return data

    return read


def _make_client(options: Mapping[str, Any]) -> Any:
    import botocore.config
    import botocore.session

    config = {"max_pool_connections": _MAX_CONNECTIONS, "retries": {"max_attempts": 0}}
    given = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "aws_session_token": "token",
    }
    chosen = {
        name: options[option] for name, option in given.items() if options.get(option) is not None
    }
    if options.get("endpoint_url") is not None:
        chosen["endpoint_url"] = options["endpoint_url"]
    settings = botocore.config.Config(**{**config, **(options.get("config_kwargs") or {})})
    arguments = {**chosen, **(options.get("client_kwargs") or {})}
    return botocore.session.get_session().create_client("s3", config=settings, **arguments)
