"""Defines the rules by which a text becomes words, which WordPiece then cuts into pieces.

BERT's words lose control characters, case and accents, and end at every punctuation character and
every Chinese character. The rule `whitespace` is for codes, events, k-mers, and languages that are
already segmented: only white space (Unicode's White_Space) ends a word, and no character changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # settings import this module, and the library takes long to import
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import PreTokenizer

Splitting = Literal["bert", "whitespace"]


@dataclass(frozen=True)
class WordRule:
    """The rule by which a text becomes words.

    Attributes:
        lower_case: Whether words are lower-cased and lose their accents.
        words: "bert" cuts words like BERT's pre-tokenizer, "whitespace" at white space alone.
    """

    lower_case: bool = True
    words: Splitting = "bert"

    def __post_init__(self) -> None:
        """Checks that the two fields do not contradict each other.

        Raises:
            ValueError: `words` is "whitespace" and `lower_case` is true.
        """
        if self.words == "whitespace" and self.lower_case:
            raise ValueError(
                "words is whitespace, which takes words as they stand, and lower_case is true;"
                " give --lower_case false too"
            )

    @property
    def keeps_words(self) -> bool:
        """Whether no character of a word is changed, as by the rule "whitespace"."""
        return self.words == "whitespace"

    def content(self) -> dict[str, Any]:
        """Returns the rule as it is stored in manifests and run.json.

        The key "words" is left out if its value is "bert".
        """
        content: dict[str, Any] = {"lower_case": self.lower_case}
        if self.words != "bert":
            content["words"] = self.words
        return content

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "WordRule":
        """Returns the rule that `content()` has stored in an object, such as a manifest's settings.

        Other keys of the object are ignored.
        """
        return cls(bool(content["lower_case"]), content.get("words", "bert"))

    def normalizer(self) -> "BertNormalizer | None":
        """Returns the step of `tokenizers` that changes characters, or None if none is changed."""
        from tokenizers.normalizers import BertNormalizer

        if self.keeps_words:
            return None
        return BertNormalizer(strip_accents=None, lowercase=self.lower_case)

    def normalize(self, text: str) -> str:
        """Returns a text with its characters changed by this rule."""
        normalizer = self.normalizer()
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def pre_tokenizer(self) -> "PreTokenizer":
        """Returns the step of `tokenizers` that cuts a text into words."""
        from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit

        return WhitespaceSplit() if self.keeps_words else BertPreTokenizer()

    def split(self, text: str) -> list[str]:
        """Returns the words of a text."""
        words_and_spans = self.pre_tokenizer().pre_tokenize_str(self.normalize(text))
        return [word for word, _ in words_and_spans]


CASED = WordRule(lower_case=False)
UNCASED = WordRule(lower_case=True)
AS_THEY_STAND = WordRule(lower_case=False, words="whitespace")
