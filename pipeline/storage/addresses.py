"""Refuses misspelt URLs of stores, such as s3:/bucket, which would be taken for local paths."""

import re

_REMOTE = "s3 s3a gs gcs hf az abfs abfss adl http https ftp sftp ssh hdfs webhdfs oss memory r2"
_ONE_SLASH = re.compile(rf"({'|'.join(_REMOTE.split())}):/(?!/)(.*)", re.DOTALL)


def refuse_one_slash(url: str) -> None:
    """Refuses the URL of a store that has only one slash after its scheme, such as s3:/bucket.

    fsspec would take the URL for the path of a local folder.

    Raises:
        ValueError: The URL has one slash. The message proposes the URL with two.
    """
    if match := _ONE_SLASH.fullmatch(url):
        meant = f"{match[1]}://{match[2]}"
        raise ValueError(f"{url}: has one slash behind {match[1]}:, expected two; give {meant}")
