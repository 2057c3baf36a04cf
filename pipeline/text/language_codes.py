"""Checks language codes, which choose the rules of sentence splitting, before text is read."""

import difflib
import re

_CODE = re.compile("[a-z]{2,3}(-[a-z0-9]+)*")
_CODES = {
    "arabic": "ar", "bengali": "bn", "bulgarian": "bg", "catalan": "ca", "chinese": "zh",
    "croatian": "hr", "czech": "cs", "danish": "da", "dutch": "nl", "english": "en",
    "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el",
    "hebrew": "he", "hindi": "hi", "hungarian": "hu", "indonesian": "id", "italian": "it",
    "japanese": "ja", "korean": "ko", "latvian": "lv", "lithuanian": "lt", "norwegian": "no",
    "persian": "fa", "polish": "pl", "portuguese": "pt", "romanian": "ro", "russian": "ru",
    "serbian": "sr", "slovak": "sk", "slovenian": "sl", "spanish": "es", "swedish": "sv",
    "tamil": "ta", "thai": "th", "turkish": "tr", "ukrainian": "uk", "urdu": "ur",
    "vietnamese": "vi",
}  # fmt: skip


def check_language(code: str) -> None:
    """Refuses a code that is not an ISO 639 code in lower case.

    Raises:
        ValueError: The code is wrong. The message proposes a code if the text is a language's
            English name, or a code in another spelling.
    """
    if _CODE.fullmatch(code):
        return
    written = code.strip().lower().replace("_", "-")
    names = difflib.get_close_matches(written, _CODES, n=1, cutoff=0.8)
    meant = ""
    if names:
        meant = _CODES[names[0]]
    elif _CODE.fullmatch(written):
        meant = written
    proposal = f"; did you mean {meant}?" if meant else ""
    raise ValueError(
        f"language {code!r}: expected an ISO 639 code in lower case such as en or zh, for sentence"
        f" splitting{proposal}"
    )
