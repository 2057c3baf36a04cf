"""Implements the task ner-features: a BiLSTM finds entities from the states of a fixed model.

The model computes hidden states and is not trained. The vector of a word is the concatenation of
the states of several layers, by default the last four, at the word's first piece. Two layers of
BiLSTM read the vectors of a sentence, and a classifier predicts a tag for each word (BERT paper,
section 5.3 and table 7).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

from pipeline.documents.files import StorageOptions
from trainer.conll.read import Sentence
from trainer.conversion.initial_weights import hash_state
from trainer.conversion.names import CONFIG, PROVENANCE_KEY, WEIGHTS
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.task import EncodedSet, Item, Labels, Split
from trainer.finetune.text import TextEncoder, TokenSequence
from trainer.finetune.tokens.task import TokenTask, WordItem, number_tags
from trainer.inference.features.extract import FeatureExtractor, InputText
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.tagger import BiLstmTagger, VectorStore, build_tagger
from trainer.model.task_heads import Head
from trainer.process.ranks import choose_device
from trainer.runs.json_files import to_json

# BERT paper, section 5.3.
NUM_LSTM_LAYERS = 2
LSTM_SIZE = 768


class FeatureTask(TokenTask):
    """The task ner-features, which trains a BiLSTM instead of BERT.

    It is a `TokenTask` with the further methods of `trainer.finetune.task.OwnModel`.
    """

    def __init__(
        self,
        settings: TokenSettings,
        opened: OpenedModel,
        micro_tokens: int,
        storage_options: StorageOptions = None,
    ) -> None:
        """Builds the fixed model whose hidden states become the vectors of words.

        Args:
            settings: Columns of the files, and the layers whose states are read.
            opened: The fixed model.
            micro_tokens: The most tokens of one forward pass.
            storage_options: Options of the filesystem of files at a URL.
        """
        super().__init__(settings, storage_options)
        self._extractor = FeatureExtractor(
            opened,
            layers=settings.feature_layers,
            rows="word",
            micro_tokens=micro_tokens,
            device=choose_device(),
        )
        self._width = len(self._extractor.layers) * opened.config.hidden_size
        self._model_hash = hash_state(opened.state)
        self._store = VectorStore()

    def encode(
        self, examples: Sequence[Sentence], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Computes the vectors of all words, and makes one item for each sentence.

        The vectors are added to a `VectorStore`, which `build_model` gives to the BiLSTM. An item
        has one id for each word: the row number of the word's vector in that store.

        Raises:
            ValueError: A sentence has a tag that is not one of `labels`.
        """
        texts = (
            InputText(number, number + 1, " ".join(sentence.words), sentence.words)
            for number, sentence in enumerate(examples)
        )
        features = self._extractor.iterate(map(self._extractor.encode, texts))
        vectors = np.concatenate([rows.vectors.reshape(len(rows.index), -1) for rows in features])
        items: list[Item] = []
        first_row = self._store.add(vectors)
        for example, sentence in enumerate(examples):
            num_words = len(sentence.words)
            classes = [] if split == "test" else number_tags(sentence, labels)
            word_rows = np.arange(first_row, first_row + num_words, dtype=np.uint32)
            sequence = TokenSequence(word_rows, num_words)
            word_labels = np.array(classes, np.int64)
            items.append(WordItem(example, (sequence,), word_labels, 0, np.arange(num_words)))
            first_row += num_words
        return EncodedSet(items, {"words": len(vectors)})

    def build_model(self, head: Head, seed: int) -> BiLstmTagger:
        """Returns an untrained tagger with random weights drawn from the seed."""
        return build_tagger(self._store, self._width, LSTM_SIZE, NUM_LSTM_LAYERS, head, seed)

    def model_files(
        self, state: Mapping[str, Tensor], head: Head, provenance: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """Returns the contents of the tagger's files by name: its weights and config.json.

        Args:
            state: The weights of the tagger by name.
            head: The head, whose labels are written to config.json.
            provenance: Facts about the training, which are written to config.json. The hash of the
                fixed model is written there too.
        """
        tensors = {
            name: tensor.detach().float().cpu().contiguous() for name, tensor in state.items()
        }
        facts = {
            "model_type": "bilstm-tagger",
            "labels": head.labels,
            "feature_layers": self._extractor.layers,
            "width": self._width,
            "hidden_size": LSTM_SIZE,
            "num_layers": NUM_LSTM_LAYERS,
            "encoder_sha256": self._model_hash,
            PROVENANCE_KEY: provenance,
        }
        return {WEIGHTS: safetensors.torch.save(tensors), CONFIG: to_json(facts)}


def open_ner_features(settings: FinetuneSettings) -> FeatureTask:
    """Creates the task ner-features, with the model that the settings name.

    Raises:
        ValueError: The model cannot be opened, or `tokens.feature_layers` names no layers of it.
        FileNotFoundError: The model is not there.
    """
    options = settings.filesystem_options()
    opened = open_model(settings.model, options)
    return FeatureTask(settings.tokens, opened, settings.micro_tokens, options)
