"""Checks the claims of a certificate that need no training."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipeline.storage.local import scratch_folder
from pipeline.storage.terminal import say
from trainer.ask.answers import Record
from trainer.ask.asked_run import opened_run
from trainer.ask.reads import find_all_reads
from trainer.checkpoints.files import describe_file, step_of
from trainer.checkpoints.store import CHECKPOINTS
from trainer.forget.certificate import hash_id, known_limits
from trainer.forget.plan import OldRun, find_first_step
from trainer.runs.json_files import parse_object, wrong_types
from trainer.runs.launch import SOFTWARE, software_versions
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.source import Mixture, open_mixture

Verdict = Literal["held", "not held", "cannot be checked"]

_REMEDY = "give the certificate.json that forget wrote into the folder of the new run"
_SHAPES: dict[str, Any] = {
    "documents_sha256": [str],
    "datasets": [{"name": str, "root_hash": str, "settings_hash": str}],
    "launches": [{"world_size": int}],
    "software": {},
    "checkpoint": str,
    "files": {},
    "new_run": str,
    "old_run": str,
    "num_documents": int,
    "steps_made": int,
    "not_covered": [str],
}
_OPTIONAL = {"first_step": int, "from_checkpoint": str}
"""The keys whose values may be null, with the types of other values."""
_NEVER_EMPTY = ("documents_sha256", "datasets", "launches", "files")
"""The keys whose values are never empty. Without them there would be nothing to compare."""


@dataclass(frozen=True)
class Claim:
    """One claim of a certificate, and whether it is right.

    Attributes:
        claim: The claim in words.
        verdict: Whether the claim was found to be right or wrong, or could not be checked.
        why: What was looked at and found.
    """

    claim: str
    verdict: Verdict
    why: str

    def to_record(self) -> Record:
        """Returns the claim as a record of an answer."""
        return {"kind": "claim", **asdict(self)}


def judge(claim: str, *, is_right: bool, why: str) -> Claim:
    """Returns a claim that was found to be right or wrong."""
    return Claim(claim, "held" if is_right else "not held", why)


def read_certificate(name: str) -> dict[str, Any]:
    """Returns the content of a certificate.json.

    Args:
        name: The path of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no certificate.
    """
    certificate = parse_object(Path(name).read_bytes(), name, _REMEDY)
    lacking = [key for key in (*_SHAPES, *_OPTIONAL) if key not in certificate]
    if lacking:
        raise ValueError(f"{name} is no certificate: it lacks {', '.join(lacking)}; {_REMEDY}")
    shapes = {
        **_SHAPES,
        **{key: _OPTIONAL[key] for key in _OPTIONAL if certificate[key] is not None},
    }
    for key, shape in shapes.items():
        wrong_type = next(wrong_types(certificate[key], shape, key), None)
        if wrong_type:
            raise ValueError(f"{name} is no certificate: {wrong_type}; {_REMEDY}")
    empty = [key for key in _NEVER_EMPTY if not certificate[key]]
    if empty:
        raise ValueError(f"{name} is no certificate: {', '.join(empty)} is empty; {_REMEDY}")
    return certificate


@dataclass(frozen=True)
class Inquiry:
    """What the claims of a certificate are compared with.

    Attributes:
        certificate: The content of certificate.json.
        run: The run that the certificate is about.
        name: The folder or URL of the run.
        data: Where the datasets of the run are now; empty if none was moved.
        options: Options of the filesystems of the run and the datasets.
        cache_dir: The folder for the index from documents to instances; None for the default.
    """

    certificate: Mapping[str, Any]
    run: OldRun
    name: str
    data: Sequence[str]
    options: Mapping[str, Any] | None
    cache_dir: str | None

    @property
    def forgotten(self) -> tuple[int, ...]:
        """The newly forgotten documents, which are the last of the run's list."""
        return self.run.left_out[self._num_before :]

    @property
    def before(self) -> tuple[int, ...]:
        """The documents that the old run left out already."""
        return self.run.left_out[: self._num_before]

    @property
    def _num_before(self) -> int:
        return max(0, len(self.run.left_out) - int(self.certificate["num_documents"]))


def check_claims(inquiry: Inquiry) -> list[Claim]:
    """Returns all claims of a certificate that can be checked without training.

    Args:
        inquiry: The certificate and the run.

    Raises:
        ValueError: A file of the run is damaged.
    """
    claims = [_check_documents(inquiry), *_check_files(inquiry), _check_software(inquiry)]
    mixture, of_datasets = _check_datasets(inquiry)
    claims += [_check_record(inquiry), _check_limits(inquiry, mixture)]
    return [*of_datasets, *claims, *_check_stream(inquiry, mixture)]


def _check_documents(inquiry: Inquiry) -> Claim:
    """Checks that the hashed ids of the certificate are those of the run's list."""
    expected = sorted(inquiry.certificate["documents_sha256"])
    actual = sorted(map(hash_id, inquiry.forgotten))
    num_same = len({*expected} & {*actual})
    return judge(
        f"{len(expected):,} document(s) were forgotten, whose ids have these hashes",
        is_right=expected == actual,
        why=f"{num_same:,} of them are among the last {len(actual):,} of left_out.txt",
    )


