"""Classifies the errors of store drivers: final ones, refusals, and what the user can do.

Drivers are optional, and each raises its own classes of errors. So errors are told apart by the
store's answer that they carry, by errno, and by the name of their class. Any error that is not
known to be final counts as temporary, and the request is made again.
"""

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any

PAGE = "docs/object-stores.md"
_REFUSED_STATUS = {401, 403}
_FINAL_STATUS = {301, 302, 307, 308, 400, 402, 404, 405, 410, 411, 413, 414, 415, 416, 501, 505}
"""Answers of HTTP that time does not change. 409 and 412 are for those who wrote too, and pass."""

_PASSING_CODES = {
    "BadDigest", "IncompleteBody", "InvalidDigest", "RequestTimeout", "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""Codes of S3 for a body that was damaged or cut on its way; their status is 400."""

_REFUSED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
"""Codes of S3 for a key that was good and has to be renewed; their status is 400 too."""

_REGION_CODES = {
    "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
    "Redirect", "TemporaryRedirect", "301", "307",
}  # fmt: skip

_FINAL_ERRNO = {
    errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP,
    errno.EMSGSIZE, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOSPC, errno.ENOSYS, errno.ENOTDIR,
    errno.EREMCHG, errno.EROFS,
}  # fmt: skip
_FINAL_TYPES = (
    ValueError, TypeError, AttributeError, NameError, NotImplementedError, AssertionError,
    ImportError, MemoryError, FileNotFoundError, FileExistsError, IsADirectoryError,
    NotADirectoryError,
)  # fmt: skip
"""What a caller did wrong, what is not there, and what no request mends."""

# Of botocore and gcsfs: settings that no request can be made with.
_FINAL_NAMES = """
ParamValidationError ProfileNotFound ConfigNotFound ConfigParseError NoRegionError
InvalidRegionError InvalidS3AddressingStyleError UnsupportedS3ConfigurationError
UnknownSignatureVersionError NonRetryableError
"""
# Of botocore and google-auth: this machine has no key, or one that is out.
_REFUSAL_NAMES = "NoCredentialsError PartialCredentialsError DefaultCredentialsError RefreshError"
_CONNECTION_NAMES = "EndpointConnectionError ConnectTimeoutError ClientConnectorError SSLError"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, what caused that."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_unresolved(error: BaseException) -> bool:
    """Whether the name of a store's machine is not known."""
    return any(isinstance(each, socket.gaierror) for each in causes(error))


def is_refusal(error: BaseException) -> bool:
    """Whether a store said that a request is not allowed, or its driver has no key to ask with."""
    status, code = _answer(error)
    if code in _REGION_CODES:
        return False
    is_refused = isinstance(error, PermissionError) or status in _REFUSED_STATUS
    says_so = type(error) is OSError and str(error).startswith("Forbidden")  # of gcsfs
    return is_refused or says_so or code in _REFUSED_CODES or _is_one_of(_REFUSAL_NAMES, error)


def is_final(error: BaseException) -> bool:
    """Returns whether another attempt would be in vain. Unknown errors count as temporary."""
    if type(error) is RuntimeError and error.__cause__:  # huggingface_hub wraps a thread's error
        return is_final(error.__cause__)
    status, code = _answer(error)
    if code in _PASSING_CODES:
        return False
    if code in _REGION_CODES:
        return True
    if status is not None:
        return status in _FINAL_STATUS
    if isinstance(error, OSError) and error.errno in _FINAL_ERRNO:
        return True
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes(error)):
        return True
    return isinstance(error, _FINAL_TYPES) or _is_one_of(_FINAL_NAMES, error)


def says_no_bucket(error: BaseException) -> bool:
    """Returns whether a store of S3's kind answered that the bucket of a request does not exist."""
    return _answer(error)[1] == "NoSuchBucket"


def says_no_endpoint(error: BaseException) -> bool:
    """Returns whether botocore said that the endpoint it was given is no URL."""
    return isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")


def describe(error: BaseException) -> str:
    """Returns the message of an error as one line, or its class if it has no message."""
    return " ".join(str(error).split()) or repr(error)


def find_cure(error: BaseException, filesystem: Any = None) -> str:
    """Returns what a user can do about an error of a request to a filesystem."""
    endpoint = describe_endpoint(filesystem)
    asked = f", which was asked at {endpoint}" if endpoint else ""
    if is_refusal(error):
        cure = "check the credentials and the URL"
        sources = f"; {PAGE} says where keys come from and which rights they need"
        return f"{cure}{asked}{sources}" if endpoint else cure
    if is_unresolved(error):
        return f"check the URL and that this machine has a network{asked}"
    if _answer(error)[1] in _REGION_CODES:
        names = 'AWS_DEFAULT_REGION, or {"client_kwargs": {"region_name": REGION}} as options'
        return f"give the region of the bucket by {names}{asked}"
    if any(_is_one_of(_CONNECTION_NAMES, each) for each in causes(error)):
        flags = "endpoint_url in --storage_options, or AWS_ENDPOINT_URL"
        where = f"{endpoint} ({flags})" if endpoint else "the URL"
        return f"check {where}, and run the same command again when the store answers"
    if _answer(error)[1] == "400":  # of a HEAD, whose answer has no room for more
        return f"check the region of the bucket, the URL and settings{asked}"
    if is_final(error):
        return f"check the URL and settings{asked}"
    return "run the same command again when the store answers"


def describe_endpoint(filesystem: Any) -> str:
    """Returns where a filesystem sends its requests; empty for filesystems without an endpoint."""
    kinds = _protocols(filesystem)
    if "s3" in kinds:
        try:
            return str(filesystem.s3.meta.endpoint_url)
        except Exception:  # noqa: BLE001 - asked for a message about another error
            return str(filesystem.endpoint_url or "Amazon S3")
    if "gs" in kinds:
        return os.environ.get("STORAGE_EMULATOR_HOST", "Google Cloud Storage")
    return ""


def find_bucket(filesystem: Any, path: str) -> str | None:
    """Returns the bucket of a path, or None if the filesystem has no buckets."""
    has_buckets = not {"s3", "gs"}.isdisjoint(_protocols(filesystem))
    return str(filesystem.split_path(path)[0]) if has_buckets else None


def ask_for_bucket(filesystem: Any, bucket: str) -> None:
    """Asks a store by one small request whether a bucket exists.

    Raises:
        FileNotFoundError: It does not.
    """
    if "s3" in _protocols(filesystem):
        filesystem.call_s3("head_bucket", Bucket=bucket)
    else:
        filesystem.call("GET", f"b/{bucket}/o", maxResults=1)


def _protocols(filesystem: Any) -> set[str]:
    protocol = getattr(filesystem, "protocol", ())
    return {protocol} if isinstance(protocol, str) else {*protocol}


def _is_one_of(names: str, error: BaseException) -> bool:
    return not {each.__name__ for each in type(error).__mro__}.isdisjoint(names.split())


def _answer(error: BaseException) -> tuple[int | None, str | None]:
    """Returns status and code of the store's answer that an error, or its direct cause, carries."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):  # of botocore, which s3fs keeps as the cause
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response.get("Error", {}).get("Code"))
        places = ((each, "code"), (each, "status"), (response, "status_code"))
        found = [str(value) for owner, name in places if (value := getattr(owner, name, None))]
        if found and found[0].isdigit():
            return int(found[0]), None
    return None, None
