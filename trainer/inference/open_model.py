"""Opens a trained model, for every tool that uses one.

A model has one of these names, in which RUN and FOLDER are local folders or fsspec URLs:

    RUN             the newest checkpoint of a run, by its folder or its --checkpoint.url
    RUN@STEP        the checkpoint after that many optimizer steps
    RUN@mean5       the mean of the weights of the newest 5 checkpoints
    RUN@STEP@mean5  the mean of the weights of the 5 checkpoints up to a step
    FOLDER          an export, a folder of transformers' save_pretrained, or a checkpoint that
                    Google released
    NAME            a model of the Hugging Face Hub, such as bert-base-uncased or org/name
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
from trainer.checkpoints.files import MODEL, STATE, read_state, step_of
from trainer.checkpoints.read import read_weights
from trainer.checkpoints.resume import find_run, split_step
from trainer.checkpoints.store import CHECKPOINTS, METRICS, CheckpointStore
from trainer.conversion.export import parse_settings, read_json
from trainer.conversion.initial_weights import read_initial_weights, resolve_model
from trainer.conversion.names import CONFIG, PROVENANCE_KEY, TOKENIZER, TOKENIZER_CONFIG, VOCAB
from trainer.conversion.word_rules import guess_word_rule, said_word_rule
from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head
from trainer.model.weights import check_weights
from trainer.runs.metrics import MetricsFile
from trainer.runs.run_folder import REMEDY, RUN_FACTS, RunFolder
from trainer.runs.training_facts import pairs_facts, training_facts

_MEAN = re.compile("(.+)@mean([0-9]+)", re.DOTALL)


@dataclass(frozen=True)
class OpenedModel:
    """A trained model: its configuration, weights, vocabulary and history.

    `open_model` returns it.

    Attributes:
        where: The folder, checkpoint or name that the model was opened from, for messages.
        config: The configuration of the model.
        state: The parameters, fp32, on the CPU, by their names in this project, such as
            "bert.embeddings.word.weight". Parameters of heads that the model lacks are absent. The
            parameters of `head` are "task_head.weight" and "task_head.bias".
        vocab: The content of vocab.txt; None if the model has none.
        tokenizer_file: The content of tokenizer.json; None if the model has none.
        word_rule: The rule by which text becomes words.
        provenance: What is known of the training, such as "steps", "tokens_seen" and "objective";
            empty if nothing is known.
        head: The head of a fine-tuned model; None for a model that is only pretrained.

    Example:
        ```python
        from trainer import open_model

        opened = open_model("hf")
        opened.config.hidden_size                       # 768
        opened.tokenizer().encode("A text.").tokens     # ["[CLS]", "a", "text", ".", "[SEP]"]
        model = opened.build("cuda")                    # BertForPreTraining, in evaluation mode
        ```
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
        """Returns the model's tokenizer, of the library tokenizers.

        It adds [CLS] and [SEP], neither truncates nor pads, and reads "[MASK]" in a text as the
        mask.

        Raises:
            ValueError: The model has no vocabulary, or one of another size than its embeddings.
        """
        if self.tokenizer_file is None:
            return build_tokenizer(self.vocabulary(), self.word_rule)
        tokenizer = _parse_tokenizer(self.tokenizer_file, f"{self.where}/{TOKENIZER}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._check_size(tokenizer.get_vocab_size(), is_whole=False)
        return tokenizer

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary of vocab.txt, or of tokenizer.json if there is no vocab.txt.

        Raises:
            ValueError: The model has no WordPiece vocabulary, or one of another size than its
                embeddings.
        """
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
        """Builds the model on a device, in evaluation mode.

        Parts for which there are no weights stay on torch's meta device; `check_has` refuses a
        model that lacks parts that are needed.
        """
        with torch.device("meta"):
            model = BertForPreTraining(self.config)
        state = {name: tensor.to(device) for name, tensor in self.state.items()}
        model.load_state_dict(state, strict=False, assign=True)
        return model.eval()

    def check_has(self, prefixes: tuple[str, ...], what: str) -> None:
        """Raises ValueError if the model lacks a part that the caller needs.

        Args:
            prefixes: The beginnings of the names of the parameters, such as "mlm_head.".
            what: The part and what it is needed for, for the message.
        """
        missing = [
            prefix for prefix in prefixes if not any(name.startswith(prefix) for name in self.state)
        ]
        if missing:
            names = ", ".join(missing)
            says = f"saved without {what} ({names} missing); give another model"
            raise ValueError(f"{self.where}: {says}")

    def _check_size(self, num_tokens: int, is_whole: bool) -> None:
        """Raises ValueError if the number of tokens does not fit the model's embeddings.

        Args:
            num_tokens: The number of tokens of the vocabulary.
            is_whole: Whether there must be a token for every embedding. Otherwise there may be
                fewer tokens than embeddings.
        """
        size = self.config.vocab_size
        if num_tokens > size or (is_whole and num_tokens < size):
            says = f"the tokenizer has {num_tokens} tokens, the model embeddings for {size}"
            advice = "give the folder the vocabulary that the model was trained with"
            raise ValueError(f"{self.where}: {says}; {advice}")


def open_model(name: str, storage_options: Mapping[str, Any] | None = None) -> OpenedModel:
    """Opens a trained model: a run, an export, or a model that was trained elsewhere.

    Args:
        name: The model, in one of these forms. The folder of a run opens its newest checkpoint, and
            RUN@STEP the checkpoint after STEP steps. RUN@mean5 and RUN@STEP@mean5 open the mean of
            that checkpoint and the 4 before it; the number 5 can be any other. Another folder may
            be an export of this project, a folder of transformers' save_pretrained, or a checkpoint
            that Google released. All folders may be fsspec URLs. A name that is no folder is that
            of a model of the Hugging Face Hub.
        storage_options: Options of the filesystem of a folder at a URL.

    Raises:
        FileNotFoundError: There is no model, or no checkpoint after STEP steps.
        ValueError: A file is damaged, or the model is not a BERT that is supported.

    Example:
        ```python
        from trainer import open_model

        opened = open_model("runs/base@mean5")
        opened.provenance["steps"]                      # 100000
        opened.state["bert.embeddings.word.weight"]     # float32 [vocabulary, hidden]
        ```
    """
    folder, step = split_step(name)
    is_run = step is not None or _MEAN.fullmatch(name) is not None
    if is_run or Folder(folder, storage_options).exists(RUN_FACTS):
        return open_run_model(name, storage_options)
    model_folder = resolve_model(folder)
    opened = _open_folder(model_folder, storage_options)
    revision = revision_of(model_folder)
    where = model_folder if revision is None else f"{name} at revision {revision}"
    return dataclasses.replace(opened, where=where)


def open_run_model(name: str, storage_options: Mapping[str, Any] | None = None) -> OpenedModel:
    """Opens the model of a run: of one checkpoint, or the mean of several.

    Args:
        name: RUN, RUN@STEP, RUN@mean5 or RUN@STEP@mean5, as `open_model` takes it.
        storage_options: Options of the filesystem of a run at a URL.

    Raises:
        FileNotFoundError: There is no run, or no such checkpoint.
        ValueError: A file is damaged, or there are too few checkpoints for the mean.
    """
    match = _MEAN.fullmatch(name)
    store, names = find_run(match[1] if match else name, storage_options)
    count = int(match[2]) if match else 1
    if not 1 <= count <= len(names):
        raise ValueError(f"{name}: {len(names)} checkpoints are there; checkpoint.keep keeps more")
    models = (_open_checkpoint(store, checkpoint) for checkpoint in names[-count:])
    opened = next(models)
    if match is None:
        return opened

    sums = opened.state
    steps = [step_of(checkpoint) for checkpoint in names[-count:]]
    for opened in models:
        sums = {key: sums[key] + tensor for key, tensor in opened.state.items()}
    means = {key: tensor / count for key, tensor in sums.items()}
    provenance = opened.provenance | {"mean_of_steps": steps}
    provenance.pop("minimal_pairs", None)  # the last checkpoint was measured, not the mean
    return dataclasses.replace(opened, where=name, state=means, provenance=provenance)


def _open_checkpoint(store: CheckpointStore, name: str) -> OpenedModel:
    """Opens the model in one checkpoint of a run.

    If the run is at a URL, the files that this needs are downloaded first.

    Args:
        store: The run's checkpoints.
        name: The name of the checkpoint, such as one of those that `find_run` returns.
    """
    with store.opened(name, [MODEL, STATE]) as (run, checkpoint):
        if not store.folder.is_local and _pairs_of(run) and store.folder.exists(METRICS):
            store.fetch_files([METRICS], run.path)
        opened = _read_run(run, checkpoint)
    where = opened.where if store.folder.is_local else f"{store.url}/{CHECKPOINTS}/{name}"
    return dataclasses.replace(opened, where=where)


def _read_run(run: RunFolder, checkpoint: Path) -> OpenedModel:
    """Reads the model in a local checkpoint, and what the run's files say of its training.

    Raises:
        ValueError: A file of the run or of the checkpoint is damaged.
    """
    facts = run.read_facts()
    settings = run.read_config()
    if "objective" not in settings:
        raise ValueError(f"{run.config} lacks objective: it was cut or edited; {REMEDY}")
    try:
        config = BertConfig(**facts["model"])
    except (TypeError, ValueError) as error:
        says = f"{run.facts} is damaged: its model is not one, {error}; {REMEDY}"
        raise ValueError(says) from error
    state = read_state(checkpoint)
    weights = read_weights(checkpoint)
    check_weights(weights, str(checkpoint / MODEL))
    _refuse_other_weights(weights, config, str(checkpoint))

    keys = ("name", "weight", "root_hash", "instances", "licences")
    datasets = [
        {key: dataset[key] for key in keys if dataset.get(key)} for dataset in facts["datasets"]
    ]
    provenance = {
        "steps": state["step"],
        "tokens_seen": state["tokens"],
        "instances_seen": state["instances"],
        "objective": settings["objective"],
        "datasets": datasets,
        "training": training_facts(settings, facts),
    }
    if "base_model" in facts:
        provenance["base_model"] = facts["base_model"]
    pairs = _pairs_of(run)
    if pairs:
        row = MetricsFile(run.metrics).find_row(state["step"], "pairs_accuracy")
        if row:
            provenance["minimal_pairs"] = pairs_facts(row, pairs)
    trunk = facts.get("trunk")
    if trunk:
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


def _pairs_of(run: RunFolder) -> str | None:
    """Returns the setting `validation.pairs` of a run: where its minimal pairs are, or None."""
    pairs = (run.read_config().get("validation") or {}).get("pairs")
    return str(pairs) if pairs else None


def _refuse_other_weights(weights: Mapping[str, Tensor], config: BertConfig, where: str) -> None:
    """Raises ValueError if weights do not fit a model by their names and shapes.

    Args:
        weights: The weights of a checkpoint by name.
        config: The configuration of the run's model.
        where: The checkpoint, for messages.
    """
    with torch.device("meta"):
        model = BertForPreTraining(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        says = " ".join(str(error).split())[:300]
        raise ValueError(f"{where} does not hold the weights of the run's model: {says}") from error


def _open_folder(folder: str, options: Mapping[str, Any] | None) -> OpenedModel:
    """Opens a folder that is no run: an export, or a model that was trained elsewhere.

    Args:
        folder: A local folder or an fsspec URL.
        options: Options of the filesystem of a folder at a URL.

    Raises:
        FileNotFoundError: The folder holds no model.
        ValueError: A file is damaged, or the model is not supported.
    """
    files = Folder(folder, options)
    weights = read_initial_weights(folder, options)
    tokenizer_file = files.read(TOKENIZER) if files.exists(TOKENIZER) else None
    settings = read_json(folder, CONFIG, options) if files.exists(CONFIG) else {}
    tokenizer_config: dict[str, Any] = {}
    if files.exists(TOKENIZER_CONFIG):
        tokenizer_config = read_json(folder, TOKENIZER_CONFIG, options)
    tokenizer = None
    if tokenizer_file is not None:
        tokenizer = parse_settings(tokenizer_file, f"{folder}/{TOKENIZER}")
    word_rule = said_word_rule(tokenizer, tokenizer_config) or guess_word_rule(weights.vocab)
    return OpenedModel(
        where=folder,
        config=weights.config,
        state=weights.state,
        vocab=weights.vocab,
        tokenizer_file=tokenizer_file,
        word_rule=word_rule,
        provenance=_read_provenance(settings.get(PROVENANCE_KEY), f"{folder}/{CONFIG}"),
        head=weights.head,
    )


def _read_provenance(value: Any, where: str) -> dict[str, Any]:
    """Returns the facts about the training that an export of this project wrote into config.json.

    The dict is empty if another program wrote the file.

    Args:
        value: The value of the key "beambert" in config.json; None if it lacks this key.
        where: The file, for messages.

    Raises:
        ValueError: A value in it has a wrong type.
    """
    provenance = {} if value is None else value
    kinds = {"steps": int, "tokens_seen": int, "datasets": list}
    kinds |= dict.fromkeys(("finetuned", "training", "base_model", "minimal_pairs"), dict)
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
