# The public names, for editors and type checkers; trainer/__init__.py says the same to Python.

from trainer.cli import main as main
from trainer.engine.train_step import forward_sums as forward_sums
from trainer.inference.ask import fill_mask as fill_mask
from trainer.inference.evaluate import evaluate as evaluate
from trainer.inference.evaluate_pairs import evaluate_pairs as evaluate_pairs
from trainer.inference.features.extract import FeatureExtractor as FeatureExtractor
from trainer.inference.features.extract import plain_texts as plain_texts
from trainer.inference.open_model import OpenedModel as OpenedModel
from trainer.inference.open_model import open_model as open_model
from trainer.minimal_pairs.read import read_pairs as read_pairs
from trainer.model.bert import build_model as build_model
from trainer.model.config import BertConfig as BertConfig
from trainer.model.config import preset as preset
from trainer.model.packed_inputs import PackedInputs as PackedInputs
from trainer.model.packed_inputs import pack_sequences as pack_sequences
from trainer.stream.batches.pack import MicroBatch as MicroBatch
from trainer.stream.batches.pack import pad_micro_batch as pad_micro_batch
from trainer.stream.pipeline import iterate_rows as iterate_rows
from trainer.stream.pipeline import planned_steps as planned_steps
from trainer.stream.reading.settings import Reading as Reading
from trainer.stream.step import RankStep as RankStep
