"""Names the command that installs a missing package.

It lists the packages of this project's dependencies by their import names, and which extra of
pyproject.toml brings each.
"""

from pipeline.storage.driver_errors import causes

EXTRA_OF = {
    **dict.fromkeys(("apache_beam", "docstring_parser", "jsonschema", "pandas"), "pipeline"),
    **dict.fromkeys(("torch", "deepspeed", "safetensors"), "trainer"),
    **dict.fromkeys(("tensorboard", "isal"), "trainer"),
    "google_crc32c": "tfrecord",
}
"""Import name of a package -> the extra of pyproject.toml that brings it."""

_CORE = """
numpy pyarrow fsspec s3fs gcsfs tokenizers sentencex zstandard yaml tqdm fastwarc
resiliparse brotli jinja2 py3langid huggingface_hub webdataset
"""
CORE = tuple(_CORE.split())
"""Import names of the core dependencies, which every installation has."""


def describe_missing(error: BaseException | None) -> str | None:
    """Returns a message that names a missing package and the command that installs it.

    It returns None unless the error, or one of its causes, is about a missing package of this
    project's dependencies. Causes count because fsspec replaces the error of its driver.
    """
    for cause in causes(error):
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        if isinstance(cause, ModuleNotFoundError) and (package in EXTRA_OF or package in CORE):
            install = f"pip install -e '.[{EXTRA_OF.get(package, 'pipeline,trainer')}]'"
            found = f"the package {package} is not installed here"
            return f"{found}: in the checkout run `. scripts/environment.sh`, or {install}"
    return None
