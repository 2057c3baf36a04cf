"""Checks settings before torch and DeepSpeed are imported, so that mistakes are reported at once.

The import alone takes seconds. Values that make no sense are refused on every rank. For files and
folders there is another rule: they are looked up only if the command has a single process. With
several processes, a folder may be on some nodes only, and the ranks first have to join to agree on
what is wrong. Everything is checked again when it is used.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.shards.document_list import read_document_list
from pipeline.storage.folder import parse_storage_options
from pipeline.storage.hub import is_hub_name
from pipeline.storage.local import refuse_unwritable
from trainer.conversion.names import expected_files
from trainer.finetune.settings import (
    FinetuneSettings,
    PredictSettings,
    check_settings,
    check_task,
)
from trainer.forget.settings import ForgetSettings
from trainer.inference.settings import (
    EvaluateSettings,
    ExportSettings,
    FeaturesSettings,
    FillMaskSettings,
)
from trainer.settings import PretrainSettings, resolve

_VOCAB_SIZE = 30_522
"""Stands for the size of the dataset's vocabulary, which is not known yet."""
_RUN = re.compile(r"(?P<folder>.+?)(@\d+)?(@mean\d+)?", re.DOTALL)


def check_pretrain(settings: PretrainSettings) -> None:
    """Refuses settings that are wrong for any dataset, and files that do not exist.

    Raises:
        ValueError: A setting or the list of `leave_out` is wrong.
        FileNotFoundError: The dataset, the minimal pairs, the model of `init_from`, the run of
            `continue_from` or the list of `leave_out` does not exist.
    """
    resolve(settings).model_config(_VOCAB_SIZE)
    if _has_several_ranks():
        return
    check_named_files(settings)
    if not settings.follow:
        _check_data(settings.data)


def check_named_files(settings: PretrainSettings) -> None:
    """Refuses files of a run that do not exist on this machine, except for its datasets.

    A run that is continued no longer needs some of them, which are then not looked up.

    Raises:
        ValueError: The list of `leave_out` is wrong.
        FileNotFoundError: The minimal pairs, the model of `init_from`, the run of `continue_from`
            or the list of `leave_out` does not exist.
    """
    _check_pairs(settings.validation.pairs)
    is_new = not (Path(settings.output) / "run.json").exists() and settings.checkpoint.url is None
    if is_new and settings.init_from is not None:
        _check_model(settings.init_from)
    if is_new and settings.continue_from is not None:
        _check_run(settings.continue_from)
    if is_new and settings.leave_out is not None:
        options = parse_storage_options(settings.storage_options)
        read_document_list(settings.leave_out, options)


def check_forget(settings: ForgetSettings) -> None:
    """Refuses a run that does not exist, and a list that names no documents.

    Raises:
        ValueError: The list is wrong.
        FileNotFoundError: There is no such folder, or no such list.
    """
    if _has_several_ranks():
        return
    _check_run(settings.run)
    if _is_local(settings.documents):
        read_document_list(settings.documents)


def check_finetune(settings: FinetuneSettings) -> None:
    """Refuses an unknown task, settings that are wrong, and a file or model that does not exist.

    Raises:
        ValueError: The task is unknown, or a setting is wrong.
        FileNotFoundError: A file of the dataset or the model does not exist.
    """
    check_settings(settings)
    check_task(settings.task)
    if _has_several_ranks():
        return
    for flag in ("train", "validation", "test"):
        _check_files(f"--{flag}", getattr(settings, flag))
    _check_model(settings.model)


def check_predict(settings: PredictSettings) -> None:
    """Refuses an unknown task, and a file or model that does not exist.

    Raises:
        ValueError: The task is unknown.
        FileNotFoundError: A file or the model does not exist.
    """
    if settings.task is not None:
        check_task(settings.task)
    if not _has_several_ranks():
        _check_files("--input", settings.input)
        _check_model(settings.model)