def _check_record(inquiry: Inquiry) -> Claim:
    """Compares what the certificate says of the forgetting and its launches with run.json."""
    certificate = inquiry.certificate
    facts = inquiry.run.facts
    text = "the numbers, the launches and the commit are those that the run has recorded"
    if "forgot" not in facts:
        return Claim(text, "not held", "run.json has no forgetting: `forget` did not make the run")
    recorded = {key: value for key, value in facts["forgot"].items() if key != "list"}
    num_launches = len(certificate["launches"])
    recorded["launches"] = [
        {"world_size": launch["world_size"], "time": launch["time"]}
        for launch in facts["launches"][:num_launches]
    ]
    recorded["git_commit"] = facts["launches"][-1]["git_commit"]
    other = [key for key, value in recorded.items() if certificate.get(key) != value]
    return judge(
        text,
        is_right=not other,
        why=f"run.json has another {', '.join(other)}" if other else "run.json has the same",
    )


def _check_limits(inquiry: Inquiry, mixture: Mixture | None) -> Claim:
    """Checks that the certificate says all that the forgetting does not cover.

    What it says of near-duplicates is not checked, because documents would have to be compared.
    """
    text = "all that the forgetting does not cover is said"
    if mixture is None:
        return Claim(text, "cannot be checked", "a dataset is gone or another one")
    limits = known_limits(mixture, inquiry.run.facts)
    missing = [limit for limit in limits if limit not in inquiry.certificate["not_covered"]]
    return judge(
        text,
        is_right=not missing,
        why=f"it does not say: {missing[0]}" if missing else f"it says {len(limits)} things",
    )


def _check_datasets(inquiry: Inquiry) -> tuple[Mixture | None, list[Claim]]:
    """Compares the hashes of the datasets with those of the certificate.

    Returns:
        The datasets, or None if one is gone or is another one; and the claims.
    """
    entries = inquiry.data or inquiry.run.settings.data
    claimed = inquiry.certificate["datasets"]
    texts = [
        f"dataset {dataset['name']} has the root hash {dataset['root_hash'][:16]}"
        for dataset in claimed
    ]
    try:
        mixture = open_mixture(entries, inquiry.options)
    except FileNotFoundError as error:
        why = f"{error}; if it was moved, --data says where it is"
        return None, [Claim(text, "cannot be checked", why) for text in texts]
    if len(mixture) != len(claimed):
        why = f"the run has {len(mixture)} dataset(s)"
        return None, [Claim(text, "not held", why) for text in texts]
    claims = []
    for text, dataset, source in zip(texts, claimed, mixture, strict=True):
        manifest = source.dataset.manifest
        hashes = manifest.root_hash, manifest.settings_hash
        is_right = hashes == (dataset["root_hash"], dataset["settings_hash"])
        verified = f"`python -m pipeline verify {source.dataset.url}` computes it from the blocks"
        found = f"its manifest.json says {manifest.root_hash[:16]}"
        if not is_right:
            found += f", with the settings hash {manifest.settings_hash[:16]}"
        claims.append(judge(text, is_right=is_right, why=f"{found}; {verified}"))
    return mixture if all(claim.verdict == "held" for claim in claims) else None, claims


def _check_stream(inquiry: Inquiry, mixture: Mixture | None) -> list[Claim]:
    """Checks the claims about which steps have read the documents.

    Args:
        inquiry: The certificate and the run.
        mixture: The datasets; None if they are not those of the certificate.
    """
    texts = [*_first_step_texts(inquiry.certificate), "no step of the new run has read one of them"]
    if mixture is None:
        why = "the datasets are not those of the certificate"
        return [Claim(text, "cannot be checked", why) for text in texts]
    return [*_check_first_step(inquiry, mixture), _check_reads(inquiry, texts[-1])]


def _first_step_texts(certificate: Mapping[str, Any]) -> tuple[str, str]:
    """Returns in words the claims about the first step of the old run, and its checkpoint."""
    first = certificate["first_step"]
    text = f"none of the first {certificate['steps_made']:,} steps of the old run had read one"
    if first is not None:
        text = f"the first step of the old run that had read one is {first:,}"
    beginning = certificate["from_checkpoint"] or "the beginning"
    return text, f"the new run goes on from {beginning}, before any of them was read"


