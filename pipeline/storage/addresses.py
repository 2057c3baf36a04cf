"""Refuses misspelt URLs of stores, which would be taken for other places than what was meant."""

import posixpath
import re

_STORES = "s3 s3a gs gcs hf az abfs abfss adl ftp sftp ssh hdfs webhdfs oss memory r2"
_WEB = "http https"
_LOCAL = "file local"
_ONE_SLASH = re.compile(
    rf"({'|'.join(f'{_STORES} {_WEB}'.split())}):/(?!/)(.*)", re.DOTALL | re.IGNORECASE
)
_KNOWN_SCHEME = re.compile(
    rf"({'|'.join(f'{_STORES} {_WEB} {_LOCAL}'.split())}):(/.*)", re.DOTALL | re.IGNORECASE
)
_IN_A_STORE = re.compile(rf"(?:{'|'.join(_STORES.split())})://(.*)", re.DOTALL)


def refuse_misspelt(url: str) -> None:
    """Refuses the URL of a store that another place would be taken for.

    - `s3:/bucket` has only one slash. It would be the path of a local folder.
    - `S3://bucket` has a scheme in upper case, which fsspec does not know.
    - `s3://bucket/a/../b` has a part `..` or `.`. A store would take it for a part of the key, so
      the objects would be inside the folder `a`, which then could not be listed any more.

    Args:
        url: A URL, or any other text, which is not refused.

    Raises:
        ValueError: The URL is misspelt. The message proposes another one.
    """
    match = _ONE_SLASH.fullmatch(url)
    if match:
        meant = f"{match[1].lower()}://{match[2]}"
        raise ValueError(f"{url}: has one slash behind {match[1]}:, expected two; give {meant}")

    match = _KNOWN_SCHEME.fullmatch(url)
    if match and match[1] != match[1].lower():
        meant = f"{match[1].lower()}:{match[2]}"
        raise ValueError(f"{url}: has the scheme {match[1]}, expected small letters; give {meant}")

    match = _IN_A_STORE.fullmatch(url)
    dots = {".", ".."} & set(match[1].split("/")) if match else set()
    if match and dots:
        scheme = url.partition("://")[0]
        meant = f"{scheme}://{posixpath.normpath(match[1])}"
        found = f"has the part {max(dots)!r}, which a store takes for a part of the key"
        raise ValueError(f"{url}: {found}; give {meant}")
