"""How every tool opens a trained model: folders and runs, local or at any fsspec URL.

RUN                 a run's folder or its --checkpoint.url: the newest committed checkpoint
RUN@STEP            the checkpoint after that many optimizer steps
FOLDER              an export, a folder of transformers' save_pretrained, or a checkpoint released
by Google
NAME                a model of the Hugging Face Hub, as bert-base-uncased or org/name
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.hub import revision_of
from tokenizer.export import build_tokenizer
from tokenizer.vocab import parse_vocab
from trainer.checkpoints.read import (
    MODEL,
    STATE,
    find_checkpoints,
    newest_checkpoint,
    read_state,
    read_weights,
)
from trainer.checkpoints.store import CHECKPOINTS, CheckpointStore
from trainer.conversion.export import (
    CONFIG,
    PROVENANCE_KEY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
    load_hf_task,
)
from trainer.conversion.hub import resolve_model
from trainer.conversion.initial_weights import InitialWeights, read_initial_weights
from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head
from trainer.runs.run_folder import CONFIG as RUN_CONFIG
from trainer.runs.run_folder import REMEDY, RUN_FACTS, RunFolder
from trainer.runs.training_facts import training_facts


@dataclass(frozen=True)
class OpenedModel:
    """A model as it was found.

    Attributes:
        where: The folder, or the checkpoint of a run, for messages.
        config: Sizes of the model.
        state: Parameters under our names, fp32, on the CPU; heads that the folder lacks are absent.
            Those of `head` are task_head.weight and task_head.bias.
        vocab: Content of vocab.txt; None where the folder has tokenizer.json alone.
        tokenizer_file: Content of tokenizer.json; None where the folder has vocab.txt alone.
        lower_case: Whether the model reads lower-cased text.
        provenance: What is known of its training, "steps", "tokens_seen", "objective" and others;
            empty for models of others.
        head: The head of a fine-tuned model (trainer.model.task_heads); None for a pretrained one.
    """

    where: str
    config: BertConfig
    state: dict[str, Tensor]
    vocab: bytes | None
    tokenizer_file: bytes | None
    lower_case: bool
    provenance: dict[str, Any]
    head: Head | None = None

    def tokenizer(self) -> Tokenizer:
        """A tokenizer that adds [CLS] and [SEP], never cuts or pads, and knows "[MASK]".

        Raises:
            ValueError: The folder has none, or it has other ids than the model has embeddings for.
        """
        tokenizer = _build_tokenizer(self)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if tokenizer.get_vocab_size() > self.config.vocab_size:
            raise ValueError(
                f"{self.where}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the model embeddings for "
                f"{self.config.vocab_size}; give the folder the vocabulary that the model was trained with"
            )
        return tokenizer

    def build(self, device: torch.device | str = "cpu") -> BertForPreTraining:
        """The model in evaluation mode; parts without weights stay on the meta device."""
        with torch.device("meta"):
            model = BertForPreTraining(self.config)
        model.load_state_dict(
            {name: each.to(device) for name, each in self.state.items()}, strict=False, assign=True
        )
        return model.eval()

    def check_has(self, prefixes: tuple[str, ...], what: str) -> None:
        """Refuses a model that was saved without some of its parts.

        Args:
            prefixes: Beginnings of our parameter names, such as "nsp_head.".
            what: The part and what wants it, for the message.

        Raises:
            ValueError: It lacks one of them.
        """
        missing = [
            each for each in prefixes if not any(name.startswith(each) for name in self.state)
        ]
        if missing:
            raise ValueError(
                f"{self.where}: saved without {what} ({', '.join(missing)} missing); give another model"
            )


def open_model(name: str) -> OpenedModel:
    """Opens what the user named with --model.

    Args:
        name: A run, folder or URL, as the module's docstring lists them.

    Raises:
        FileNotFoundError: There is neither a run with a committed checkpoint nor a model; says what
            is there.
        ValueError: It is damaged, or not a BERT as pretrained here.
    """
    folder, step = split_step(name)
    if step is not None or Folder(folder).exists(RUN_FACTS):
        return open_run(name)
    found = resolve_model(folder)
    revision = revision_of(found)
    opened = _open_folder(found)
    if revision is None:
        return opened
    return dataclasses.replace(opened, where=f"{name} at revision {revision}")


def open_run(name: str, storage_options: Mapping[str, Any] | None = None) -> OpenedModel:
    """Opens RUN or RUN@STEP, in a folder or at a URL.

    Args:
        name: A run or URL, as the module's docstring says.
        storage_options: Options of the filesystem, besides its environment variables.

    Raises:
        FileNotFoundError: There is no run, or it has no committed checkpoint of that step.
        ValueError: It is damaged.
    """
    folder, step = split_step(name)
    place = Folder(folder, storage_options)
    if place.is_local:
        run = RunFolder(place.local_path())
        run.read_facts()  # first: whether it is a run at all
        return _read_run(run, _choose_checkpoint(run, step))
    return _open_remote_run(CheckpointStore(folder, storage_options), folder, step)


def split_step(name: str) -> tuple[str, int | None]:
    """RUN@600 as RUN and 600; an @ elsewhere in a URL is part of it."""
    folder, _, step = name.rpartition("@")
    return (folder, int(step)) if folder and step.isdecimal() else (name, None)


def _read_run(run: RunFolder, checkpoint: Path) -> OpenedModel:
    facts = run.read_facts()
    state, config = read_state(checkpoint), _read_model_config(run, facts)
    shown = ("name", "weight", "root_hash", "licences")
    datasets = [{key: each[key] for key in shown if each.get(key)} for each in facts["datasets"]]
    base = {"base_model": facts["base_model"]} if "base_model" in facts else {}
    weights = read_weights(checkpoint)
    _refuse_other_weights(weights, config, str(checkpoint))
    return OpenedModel(
        where=str(checkpoint),
        config=config,
        state={key: tensor.float() for key, tensor in weights.items()},
        vocab=run.read_vocabulary(VOCAB),
        tokenizer_file=run.read_vocabulary(TOKENIZER),
        lower_case=facts["datasets"][0]["lower_case"],
        provenance={
            "steps": state["step"],
            "tokens_seen": state["tokens"],
            "instances_seen": state["instances"],
            "objective": _read_objective(run),
            "datasets": datasets,
            "training": training_facts(run.read_config(), facts),
            **base,
        },
    )


def _read_model_config(run: RunFolder, facts: Mapping[str, Any]) -> BertConfig:
    try:
        return BertConfig(**facts["model"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{run.facts} is damaged: its model is not one, {error}; {REMEDY}"
        ) from error


def _refuse_other_weights(weights: Mapping[str, Tensor], config: BertConfig, where: str) -> None:
    """Refuses weights that are not those of the whole model: a half would begin as new."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    expected = dict(model.named_parameters())
    wrong = [
        name
        for name, each in expected.items()
        if name not in weights or weights[name].shape != each.shape
    ]
    wrong += sorted(weights.keys() - model.state_dict().keys())
    if wrong:
        raise ValueError(
            f"{where} does not hold the weights of the run's model: {', '.join(wrong[:3])} differ or lack"
        )


