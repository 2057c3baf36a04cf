"""The task ner-features: entities by a BiLSTM over states of a model that is not trained.

BERT paper, section 5.3 and table 7: the last four layers of each word's first piece, side by side,
and two layers of BiLSTM before the classifier.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

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

NUM_LSTM_LAYERS, LSTM_SIZE = 2, 768  # BERT paper, section 5.3


class FeatureTask(TokenTask):
    """A task with a model of its own (`trainer.finetune.task.OwnModel`)."""

    def __init__(self, settings: TokenSettings, opened: OpenedModel, micro_tokens: int) -> None:
        """Builds the model that gives the states."""
        super().__init__(settings)
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
        """One item for each sentence; its words are rows of the vectors."""
        sentences = enumerate(each.words for each in examples)
        texts = (InputText(n, n + 1, " ".join(words), words) for n, words in sentences)
        read = self._extractor.iterate(map(self._extractor.encode, texts))
        vectors = np.concatenate([rows.vectors.reshape(len(rows.index), -1) for rows in read])
        items: list[Item] = []
        row = self._store.add(vectors)
        for example, sentence in enumerate(examples):
            count = len(sentence.words)
            classes = [] if split == "test" else number_tags(sentence, labels)
            sequence = TokenSequence(np.arange(row, row + count, dtype=np.uint32), count)
            of_words = np.array(classes, np.int64)
            items.append(WordItem(example, (sequence,), of_words, 0, np.arange(count)))
            row += count
        return EncodedSet(items, {"words": len(vectors)})

    def build_model(self, head: Head, seed: int) -> BiLstmTagger:
        """A new tagger."""
        return build_tagger(self._store, self._width, LSTM_SIZE, NUM_LSTM_LAYERS, head, seed)

    def model_files(
        self, state: Mapping[str, Tensor], head: Head, provenance: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """The tagger's weights and what they are; the provenance names the model of the states."""
        tensors = {name: each.detach().float().cpu().contiguous() for name, each in state.items()}
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
    """The task ner-features."""
    return FeatureTask(settings.tokens, open_model(settings.model), settings.micro_tokens)
