"""Refuses URLs of stores that are misspelt in a way that would make them local paths."""

import re

_REMOTE = "s3 s3a gs gcs hf az abfs abfss adl http https ftp sftp ssh hdfs webhdfs oss memory r2"
_ONE_SLASH = re.compile(rf"({'|'.join(_REMOTE.split())}):/(?!/)(.*)", re.DOTALL)


def refuse_one_slash(url: str) -> None:
    """Refuses a store's URL with one slash, such as s3:/bucket.

    fsspec would take it for a local folder.

    Raises:
        ValueError: The URL has one slash; the message proposes the URL with two.
    """
    if match := _ONE_SLASH.fullmatch(url):
        meant = f"{match[1]}://{match[2]}"
        raise ValueError(f"{url}: has one slash behind {match[1]}:, expected two; give {meant}")
