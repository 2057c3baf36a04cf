# The public names, for editors and type checkers; tokenizer/__init__.py says the same to Python.

from tokenizer.encode import Encoder as Encoder
from tokenizer.export import build_tokenizer as build_tokenizer
from tokenizer.learn import learn_vocabulary as learn_vocabulary
from tokenizer.vocab import Vocabulary as Vocabulary
from tokenizer.vocab import parse_vocab as parse_vocab
from tokenizer.word_rule import WordRule as WordRule
from tokenizer.words import count_words as count_words
