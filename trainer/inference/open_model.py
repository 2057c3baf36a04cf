"""How every tool opens a trained model: folders and runs, local or at any fsspec URL.

RUN         a run's folder or its --checkpoint.url: the newest committed checkpoint
RUN@STEP    the checkpoint after that many optimizer steps
RUN@mean5   the mean of the newest 5 checkpoints' weights, and RUN@STEP@mean5 of the 5 up to a step
FOLDER      an export, a folder of transformers' save_pretrained, or a checkpoint released by Google
NAME        a model of the Hugging Face Hub, as bert-base-uncased or org/name
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.hub import revision_of
from pipeline.storage.quoting import quote
from tokenizer.export import build_tokenizer
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.word_rule import WordRule
from trainer.checkpoints.read import MODEL, STATE, read_state, read_weights, step_of
from trainer.checkpoints.resume import find_run, split_step
from trainer.checkpoints.store import CHECKPOINTS, CheckpointStore
from trainer.conversion.export import parse_settings, read_json
from trainer.conversion.initial_weights import read_initial_weights, resolve_model
from trainer.conversion.names import CONFIG, PROVENANCE_KEY, TOKENIZER, TOKENIZER_CONFIG, VOCAB
from trainer.conversion.word_rules import guess_word_rule, said_word_rule
from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head
from trainer.model.weights import check_weights
from trainer.runs.run_folder import REMEDY, RUN_FACTS, RunFolder
from trainer.runs.training_facts import training_facts

_MEAN = re.compile("(.+)@mean([0-9]+)", re.DOTALL)


@dataclass(frozen=True)
class OpenedModel:
    """A model as it was found, at `where`; the head is that of a fine-tuned one.

    Attributes:
        state: Parameters under our names, fp32, on the CPU; heads that the folder lacks are absent.
            Those of `head` are task_head.weight and task_head.bias.
        vocab: Content of vocab.txt, and `tokenizer_file` of tokenizer.json; one of them may lack.
        provenance: What is known of its training, "steps", "tokens_seen", "objective" and others.
    """

    where: str
    config: BertConfig
    state: dict[str, Tensor]
    vocab: bytes | None
    tokenizer_file: bytes | None
    word_rule: WordRule
    provenance: dict[str, Any]
    head: Head | None = None

    def tokenizer(self) -> Tokenizer:
        """A tokenizer that adds [CLS] and [SEP], never cuts or pads, and knows "[MASK]"."""
        if self.tokenizer_file is None:
            return build_tokenizer(self.vocabulary(), self.word_rule)
        tokenizer = _parse_tokenizer(self.tokenizer_file, f"{self.where}/{TOKENIZER}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._check_size(tokenizer.get_vocab_size(), is_whole=False)
        return tokenizer

    def vocabulary(self) -> Vocabulary:
        """The vocabulary of vocab.txt, or of tokenizer.json where that is all a folder has."""
        if self.vocab is not None:
            vocab = parse_vocab(self.vocab, f"{self.where}/{VOCAB}")
        elif self.tokenizer_file is not None:
            vocab = _read_wordpieces(self.tokenizer_file, f"{self.where}/{TOKENIZER}")
        else:
            says = f"holds neither {VOCAB} nor {TOKENIZER}; put the model's vocabulary beside it"
            raise ValueError(f"{self.where}: {says}")
        self._check_size(len(vocab), is_whole=True)
        return vocab

    def build(self, device: torch.device | str = "cpu") -> BertForPreTraining:
        """The model in evaluation mode; parts without weights stay on the meta device."""
        with torch.device("meta"):
            model = BertForPreTraining(self.config)
        state = {name: each.to(device) for name, each in self.state.items()}
        model.load_state_dict(state, strict=False, assign=True)
        return model.eval()

    def check_has(self, prefixes: tuple[str, ...], what: str) -> None:
        """Refuses a model without parts of these prefixes; `what` says who wants them."""
        missing = [p for p in prefixes if not any(name.startswith(p) for name in self.state)]
        if names := ", ".join(missing):
            says = f"saved without {what} ({names} missing); give another model"
            raise ValueError(f"{self.where}: {says}")

    def _check_size(self, num_tokens: int, is_whole: bool) -> None:
        size = self.config.vocab_size
        if num_tokens > size or (is_whole and num_tokens < size):
            says = f"the tokenizer has {num_tokens} tokens, the model embeddings for {size}"
            advice = "give the folder the vocabulary that the model was trained with"
            raise ValueError(f"{self.where}: {says}; {advice}")


def open_model(name: str, storage_options: Mapping[str, Any] | None = None) -> OpenedModel:
    """Opens what the module's docstring lists.

    Args:
        name: The model.
        storage_options: Options of the filesystem, where it is a run at a URL.

    Raises:
        FileNotFoundError, ValueError: It cannot be opened.
    """
    folder, step = split_step(name)
    is_run = step is not None or _MEAN.fullmatch(name) is not None
    if is_run or Folder(folder, storage_options).exists(RUN_FACTS):
        return open_run(name, storage_options)
    found = resolve_model(folder)
    opened, revision = _open_folder(found), revision_of(found)
    where = found if revision is None else f"{name} at revision {revision}"
    return dataclasses.replace(opened, where=where)


def open_run(name: str, storage_options: Mapping[str, Any] | None = None) -> OpenedModel:
    """Opens RUN, RUN@STEP or the mean of several checkpoints, in a folder or at a URL."""
    match = _MEAN.fullmatch(name)
    store, names = find_run(match[1] if match else name, storage_options)
    count = int(match[2]) if match else 1
    if not 1 <= count <= len(names):
        raise ValueError(f"{name}: {len(names)} checkpoints are there; checkpoint.keep keeps more")
    models = (_open_checkpoint(store, each) for each in names[-count:])
    opened = next(models)
    if match is None:
        return opened
    sums, steps = opened.state, [step_of(each) for each in names[-count:]]
    for opened in models:
        sums = {key: sums[key] + tensor for key, tensor in opened.state.items()}
    means = {key: tensor / count for key, tensor in sums.items()}
    provenance = opened.provenance | {"mean_of_steps": steps}
    return dataclasses.replace(opened, where=name, state=means, provenance=provenance)


def _open_checkpoint(store: CheckpointStore, name: str) -> OpenedModel:
    with store.opened(name, [MODEL, STATE]) as (run, checkpoint):
        opened = _read_run(run, checkpoint)
    where = opened.where if store.folder.is_local else f"{store.url}/{CHECKPOINTS}/{name}"
    return dataclasses.replace(opened, where=where)


def _read_run(run: RunFolder, checkpoint: Path) -> OpenedModel:
    facts, settings = run.read_facts(), run.read_config()
    if "objective" not in settings:
        raise ValueError(f"{run.config} lacks objective: it was cut or edited; {REMEDY}")
    try:
        config = BertConfig(**facts["model"])
    except (TypeError, ValueError) as error:
        says = f"{run.facts} is damaged: its model is not one, {error}; {REMEDY}"
        raise ValueError(says) from error
    state, weights = read_state(checkpoint), read_weights(checkpoint)
    check_weights(weights, str(checkpoint / MODEL))
    _refuse_other_weights(weights, config, str(checkpoint))
    shown = ("name", "weight", "root_hash", "licences")
    datasets = [{k: each[k] for k in shown if each.get(k)} for each in facts["datasets"]]
    provenance = {
        "steps": state["step"],
        "tokens_seen": state["tokens"],
        "instances_seen": state["instances"],
        "objective": settings["objective"],
        "datasets": datasets,
        "training": training_facts(settings, facts),
    }
    provenance |= {"base_model": facts["base_model"]} if "base_model" in facts else {}
    if trunk := facts.get("trunk"):
        provenance["trunk"] = trunk | {"run": PurePath(trunk["run"]).name}
    return OpenedModel(
        where=str(checkpoint),
        config=config,
        state={key: tensor.float() for key, tensor in weights.items()},
        vocab=run.read_vocabulary(VOCAB),
        tokenizer_file=run.read_vocabulary(TOKENIZER),
        word_rule=WordRule.from_content(facts["datasets"][0]),
        provenance=provenance,
    )


def _refuse_other_weights(weights: Mapping[str, Tensor], config: BertConfig, where: str) -> None:
    """Refuses weights that are not those of the whole model: a half would begin as new."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        says = " ".join(str(error).split())[:300]
        raise ValueError(f"{where} does not hold the weights of the run's model: {says}") from error


