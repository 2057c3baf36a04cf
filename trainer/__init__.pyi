# The public names, for editors, type checkers and trainer/__init__.py.
# docs/reference.md shows them all.

from .cli import main as main
from .engine.train_step import forward_sums as forward_sums
from .inference.ask import fill_mask as fill_mask
from .inference.evaluate import evaluate as evaluate
from .inference.evaluate_pairs import evaluate_pairs as evaluate_pairs
from .inference.features.extract import FeatureExtractor as FeatureExtractor
from .inference.features.extract import plain_texts as plain_texts
from .inference.open_model import OpenedModel as OpenedModel
from .inference.open_model import open_model as open_model
from .minimal_pairs.read import read_pairs as read_pairs
from .model.bert import build_model as build_model
from .model.config import BertConfig as BertConfig
from .model.config import preset as preset
from .model.packed_inputs import PackedInputs as PackedInputs
from .model.packed_inputs import pack_sequences as pack_sequences
from .stream.batches.pack import MicroBatch as MicroBatch
from .stream.batches.pack import pad_micro_batch as pad_micro_batch
from .stream.pipeline import iterate_rows as iterate_rows
from .stream.pipeline import planned_steps as planned_steps
from .stream.reading.settings import Reading as Reading
from .stream.step import RankStep as RankStep
