# The public names, for editors, type checkers and tokenizer/__init__.py.
# docs/reference.md shows them all.

from .encode import Encoder as Encoder
from .export import build_tokenizer as build_tokenizer
from .learn import learn_vocabulary as learn_vocabulary
from .vocab import Vocabulary as Vocabulary
from .vocab import parse_vocab as parse_vocab
from .word_rule import WordRule as WordRule
from .words import count_words as count_words