def _read_objective(run: RunFolder) -> Any:
    config = run.read_config()
    if "objective" not in config:
        raise ValueError(f"{run.config} lacks objective: it was cut or edited; {REMEDY}")
    return config["objective"]


def _choose_checkpoint(run: RunFolder, step: int | None) -> Path:
    if step is None:
        return newest_checkpoint(run.checkpoints)
    finished, _ = find_checkpoints(run.checkpoints)
    found = {_step_of(path.name): path for path in finished}
    return found[_check_step(step, list(found), str(run.path))]


def _check_step(step: int, found: list[int], where: str) -> int:
    if step not in found:
        raise FileNotFoundError(
            f"{where} has no checkpoint of step {step}; it has {found or 'none'}"
        )
    return step


def _step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def _open_remote_run(store: CheckpointStore, url: str, step: int | None) -> OpenedModel:
    """Downloads what reading weights takes, without the optimizer's states."""
    if store.read_facts() is None:
        raise FileNotFoundError(
            f"{url} holds no {RUN_FACTS}; give the --checkpoint.url of a pretrain command"
        )
    names = {_step_of(each): each for each in store.list_checkpoints()[0]}
    if not names:
        raise FileNotFoundError(
            f"no committed checkpoint at {url}; train first, or give another run"
        )
    name = names[max(names) if step is None else _check_step(step, sorted(names), url)]
    with tempfile.TemporaryDirectory(prefix="beambert-") as folder:
        run = RunFolder(Path(folder))
        store.fetch_files([RUN_FACTS, RUN_CONFIG, VOCAB, TOKENIZER], run.path)
        checkpoint = store.fetch_checkpoint(name, run.checkpoints, [MODEL, STATE])
        try:
            opened = _read_run(run, checkpoint)
        except ValueError as error:
            raise ValueError(str(error).replace(folder, url)) from error
    return dataclasses.replace(opened, where=f"{url}/{CHECKPOINTS}/{name}")


def _open_folder(folder: str) -> OpenedModel:
    files = Folder(folder)
    names = files.list()
    fine_tuned = load_hf_task(folder) if {CONFIG, WEIGHTS} <= set(names) else None
    if fine_tuned is None:
        weights, head = read_initial_weights(folder), None
    else:
        config, state, head = fine_tuned
        weights = InitialWeights(config, state, files.read(VOCAB) if VOCAB in names else None)
    tokenizer = files.read(TOKENIZER) if TOKENIZER in names else None
    settings = json.loads(files.read(CONFIG)) if CONFIG in names else {}
    asked = json.loads(files.read(TOKENIZER_CONFIG)) if TOKENIZER_CONFIG in names else {}
    return OpenedModel(
        where=folder,
        config=weights.config,
        state=weights.state,
        vocab=weights.vocab,
        tokenizer_file=tokenizer,
        lower_case=_reads_lower_case(tokenizer, asked, weights.vocab),
        provenance=settings.get(PROVENANCE_KEY, {}),
        head=head,
    )


def _reads_lower_case(
    tokenizer: bytes | None, settings: dict[str, Any], vocab: bytes | None
) -> bool:
    """What tokenizer.json or tokenizer_config.json says, else whether vocab.txt has no capitals."""
    if tokenizer is not None:
        return bool((json.loads(tokenizer).get("normalizer") or {}).get("lowercase", False))
    if "do_lower_case" in settings:
        return bool(settings["do_lower_case"])
    tokens = (vocab or b"").decode().split("\n")
    return not any(token != token.lower() for token in tokens if not token.startswith("["))


def _build_tokenizer(opened: OpenedModel) -> Tokenizer:
    if opened.tokenizer_file is not None:
        return Tokenizer.from_str(opened.tokenizer_file.decode())
    if opened.vocab is not None:
        return build_tokenizer(
            parse_vocab(opened.vocab, f"{opened.where}/{VOCAB}"), opened.lower_case
        )
    raise ValueError(
        f"{opened.where}: holds neither {TOKENIZER} nor {VOCAB}; put the model's vocabulary beside it"
    )
