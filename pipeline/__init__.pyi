# The public names, for editors, type checkers and pipeline/__init__.py.
# docs/reference.md shows them all.

from .cli import main as main
from .documents import Document as Document
from .documents.source import Source as Source
from .shards.block import Block as Block
from .shards.block import decode_block as decode_block
from .shards.dataset import Dataset as Dataset
from .shards.dataset import open_dataset as open_dataset
from .shards.dataset import read_blocks as read_blocks
from .shards.verify import verify_dataset as verify_dataset
from .transforms.tokens import ReadInstances as ReadInstances
from .transforms.tokens import WriteTokens as WriteTokens
from .transforms.tokens import finish_build as finish_build
from .transforms.webdataset import WriteToWebDataset as WriteToWebDataset
