"""Sentences: nothing is lost, bounds hold, time is linear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.cleaning import clean_text
from pipeline.text.sentence_rules import mark_stops
from pipeline.text.sentences import cut_document, split_sentences

words = st.text(st.sampled_from("aB.!?\"'(“”。1é\u2043"), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        ("", "en", []),
        ("Dr. Smith left. He was late.", "en", ["Dr. Smith left.", "He was late."]),
        ("A title\nIt rained. It poured.", "en", ["A title", "It rained.", "It poured."]),
        ("今天好。明天好。", "zh", ["今天好。", "明天好。"]),
        ("他来了。1990年走了\uff012人留下。", "zh", ["他来了。", "1990年走了\uff01", "2人留下。"]),
        ("雨が降った。３日後に晴れた。", "ja", ["雨が降った。", "３日後に晴れた。"]),
        (
            "他說「不去。3人去。」走了。5人留。",
            "zh",
            ["他說「不去。3人去。」", "走了。", "5人留。"],
        ),
        ("1. Wash it. 2. Dry it 3. Go", "en", ["1. Wash it.", "2. Dry it", "3. Go"]),
        ("a. one thing b. another", "en", ["a. one thing", "b. another"]),
        ("1. 2. Foo bar.", "en", ["1. 2.", "Foo bar."]),
        ("1. One. 2. Two. 3. 4. Three.", "en", ["1. One.", "2. Two.", "3. 4.", "Three."]),
        ("\u20439. Ninth \u204310. Tenth", "en", ["\u20439. Ninth", "\u204310. Tenth"]),
        ("2. Mai bis 3. Juni. Es regnete.", "de", ["2. Mai bis 3. Juni.", "Es regnete."]),
        ("He said: “It rains. I go.” We left.", "en", ["He said: “It rains. I go.”", "We left."]),
    ],
)
def test_examples(text, language, sentences):
    assert split_sentences(text, language) == sentences


@given(st.text(st.sampled_from("123ab. \u2043"), max_size=30))
def test_numbers_without_a_text_lose_nothing(text):
    cleaned = clean_text(text)
    assert "".join(split_sentences(cleaned)).replace(" ", "") == cleaned.replace(" ", "")


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("km", ["នេះជាប្រយោគទីមួយ។", "នេះជាប្រយោគទីពីរ៕", "«ក។ ខ។»", "គ។"]),
        ("bo", ["བཀྲ་ཤིས་བདེ་ལེགས།", "ང་དགེ་རྒན་ཡིན།།", "ཀ་ཁ། །", "ག་ང་༎", "ཅ།"]),
        ("dz", ["ཀ་ཁ།", "ག་ང་།"]),
        ("en", ["ཀ་ཁ།", "See Eq. (2) and Eqs. [3]–[4].", "As in Vol. 3, Fig. 2.", "Ms. A came."]),
        ("en", ["It has an ex.", "J.-P. Sartre came.", "It is on p. 3."]),
        ("fr", ["M. Dupont et Mme. Curie sont là.", "Le Dr. Martin parle.", "Voir fig. 3.", "Fin."]),
        ("fr", ["J.-P. Sartre vient.", "L'an 50 av. J.-C. fut dur.", "En 52 av. J.-C.", "César vint."]),
        ("nl", ["'s Morgens is 't koud.", "Dan gaat hij.", "’t Was mooi.", "Mevr. de Vries ook."]),
        ("nl", ["D.w.z. goed.", "Hij zei: 'Ik ga. Nu.'", "En hij ging."]),
        ("af", ["Dit is 'n man.", "'n Vrou kom.", "Hy is 'n kind."]),
        ("it", ["L'on. Rossi è arrivato.", "La dott.ssa Verdi parla.", "Poi è uscita."]),
        ("es", ["D. Juan llegó.", "Fin."]),
        ("pl", ["Przyszedł dr. Nowak, tzn. on.", "Koniec."]),
        ("ru", ["Это, т. е. стол, стоит.", "На рис. 3 дом."]),
        ("de", ["Siehe Abb. 3 und Gl. (4).", "Ende."]),
    ],
)  # fmt: skip
def test_stops_that_sentencex_does_not_know(language, sentences):
    assert split_sentences(" ".join(sentences), language) == sentences
    if language in ("km", "bo"):
        assert split_sentences("".join(sentences).replace(" ", ""), language)[:2] == sentences[:2]


def test_marked_stops_keep_the_length():
    texts = ["ཀ་ཁ། །ག", "L'an 50 av. J.-C. fut", "'s Morgens d. w. z. Mevr. X", "т. е. им. рис. 3"]
    for text in texts:
        for language in ("en", "fr", "nl", "ru"):
            assert len(mark_stops(text, language)) == len(text)


def test_long_sentences_are_cut_at_the_last_space_that_fits():
    assert split_sentences("aaa bbb ccc", max_characters=7) == ["aaa bbb", "ccc"]
    assert split_sentences("aaa bbb ccc", max_characters=6) == ["aaa", "bbb", "ccc"]
    assert split_sentences("aaaaaaa bb", max_characters=3) == ["aaa", "aaa", "a", "bb"]
    assert split_sentences("aaa", max_characters=3) == ["aaa"]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("“", "”"), ('"', '"'), ("(", ")"), ("The prophet Elias' ", " is the workers' "), ("“", "")],
)
def test_a_long_quotation_is_split_like_other_text(opening, closing):
    """`sentencex` takes it for one sentence, and what stands between two apostrophes too."""
    sentences = [f"Sentence number {n} of those that he said that day." for n in range(4)]
    text = f"{opening}{' '.join(sentences)} {'It is so. ' * 5}And the end{closing}."
    found = split_sentences(text)
    assert found[:4] == [opening + sentences[0], *sentences[1:]]
    assert len(found) == 10
    assert "".join(found).replace(" ", "") == text.replace(" ", "")


def test_a_stop_stays_with_the_marks_behind_it():
    many = "My life is not so simple. " * 8
    found = split_sentences(f"“I did what I could. (Applause.) {many}I am late. (Laughter.)”")
    assert found[:3] == ["“I did what I could.", "(Applause.)", "My life is not so simple."]


@given(st.lists(st.one_of(words, st.just("\n")), max_size=80).map(" ".join), st.integers(1, 30))
def test_every_character_is_kept_once(text, max_characters):
    cleaned = clean_text(text)
    sentences = split_sentences(cleaned, "en", max_characters)
    assert "".join(sentences).replace(" ", "") == cleaned.replace("\n", "").replace(" ", "")
    assert all(0 < len(sentence) <= max_characters for sentence in sentences)
    assert all(sentence == sentence.strip() for sentence in sentences)


def test_windows_do_not_show():
    """A long line of sentences is split as if it were short ones."""
    sentences = [f"Sentence number {i} is{' rather' * (i % 40)} long." for i in range(3000)]
    assert split_sentences(" ".join(sentences)) == sentences


def test_a_language_must_be_a_code():
    with pytest.raises(ValueError, match=r"language 'English': expected an ISO 639 code"):
        split_sentences("A text.", "English")


def test_documents_are_cut_between_sentences():
    assert cut_document([]) == []
    assert cut_document(["one", "two"]) == [["one", "two"]]
    cut = [["éé", "b"], ["cccc", "d"], ["e"]]
    assert cut_document(["éé", "b", "cccc", "d", "e"], max_bytes=7) == cut
    assert cut_document(["long sentence", "b", "c"], max_bytes=4) == [["long sentence"], ["b", "c"]]


@given(st.lists(words, min_size=1, max_size=30), st.integers(1, 60))
def test_cut_pieces_hold_every_sentence_and_fit(sentences, max_bytes):
    pieces = cut_document(sentences, max_bytes)
    assert [sentence for piece in pieces for sentence in piece] == sentences
    assert all(len("\n".join(piece).encode()) < max_bytes or len(piece) == 1 for piece in pieces)
