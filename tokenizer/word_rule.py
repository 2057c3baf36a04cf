"""How a text becomes the words that WordPiece cuts: as BERT's tokenizer does, or at blanks alone.

BERT's words lose control characters, case and accents, and end at every punctuation character and
every Chinese one. Codes, events, k-mers and languages that are segmented already are words as they
stand: with `whitespace` nothing but white space (Unicode's White_Space) ends a word, and no
character changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # settings have a rule, and the library takes a while to import
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import PreTokenizer

Splitting = Literal["bert", "whitespace"]


@dataclass(frozen=True)
class WordRule:
    """How a text becomes words.

    Attributes:
        lower_case: Whether words are lower-cased and lose their accents.
        words: "bert" as BERT's pre-tokenizer cuts them, or "whitespace" as they stand between
            blanks.
    """

    lower_case: bool = True
    words: Splitting = "bert"

    def __post_init__(self) -> None:
        """Refuses what would change words that stay as they are.

        Raises:
            ValueError: Words are taken as they stand and lower-cased at once.
        """
        if self.words == "whitespace" and self.lower_case:
            raise ValueError(
                "words is whitespace, which takes words as they stand, and lower_case is true;"
                " give --lower_case false too"
            )

    @property
    def keeps_words(self) -> bool:
        """Whether words are taken as they stand."""
        return self.words == "whitespace"

    def content(self) -> dict[str, Any]:
        """Returns the rule as manifests and run.json hold it; `words` only if it is not BERT's."""
        content: dict[str, Any] = {"lower_case": self.lower_case}
        if self.words != "bert":
            content["words"] = self.words
        return content

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "WordRule":
        """Reads what `content` returned; other keys are left alone."""
        return cls(bool(content["lower_case"]), content.get("words", "bert"))

    def normalizer(self) -> "BertNormalizer | None":
        """Returns the step of `tokenizers` that changes characters; None if none changes."""
        from tokenizers.normalizers import BertNormalizer

        if self.keeps_words:
            return None
        return BertNormalizer(strip_accents=None, lowercase=self.lower_case)

    def normalize(self, text: str) -> str:
        """Returns a text with the characters that words are made of."""
        normalizer = self.normalizer()
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def pre_tokenizer(self) -> "PreTokenizer":
        """Returns the step of `tokenizers` that cuts a text into words."""
        from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit

        return WhitespaceSplit() if self.keeps_words else BertPreTokenizer()

    def split(self, text: str) -> list[str]:
        """Returns the words of a text."""
        found = self.pre_tokenizer().pre_tokenize_str(self.normalize(text))
        return [word for word, _ in found]


CASED = WordRule(lower_case=False)
UNCASED = WordRule(lower_case=True)
AS_THEY_STAND = WordRule(lower_case=False, words="whitespace")