def _open_folder(folder: str) -> OpenedModel:
    files, weights = Folder(folder), read_initial_weights(folder)
    tokenizer = files.read(TOKENIZER) if files.exists(TOKENIZER) else None
    settings, asked = (
        read_json(folder, name) if files.exists(name) else {} for name in (CONFIG, TOKENIZER_CONFIG)
    )
    described = None if tokenizer is None else parse_settings(tokenizer, f"{folder}/{TOKENIZER}")
    return OpenedModel(
        folder,
        weights.config,
        weights.state,
        weights.vocab,
        tokenizer,
        word_rule=said_word_rule(described, asked) or guess_word_rule(weights.vocab),
        provenance=_read_provenance(settings.get(PROVENANCE_KEY), f"{folder}/{CONFIG}"),
        head=weights.head,
    )


def _read_provenance(found: Any, where: str) -> dict[str, Any]:
    """Returns the record of the training under config.json's key "beambert".

    Raises:
        ValueError: A value in it has a wrong type.
    """
    provenance = {} if found is None else found
    kinds = {"steps": int, "tokens_seen": int, "datasets": list}
    kinds |= dict.fromkeys(("finetuned", "training", "base_model"), dict)
    wrong = not isinstance(provenance, dict) or any(
        not isinstance(provenance[name], kind) for name, kind in kinds.items() if name in provenance
    )
    if wrong:
        says = f"{PROVENANCE_KEY} is {quote(provenance)}, which no export wrote"
        raise ValueError(f"{where}: {says}; remove the key, or copy the model again")
    return dict(provenance)


def _parse_tokenizer(data: bytes, where: str) -> Tokenizer:
    """Returns the tokenizer of a tokenizer.json.

    Raises:
        ValueError: The file holds no tokenizer; the message names the file.
    """
    try:
        return Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises Exception itself
        says = f"{where}: not a tokenizer ({str(error)[:200]})"
        raise ValueError(f"{says}; copy the model's own file again") from error


def _read_wordpieces(tokenizer_file: bytes, where: str) -> Vocabulary:
    """Returns the vocabulary in a tokenizer.json.

    Raises:
        ValueError: The tokenizer is not WordPiece, or its vocabulary is malformed.
    """
    model = parse_settings(tokenizer_file, where).get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "WordPiece":
        raise ValueError(f"{where}: is a {quote(kind)} tokenizer, expected BERT's WordPiece")
    ids = model.get("vocab")
    if not (isinstance(ids, dict) and all(type(number) is int for number in ids.values())):
        raise ValueError(f"{where}: its vocab is {quote(ids)}, expected ids by their tokens")
    text = "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__))
    return parse_vocab(text.encode(), where)
