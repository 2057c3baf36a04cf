"""The task ner-features: entities by a BiLSTM over states of a model that is not trained.

BERT paper, section 5.3 and table 7: the last four layers of each word's first piece, side by side,
and two layers of BiLSTM before the classifier. Files, tags and scores are those of the task ner.
Every word has one vector, those of sentences longer than the model reads from windows
(trainer.inference.features.extract).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.conll.read import Sentence
from trainer.conversion.export import CONFIG, PROVENANCE_KEY, WEIGHTS
from trainer.conversion.initial_weights import hash_state
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.task import EncodedSet, Item, Split, TokenSequence
from trainer.finetune.text import TextEncoder
from trainer.finetune.tokens.task import TokenTask, WordItem, number_tags, open_ner
from trainer.finetune.tokens.windows import Window
from trainer.inference.features.extract import FeatureExtractor, InputText
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.tagger import BiLstmTagger, VectorStore, build_tagger
from trainer.model.task_heads import Head
from trainer.process.ranks import choose_device
from trainer.runs.json_files import to_json

NUM_LSTM_LAYERS = 2  # BERT paper, section 5.3


class FeatureTask(TokenTask):
    """A task with a model of its own (`trainer.finetune.task.OwnModel`)."""

    def __init__(self, settings: TokenSettings, opened: OpenedModel, micro_tokens: int) -> None:
        """Builds the model that gives the states.

        Args:
            settings: Columns, scheme, layers and sizes.
            opened: The model.
            micro_tokens: Most tokens of one of its forward passes.
        """
        super().__init__(settings)
        self._extractor = FeatureExtractor(
            opened,
            layers=settings.feature_layers,
            combine="concat",
            rows="word",
            micro_tokens=max(micro_tokens, opened.config.max_position_embeddings),
            device=choose_device(),
        )
        self._model_hash = hash_state(opened.state)
        self._store = VectorStore()

    def encode(
        self,
        examples: Sequence[Sentence],
        labels: tuple[str, ...],
        encoder: TextEncoder,  # noqa: ARG002
        split: Split,
    ) -> EncodedSet:
        """One item for each sentence; its words are rows of the vectors."""
        num_words = sum(len(sentence.words) for sentence in examples)
        row = self._store.add(self._vectors([sentence.words for sentence in examples], num_words))
        items: list[Item] = []
        for example, sentence in enumerate(examples):
            count = len(sentence.words)
            classes = [] if split == "test" else number_tags(sentence, labels)
            sequence = TokenSequence(np.arange(row, row + count, dtype=np.uint32), count)
            words = WordItem(
                example,
                (sequence,),
                np.array(classes, np.int64),
                Window(0, count, 0, count),
                np.arange(count),
            )
            items.append(words)
            row += count
        return EncodedSet(items, {"words": num_words})

    def build_model(self, head: Head, seed: int) -> BiLstmTagger:
        """A new tagger."""
        settings = self.settings
        width = self._extractor.width
        return build_tagger(
            self._store, width, settings.lstm_hidden_size, NUM_LSTM_LAYERS, head, seed
        )

    def model_files(
        self, state: Mapping[str, Tensor], head: Head, provenance: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """The tagger's weights and what they are; the provenance names the model of the states."""
        tensors = {
            name: tensor.detach().float().cpu().contiguous() for name, tensor in state.items()
        }
        facts = {
            "model_type": "bilstm-tagger",
            "labels": list(head.labels),
            "feature_layers": list(self._extractor.layers),
            "width": self._extractor.width,
            "hidden_size": self.settings.lstm_hidden_size,
            "num_layers": NUM_LSTM_LAYERS,
            "encoder_sha256": self._model_hash,
            PROVENANCE_KEY: dict(provenance),
        }
        return {WEIGHTS: safetensors.torch.save(tensors), CONFIG: to_json(facts)}

    def _vectors(self, sentences: Sequence[Sequence[str]], num_words: int) -> NDArray[np.float32]:
        """[num_words, F]."""
        texts = (
            InputText(number, number + 1, " ".join(words), tuple(words))
            for number, words in enumerate(sentences)
        )
        vectors = np.empty((num_words, self._extractor.width), np.float32)
        row = 0
        for rows in self._extractor.iterate(map(self._extractor.encode, texts)):
            vectors[row : row + len(rows.index)] = rows.vectors[:, 0]
            row += len(rows.index)
        assert row == num_words, f"{row} vectors of {num_words} words"
        return vectors


def open_ner_features(settings: FinetuneSettings) -> FeatureTask:
    """The task ner-features.

    Raises:
        ValueError: A setting makes no sense.
    """
    chosen = open_ner(settings).settings
    if chosen.lstm_hidden_size < 1:
        raise ValueError(
            f"tokens.lstm_hidden_size is {chosen.lstm_hidden_size}; it must be at least 1"
        )
    return FeatureTask(chosen, open_model(settings.model), settings.micro_tokens)
