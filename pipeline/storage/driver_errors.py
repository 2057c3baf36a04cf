"""Classifies the errors of store drivers, and says what a user can do about each.

A driver is the package behind a kind of URL, such as s3fs for s3://. Drivers are optional, and each
raises its own classes of errors. So errors are told apart by the store's answer that they carry, by
errno, and by the name of their class. Any error that is not known to be final counts as temporary,
and the request is made again.
"""

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any

PAGE = "docs/object-stores.md"
"""The page that messages about credentials name."""
_REFUSED_STATUS = {401, 403}
"""Status codes of HTTP by which a store says that a request is not allowed."""
_FINAL_STATUS = {301, 302, 307, 308, 400, 402, 404, 405, 410, 411, 413, 414, 415, 416, 501, 505}
"""Status codes of HTTP that another attempt would meet again.

409 and 412 are not among them: a store answers so when two writers meet, which passes.
"""

_PASSING_CODES = {
    "BadDigest", "IncompleteBody", "InvalidDigest", "RequestTimeout", "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""Error codes of S3 for a body that was damaged or cut on its way; their status is 400."""

_REFUSED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
"""Error codes of S3 for a key that was valid once and has to be renewed; their status is 400."""

_REGION_CODES = {
    "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
    "Redirect", "TemporaryRedirect", "301", "307",
}  # fmt: skip
"""Error codes of S3 for a bucket that is in another region than the one that was asked."""

_FINAL_ERRNO = {
    errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP,
    errno.EMSGSIZE, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOSPC, errno.ENOSYS, errno.ENOTDIR,
    errno.EREMCHG, errno.EROFS,
}  # fmt: skip
"""Errors of the operating system that another attempt would meet again."""
_FINAL_TYPES = (
    ValueError, TypeError, AttributeError, NameError, NotImplementedError, AssertionError,
    ImportError, MemoryError, FileNotFoundError, FileExistsError, IsADirectoryError,
    NotADirectoryError,
)  # fmt: skip
"""Classes of errors about a wrong call, a missing file or package, or the lack of memory."""

# Classes of botocore and gcsfs for settings with which no request can be made.
_FINAL_NAMES = """
ParamValidationError ProfileNotFound ConfigNotFound ConfigParseError NoRegionError
InvalidRegionError InvalidS3AddressingStyleError UnsupportedS3ConfigurationError
UnknownSignatureVersionError NonRetryableError
"""
# Classes of botocore and google-auth for a machine without a key, or with one that has expired.
_REFUSAL_NAMES = "NoCredentialsError PartialCredentialsError DefaultCredentialsError RefreshError"
_CONNECTION_NAMES = "EndpointConnectionError ConnectTimeoutError ClientConnectorError SSLError"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, then the error that caused it, then the cause of that one, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_unresolved(error: BaseException) -> bool:
    """Returns whether an error says that the host name of a store cannot be resolved."""
    return any(isinstance(cause, socket.gaierror) for cause in causes(error))


def is_refusal(error: BaseException) -> bool:
    """Returns whether an error is about permission, so that valid credentials may cure it.

    Either the store did not allow the request, or the driver found no valid credentials to send.
    """
    status, code = _answer(error)
    if code in _REGION_CODES:
        return False
    is_refused = isinstance(error, PermissionError) or status in _REFUSED_STATUS
    # gcsfs raises a plain OSError for a 403.
    says_so = type(error) is OSError and str(error).startswith("Forbidden")
    return is_refused or says_so or code in _REFUSED_CODES or _is_one_of(_REFUSAL_NAMES, error)


def is_final(error: BaseException) -> bool:
    """Returns whether a request that raised this error would raise it again.

    Errors that are not known count as temporary.
    """
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
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error)):
        return True
    return isinstance(error, _FINAL_TYPES) or _is_one_of(_FINAL_NAMES, error)


def says_no_bucket(error: BaseException) -> bool:
    """Returns whether a store that speaks S3 answered that the bucket of a request is missing."""
    return _answer(error)[1] == "NoSuchBucket"


