"""Lists the settings of `WriteTokens` and `finish_build` with their types.

They are those settings of a build that have a meaning if documents are in a PCollection.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, TypedDict, TypeVar

from pipeline.command_line.hints import hints_of
from pipeline.documents.source import Source, TextFormat, Wrapping
from pipeline.settings import BuildSettings

WITHOUT_MEANING = {
    "input": "the documents are those of a PCollection",
    "plan": "only `python -m pipeline build --plan` estimates a build",
}
"""Settings of a build that `WriteTokens` and `finish_build` refuse, and why."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class TokenSettings(TypedDict, total=False):
    """Types of the settings, for editors and type checkers.

    docs/commands.md says what each of them means. `sources` has the names that `Document.source`
    may have. `storage_options` may be a mapping, in which a text `${NAME}` stands for that
    environment variable of each worker.
    """

    sources: Sequence[Source]
    format: TextFormat
    text_field: str
    wrapping: Wrapping
    on_bad_document: Literal["stop", "skip", "keep"]
    language: str
    min_characters: int
    max_characters: int | None
    languages: Sequence[str]
    filter: Sequence[str]
    allow_code: bool
    near_duplicates: float | None
    exclude_documents_of: Sequence[str | os.PathLike[str]]
    task_files: Sequence[str | os.PathLike[str]]
    task_overlap: Literal["drop", "list"]
    extend: str | None
    vocab_size: int
    num_unused: int
    alphabet_size: int
    lower_case: bool
    words: Literal["bert", "whitespace"]
    vocab_entries: Literal["pieces", "words"]
    instances: Literal["segment-pairs", "doc-sentences", "single-sentence"]
    seq_lens: Sequence[int]
    passes: int
    seed: int
    short_seq_prob: float
    masked_lm_prob: float
    max_predictions: int | None
    whole_word_masking: bool
    nsp_balance: Literal["reference", "exact"]
    max_unknown: float
    max_random_next: float
    validation_fraction: float
    validation_tokens: int
    num_buckets: int | None
    tokens: str | os.PathLike[str] | None
    part_bytes: int
    exchange: Literal["auto", "files", "shuffle"]
    workers: int
    storage_options: Mapping[str, Any] | str | None


def list_settings(function: _Function) -> _Function:
    """Returns a function, after listing every setting in its signature in place of `**settings`.

    `help`, and Beam YAML's list of a transform's settings, then show their names, types and
    defaults.

    Args:
        function: Takes the settings as `**settings`. Its `__signature__` is set.
    """
    signature = inspect.signature(function)
    defaults = {
        setting.name: setting.default_factory()
        if setting.default_factory is not MISSING
        else setting.default
        for setting in fields(BuildSettings)
    }
    given = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    hints = hints_of(BuildSettings)
    listed = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name]
        )
        for name in TokenSettings.__annotations__
        if name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*given, *listed])  # type: ignore[attr-defined]
    return function