def check_export(settings: ExportSettings) -> None:
    """Refuses to export a run whose folder does not exist. The files in it are not looked at.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    _check_run(settings.run)


def check_fill_mask(settings: FillMaskSettings) -> None:
    """Refuses a model that does not exist.

    Raises:
        FileNotFoundError: There is no such model.
    """
    _check_model(settings.model)


def check_evaluate(settings: EvaluateSettings) -> None:
    """Refuses a dataset, minimal pairs or a model that do not exist, and an output in a bad place.

    Raises:
        FileNotFoundError: The dataset, a file of pairs or the model does not exist.
        ValueError: The output is a file of the pairs, a device or a pipe.
        OSError: The output cannot be written.
    """
    if settings.data is not None:
        _check_data([settings.data])
    pair_files = _check_pairs(settings.pairs)
    _check_model(settings.model)
    if settings.output is not None:
        _check_output(settings.output, pair_files)


def check_features(settings: FeaturesSettings) -> None:
    """Refuses an input file or a model that does not exist, and an output in a bad place.

    Raises:
        FileNotFoundError: The file or the model does not exist.
        ValueError: The output is the input file, a device or a pipe.
        OSError: The output cannot be written.
    """
    _check_files("--input", [settings.input])
    _check_model(settings.model)
    _check_output(settings.output, [settings.input])


def _has_several_ranks() -> bool:
    """Returns whether a launcher has started several processes for this command."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _check_data(entries: Iterable[str]) -> None:
    """Refuses local folders that are no datasets, because they have no manifest.

    The error is the one of `open_dataset`, which says what the folder holds instead.

    Args:
        entries: The datasets as `--data` names them: [NAME=]URL[:WEIGHT]. URLs of object stores are
            not looked up.

    Raises:
        FileNotFoundError: A folder has no manifest.
    """
    from pipeline.shards.dataset import open_dataset
    from pipeline.shards.manifest import MANIFEST
    from trainer.stream.order.source import parse_entries

    for _, url, _ in parse_entries(list(entries)):
        if _is_local(url) and not (Path(url) / MANIFEST).exists():
            open_dataset(url)


def _check_run(name: str) -> None:
    """Refuses a run whose folder does not exist. What the folder holds is not looked up.

    Args:
        name: A path, RUN@STEP or a URL. URLs are not looked up.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    folder = _folder_of(name)
    if _is_absent(folder):
        cure = "give the --output of a pretrain command"
        raise FileNotFoundError(f"{folder}: found no folder; {cure}")


def _check_files(flag: str, paths: Iterable[str]) -> None:
    """Refuses local files that do not exist.

    Args:
        flag: The flag that names the files, for the message.
        paths: Paths or URLs; URLs are not looked up.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    for path in paths:
        if _is_absent(path):
            raise FileNotFoundError(f"{path}: found no file; {flag} names files that are there")


def _check_output(output: str, sources: Iterable[str]) -> None:
    """Refuses a local file that cannot be written, or that would replace what is read.

    Args:
        output: The path or URL of the file; URLs are not looked up.
        sources: Paths or URLs of the files that are read.

    Raises:
        ValueError: The output is a file that is read, a device or a pipe.
        OSError: The output cannot be written.
    """
    if not _is_local(output):
        return
    path = Path(output)
    for source in filter(_is_local, sources):
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise ValueError(f"--output {output} is a file that is read; give another name")
    refuse_unwritable(path)


def _check_pairs(name: str | None) -> list[str]:
    """Refuses minimal pairs that are in no local file, and returns the local files of the others.

    Args:
        name: A path, a folder or a glob; None if no pairs were given. A URL is not looked up.

    Raises:
        FileNotFoundError: There is no such file.
    """
    from trainer.minimal_pairs.read import list_pair_files

    if name is not None and _is_local(name):
        return list_pair_files(name)
    return []


def _check_model(name: str) -> None:
    """Refuses a model that is in no local folder and cannot be on the Hugging Face Hub.

    Args:
        name: A path, RUN@STEP, a URL or a name on the Hub. URLs and the Hub are not looked up.

    Raises:
        FileNotFoundError: There is no such model.
    """
    folder = _folder_of(name)
    if _is_absent(folder) and not is_hub_name(name):
        raise FileNotFoundError(f"{folder}: found no folder; {expected_files()}")


def _folder_of(name: str) -> str:
    """Returns the folder of a model or run: RUN for a name such as RUN@STEP or RUN@mean5.

    If a file or folder has exactly the given name, with its @, the name itself is returned.

    Args:
        name: A folder, RUN@STEP or RUN@mean5.
    """
    match = _RUN.fullmatch(name)
    return name if Path(name).exists() or match is None else match["folder"]


def _is_local(path: str) -> bool:
    """Returns whether a path is no URL, not even a chained one such as `zip::FILE`."""
    return "://" not in path and "::" not in path


def _is_absent(path: str) -> bool:
    """Returns whether a path is local and does not exist; a URL is never called absent here."""
    return _is_local(path) and not Path(path).exists()