def _check_first_step(inquiry: Inquiry, mixture: Mixture) -> Iterator[Claim]:
    """Finds the first step that had read a document, and compares it with the certificate.

    Up to that step the old run and the new run are the same, so the new run and the index say it.

    Args:
        inquiry: The certificate and the run.
        mixture: The datasets of the run.
    """
    certificate = inquiry.certificate
    run = inquiry.run
    newest = [*run.positions][-1]
    old = replace(run, left_out=inquiry.before, positions={newest: run.newest})
    lengths = [phase.seq_len for phase in run.settings.phases]
    documents = LeftOutDocuments(run.left_out, inquiry.cache_dir).look_into(mixture, lengths)
    found = find_first_step(old, mixture, documents) if inquiry.forgotten else None
    made = int(certificate["steps_made"])
    is_within = found is not None and found <= made
    first = found if is_within else None
    text, from_text = _first_step_texts(certificate)
    by_order = "by the order of the datasets"
    said = f"no step up to {min(made, run.newest.step):,} reads one {by_order}"
    if first is not None:
        said = f"step {first:,} is the first that reads one {by_order}"
    is_right = first == certificate["first_step"]
    if is_right and first is None and run.newest.step < made:
        yield Claim(text, "cannot be checked", f"{said}, and the new run has no further steps")
    else:
        yield judge(text, is_right=is_right, why=said)
    checkpoint = certificate["from_checkpoint"]
    step = 0 if checkpoint is None else step_of(checkpoint)
    yield judge(from_text, is_right=first is None or step < first, why=said)


def _check_reads(inquiry: Inquiry, text: str) -> Claim:
    """Checks that no step of the new run has read one of the documents.

    metrics.jsonl has the position at which each step begins. A step that had read a listed instance
    would end before the place where the next one begins.

    Args:
        inquiry: The certificate and the run.
        text: The claim in words.
    """
    aside = partial(say, is_aside=True)
    try:
        with opened_run(inquiry.name, inquiry.data, inquiry.options, inquiry.cache_dir) as asked:
            documents = dict.fromkeys(range(len(asked.mixture)), inquiry.forgotten)
            reads, num_instances = find_all_reads(asked, documents, inquiry.cache_dir, aside)
            num_steps = len(asked.made)
    except ValueError as error:
        return Claim(text, "not held", str(error))
    own_reads = [read for found in reads.values() for read in found if read.step is not None]
    held = f"{num_instances.total():,} instances hold one"
    if own_reads:
        first = min(read.step or 0 for read in own_reads)
        return Claim(text, "not held", f"{held}, and step {first:,} has read one")
    why = (
        f"{held}; metrics.jsonl has {num_steps:,} steps, and their positions leave all of them out"
    )
    return Claim(text, "held", why)


def _check_software(inquiry: Inquiry) -> Claim:
    """Compares the software of the certificate with what is installed here."""
    claimed = inquiry.certificate["software"]
    text = "the new run was trained with this software: " + ", ".join(
        f"{name} {version}" for name, version in claimed.items()
    )
    differences = other_software(inquiry.certificate)
    if not differences:
        return Claim(text, "held", "the same is installed here")
    return Claim(text, "cannot be checked", f"installed here: {', '.join(differences)}")


def other_software(certificate: Mapping[str, Any]) -> list[str]:
    """Returns the software that is installed here in other versions than the certificate names."""
    here = software_versions(SOFTWARE)
    claimed = certificate["software"]
    return [f"{name} {here[name]}" for name in SOFTWARE if here[name] != claimed.get(name)]


def _check_files(inquiry: Inquiry) -> Iterator[Claim]:
    """Compares the files of the last checkpoint of the run with the hashes of the certificate.

    A certificate of an earlier checkpoint says nothing of the weights that the run has now.
    """
    certificate = inquiry.certificate
    name = certificate["checkpoint"]
    text = f"the files of {name} have these hashes"
    if name not in inquiry.run.positions:
        existing = ", ".join(inquiry.run.positions)
        yield Claim(text, "cannot be checked", f"it is not there any more; there are {existing}")
        return
    newest = [*inquiry.run.positions][-1]
    if name != newest:
        why = f"the run has a newer checkpoint, {newest}, of which the certificate says nothing"
        yield Claim(text, "not held", why)
        return
    wrong = sorted(_differing_files(inquiry, name))
    why = f"{', '.join(wrong)}: another content" if wrong else f"{len(certificate['files'])} files"
    yield judge(text, is_right=not wrong, why=why)


def _differing_files(inquiry: Inquiry, name: str) -> Iterator[str]:
    """Yields the files of a checkpoint of the run that are missing or have another hash.

    Args:
        inquiry: The certificate and the run.
        name: The name of the checkpoint.
    """
    store = inquiry.run.store
    files: Mapping[str, Any] = inquiry.certificate["files"]
    with contextlib.ExitStack() as stack:
        if store.folder.is_local:
            folder = store.folder.local_path() / CHECKPOINTS / name
        else:
            folder = stack.enter_context(scratch_folder(store.url))
        for file, described in files.items():
            try:
                if not store.folder.is_local:
                    store.folder.download(f"{CHECKPOINTS}/{name}/{file}", folder / file)
                is_same = describe_file(folder / file) == described
            except FileNotFoundError:
                is_same = False
            if not is_same:
                yield file
            if not store.folder.is_local:
                (folder / file).unlink(missing_ok=True)