def says_no_endpoint(error: BaseException) -> bool:
    """Returns whether an error is botocore's about an `endpoint_url` that is not a URL."""
    return isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")


def describe(error: BaseException) -> str:
    """Returns the message of an error as one line, or its class if it has no message."""
    return " ".join(str(error).split()) or repr(error)


def find_cure(error: BaseException, filesystem: Any = None) -> str:
    """Says what a user can do about the error of a request, as "run the same command again ...".

    The text is put at the end of a message.

    Args:
        error: The error that the driver raised.
        filesystem: The fsspec filesystem that was asked, so that the text can name its endpoint.
    """
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
    if any(_is_one_of(_CONNECTION_NAMES, cause) for cause in causes(error)):
        flags = "endpoint_url in --storage_options, or AWS_ENDPOINT_URL"
        where = f"{endpoint} ({flags})" if endpoint else "the URL"
        return f"check {where}, and run the same command again when the store answers"
    if _answer(error)[1] == "400":  # the answer to a HEAD request, which has no room for a reason
        return f"check the region of the bucket, the URL and settings{asked}"
    if is_final(error):
        return f"check the URL and settings{asked}"
    return "run the same command again when the store answers"


def describe_endpoint(filesystem: Any) -> str:
    """Returns the URL or the name of the service that a filesystem sends its requests to.

    The result is empty for filesystems other than those of S3 and Google Cloud Storage.
    """
    kinds = _protocols(filesystem)
    if "s3" in kinds:
        try:
            return str(filesystem.s3.meta.endpoint_url)
        except Exception:  # noqa: BLE001 - the text is for a message about another error
            return str(filesystem.endpoint_url or "Amazon S3")
    if "gs" in kinds:
        return os.environ.get("STORAGE_EMULATOR_HOST", "Google Cloud Storage")
    return ""


def find_bucket(filesystem: Any, path: str) -> str | None:
    """Returns the bucket of a path, or None if the filesystem is neither S3's nor Google's."""
    has_buckets = not {"s3", "gs"}.isdisjoint(_protocols(filesystem))
    return str(filesystem.split_path(path)[0]) if has_buckets else None


def ask_for_bucket(filesystem: Any, bucket: str) -> None:
    """Asks a store by one small request whether a bucket exists.

    Raises:
        FileNotFoundError: The bucket does not exist. Any other error of the driver is raised too.
    """
    if "s3" in _protocols(filesystem):
        filesystem.call_s3("head_bucket", Bucket=bucket)
    else:
        filesystem.call("GET", f"b/{bucket}/o", maxResults=1)


def _protocols(filesystem: Any) -> set[str]:
    """Returns the schemes of URLs that a filesystem serves, such as {"s3", "s3a"}."""
    protocol = getattr(filesystem, "protocol", ())
    return {protocol} if isinstance(protocol, str) else {*protocol}


def _is_one_of(names: str, error: BaseException) -> bool:
    """Returns whether the class of an error, or one of its base classes, has one of some names.

    Args:
        names: Names of classes, separated by white space.
        error: The error.
    """
    return not {base.__name__ for base in type(error).__mro__}.isdisjoint(names.split())


def _answer(error: BaseException) -> tuple[int | None, str | None]:
    """Returns the store's answer that an error, or its direct cause, carries.

    Returns:
        The status code of HTTP, and the error code of S3 such as "NoSuchBucket". Each is None if
        the error does not carry it.
    """
    for carrier in (error, error.__cause__):
        response = getattr(carrier, "response", None)
        if isinstance(response, dict):  # botocore's error, which s3fs keeps as the cause
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response.get("Error", {}).get("Code"))
        values = (
            getattr(carrier, "code", None),
            getattr(carrier, "status", None),
            getattr(response, "status_code", None),
        )
        status_text = next((str(value) for value in values if value), "")
        if status_text.isdigit():
            return int(status_text), None
    return None, None
