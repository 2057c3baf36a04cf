# The public names, for editors and type checkers; pipeline/__init__.py says the same to Python.

from pipeline.cli import main as main
from pipeline.documents import Document as Document
from pipeline.documents.source import Source as Source
from pipeline.shards.block import Block as Block
from pipeline.shards.block import decode_block as decode_block
from pipeline.shards.dataset import Dataset as Dataset
from pipeline.shards.dataset import open_dataset as open_dataset
from pipeline.shards.dataset import read_blocks as read_blocks
from pipeline.shards.verify import verify_dataset as verify_dataset
from pipeline.transforms.instances import ReadInstances as ReadInstances
from pipeline.transforms.tokens import WriteTokens as WriteTokens
from pipeline.transforms.tokens import WrittenTokens as WrittenTokens
from pipeline.transforms.tokens import finish_build as finish_build
from pipeline.transforms.webdataset import WriteToWebDataset as WriteToWebDataset
