"""URLs that are written wrongly."""

import re

_REMOTE = "s3 s3a gs gcs hf az abfs abfss adl http https ftp sftp ssh hdfs webhdfs oss memory r2"
_ONE_SLASH = re.compile(rf"({'|'.join(_REMOTE.split())}):/(?!/)(.*)", re.DOTALL)


def refuse_one_slash(url: str) -> None:
    """Refuses a URL of a store with one slash, which would be a folder of this machine.

    Raises:
        ValueError: The URL is so; the message has it with two slashes.
    """
    if found := _ONE_SLASH.fullmatch(url):
        meant = f"{found[1]}://{found[2]}"
        raise ValueError(f"{url}: has one slash behind {found[1]}:, expected two; give {meant}")
