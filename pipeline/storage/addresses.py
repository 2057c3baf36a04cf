"""Finds URLs that are written wrongly."""

import re

_REMOTE = "s3 s3a gs gcs hf az abfs abfss adl http https ftp sftp ssh hdfs webhdfs oss memory r2"
_ONE_SLASH = re.compile(rf"({'|'.join(_REMOTE.split())}):/(?!/)(.*)", re.DOTALL)


def refuse_one_slash(url: str) -> None:
    """Refuses a store's URL with one slash, such as s3:/bucket, which would be a local folder.

    Raises:
        ValueError: The URL has one slash; the message proposes it with two.
    """
    if found := _ONE_SLASH.fullmatch(url):
        meant = f"{found[1]}://{found[2]}"
        raise ValueError(f"{url}: has one slash behind {found[1]}:, expected two; give {meant}")
