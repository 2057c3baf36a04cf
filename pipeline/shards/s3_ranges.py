"""Ranges of S3 objects by botocore's own client, in the thread that asks: a fifth of the CPU that s3fs takes a byte.

May import the stdlib, and botocore inside the function that makes a client. s3fs passes every piece of a body through
an event loop of its own; threads that wait for a socket need none.
"""

from collections.abc import Callable, Mapping
from typing import Any

_UNDERSTOOD = {"key", "secret", "token", "endpoint_url", "client_kwargs", "config_kwargs"}
_MAX_CONNECTIONS = 64
_REFUSED, _MISSING = 403, 404

RangeReader = Callable[[str, int, int], bytes]


def s3_range_reader(filesystem: Any) -> RangeReader | None:
    """A function of path, first byte and one after the last; None where s3fs, or another driver, has to do it.

    That is so for every other store, and for options that only s3fs knows. The function makes one attempt.
    """
    protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    if protocol != "s3" or not set(filesystem.storage_options) <= _UNDERSTOOD:
        return None
    client = _make_client(filesystem.storage_options)

    def read(path: str, start: int, stop: int) -> bytes:
        from botocore.exceptions import ClientError

        bucket, _, key = path.partition("/")
        try:
            body = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")["Body"]
            data: bytes = body.read()
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == _MISSING:
                raise FileNotFoundError(path) from error
            if status == _REFUSED:
                raise PermissionError(str(error)) from error
            raise
        return data

    return read


def _make_client(options: Mapping[str, Any]) -> Any:
    import botocore.config
    import botocore.session

    config = {"max_pool_connections": _MAX_CONNECTIONS, "retries": {"max_attempts": 0}}
    given = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
    chosen = {name: options[option] for name, option in given.items() if options.get(option) is not None}
    if options.get("endpoint_url") is not None:
        chosen["endpoint_url"] = options["endpoint_url"]
    settings = botocore.config.Config(**{**config, **(options.get("config_kwargs") or {})})
    arguments = {**chosen, **(options.get("client_kwargs") or {})}
    return botocore.session.get_session().create_client("s3", config=settings, **arguments)
