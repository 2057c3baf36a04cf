"""MediaWiki dumps: articles of literal XML, any cut of plain and bzip2 files."""

import bz2
import gzip
from itertools import chain, pairwise

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Document, records
from pipeline.documents.files import FileRange
from pipeline.documents.parts import Part, find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.storage import compression
from pipeline.wiki.dump import hidden_prefixes
from pipeline.wiki.wikitext import parse_wikitext

HEAD = '<mediawiki xml:lang="en">\n  <siteinfo><sitename>W</sitename></siteinfo>\n'


def page(number, text, ns=0, inside="", model="wikitext"):
    return (
        f"  <page>\n    <title>T{number}</title>\n    <ns>{ns}</ns>\n    <id>{number}</id>\n{inside}"
        f"    <revision><id>9</id><model>{model}</model><text>{text}</text></revision>\n  </page>\n"
    )


PAGES = [
    page(1, "First &amp; ''only''."),
    page(2, "x", inside='    <redirect title="T1" />\n'),
    page(3, "#redirect [[T1]]"),
    page(4, "Talk.", ns=1),
    page(5, ".a {}", model="css"),
    page(6, "Old.</text></revision><revision><text>Second é."),
    page(7, "Third."),
]
DUMP = (HEAD + "".join(PAGES) + "</mediawiki>\n").encode()
TEXTS = ["First & only.", "Second é.", "Third."]


def read(data, name="d.xml", text_format="auto", **options):
    fsspec.filesystem("memory").pipe(f"/dump/{name}", data)
    parts = plan_parts(find_inputs([f"memory:///dump/{name}"]), text_format, 2**20)
    return [document for part in parts for document in read_part(part, **options)]


@pytest.mark.parametrize(
    ("name", "pack"),
    [("d.xml", bytes), ("d.xml.bz2", bz2.compress), ("d.xml.gz", gzip.compress), ("d", bytes)],
)
def test_articles_are_documents_and_the_others_are_counted(name, pack):
    skipped: dict[str, int] = {}
    found = read(pack(DUMP), name, skipped=skipped)
    assert found[0] == Document("First & only.", f"memory:///dump/{name}, page 1 'T1'")
    assert [document.text for document in found] == TEXTS
    assert skipped == {"redirect": 2, "not_an_article": 2}


def read_cut(data, name, cuts):
    fsspec.filesystem("memory").pipe(f"/dump/{name}", data)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    skipped: dict[str, int] = {}
    texts = []
    for start, end in pairwise(bounds):
        part = Part((FileRange(f"memory:///dump/{name}", start, end, len(data), "mediawiki"),))
        texts += [each.text for each in read_part(part, on_bad_document="skip", skipped=skipped)]
    return texts, skipped


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize(
    ("name", "pack"), [("w.xml", bytes), ("w.xml.bz2", bz2.compress), ("w.xml.gz", gzip.compress)]
)
@pytest.mark.parametrize("cuts", [[], [40], [100, 300]])
def test_a_dump_with_a_byte_order_mark_gives_its_articles_in_any_cut(encoding, name, pack, cuts):
    data = pack(("\ufeff" + DUMP.decode()).encode(encoding))
    expected = (TEXTS, {"redirect": 2, "not_an_article": 2})
    assert read_cut(data, name, [] if name.endswith(".gz") else cuts) == expected
    assert [document.text for document in read(data, name)] == TEXTS


BROKEN = DUMP.replace(b"  </page>\n  <page>\n    <title>T7", b"  <page>\n    <title>T7")
BROKEN = BROKEN.replace(b"First &amp;", b"First &no;")


@given(cuts=st.sets(st.integers(1, len(DUMP)), max_size=8), data=st.sampled_from([DUMP, BROKEN]))
def test_any_cut_of_plain_xml_gives_the_same_documents(cuts, data):
    assert read_cut(data, "c.xml", cuts) == read_cut(data, "c.xml", [])


@given(
    splits=st.sets(st.integers(1, len(DUMP) - 1), max_size=6),
    cuts=st.sets(st.integers(1, 3000), max_size=8),
    data=st.sampled_from([DUMP, BROKEN]),
)
def test_any_cut_of_any_streams_gives_the_same_documents(splits, cuts, data):
    bounds = [0, *sorted(splits), len(data)]
    packed = b"".join(bz2.compress(data[start:end]) for start, end in pairwise(bounds))
    assert read_cut(packed, "c.xml.bz2", cuts) == read_cut(data, "c.xml", [])


@pytest.mark.parametrize("num_zeros", [1, 4000, 4096, 9000])
@pytest.mark.parametrize("cuts", [[], [300], [700, 5000, 10_000]])
def test_zeros_between_streams_are_padding(num_zeros, cuts):
    pieces = [DUMP[:200], DUMP[200:700], DUMP[700:]]
    packed = b"".join(bz2.compress(piece) + b"\0" * num_zeros for piece in pieces)
    assert read_cut(packed, "z.xml.bz2", cuts) == read_cut(DUMP, "z.xml", [])


def test_several_streams_are_several_parts_and_none_is_decompressed_twice(monkeypatch):
    texts = [f"Text number {number}." * 200 for number in range(30)]
    pieces = [HEAD, *map(page, range(30), texts), "</mediawiki>\n"]
    packed = b"".join(bz2.compress(piece.encode()) for piece in pieces)
    fsspec.filesystem("memory").pipe("/dump/m.xml.bz2", packed)
    parts = plan_parts(find_inputs(["memory://dump/m.xml.bz2"]), "auto", len(packed))
    decompressed = count_decompressed(monkeypatch)
    found = [[document.text for document in read_part(part)] for part in parts]
    assert len(parts) == 4
    assert all(found)
    assert list(chain(*found)) == texts
    heads = len(HEAD) * (len(parts) + 1)  # every part reads the dump's <siteinfo>
    assert sum(decompressed) <= len("".join(pieces)) + heads + len(parts) * 10_000


def count_decompressed(monkeypatch):
    sizes, feed = [], compression.feed

    def counting(decoder, data, url):
        for text in feed(decoder, data, url):
            sizes.append(len(text))
            yield text

    monkeypatch.setattr(compression, "feed", counting)
    return sizes


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("pack", [bytes, bz2.compress])
def test_entity_bombs_are_refused(policy, pack):
    bomb = b'<?xml version="1.0"?>\n<!DOCTYPE mediawiki [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>\n'
    said = r"found <!DOCTYPE, expected a MediaWiki dump, which declares no entities"
    with pytest.raises(ValueError, match=said):
        read(
            pack(bomb + DUMP), "bomb.xml" + ".bz2" * (pack is bz2.compress), on_bad_document=policy
        )


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("&b;", "found no well-formed XML .undefined entity", "bad_xml"),
        ("<b>", "found no well-formed XML .mismatched tag", "bad_xml"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>', "found no well-formed XML", "bad_xml"),
        ("x" * 5000, "found a document of more than 2000 bytes", "too_long"),
        ("x" * 3_000_000, "found a document of more than 2000 bytes", "too_long"),
    ],
    ids=["entity", "tag", "declaration", "long", "longer than a block"],
)
def test_malformed_pages_are_named_and_counted(monkeypatch, text, message, reason):
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 2000)
    data = (HEAD + PAGES[0] + page(8, text) + PAGES[6] + "</mediawiki>").encode()
    start = len((HEAD + PAGES[0]).encode()) + page(8, text).index("<page>")
    said = rf"^memory:///dump/d.xml, page at byte {start} of the text .*: {message}"
    with pytest.raises(ValueError, match=said):
        read(data)
    skipped: dict[str, int] = {}
    expected = [TEXTS[0], TEXTS[2]]
    assert [d.text for d in read(data, on_bad_document="skip", skipped=skipped)] == expected
    assert skipped == {reason: 1}


@pytest.mark.parametrize("cuts", [[], [100]])
@pytest.mark.parametrize(("name", "pack"), [("d.xml", bytes), ("d.xml.bz2", bz2.compress)])
def test_a_dump_that_is_cut_short_is_refused(name, pack, cuts):
    pieces = [pack(piece.encode()) for piece in (HEAD, PAGES[0], PAGES[6], "</mediawiki>")]
    assert read_cut(b"".join(pieces), name, cuts)[0] == [TEXTS[0], TEXTS[2]]
    said = rf"/{name}: the dump ends without </mediawiki>, so a part of it is missing"
    for rest in ([], [pack(PAGES[5][:-40].encode())]):  # between two pages or streams, or in a page
        with pytest.raises(ValueError, match=said):
            read_cut(b"".join([*pieces[:-1], *rest]), name, cuts)


def test_broken_bzip2_is_named():
    packed = bz2.compress(DUMP)
    broken = packed[:60] + b"x" * 90
    for data, message in ((packed[:-3], "ends in the middle of a frame"), (broken, "or broken")):
        with pytest.raises(ValueError, match=rf"d\.xml\.bz2: .*{message}"):
            read(data, "d.xml.bz2", "mediawiki", on_bad_document="skip")


BULGARIAN = (
    '<mediawiki xml:lang="bg"><siteinfo><dbname>bgwiki</dbname><namespaces>'
    '<namespace key="6">Файл</namespace><namespace key="10">Шаблон</namespace>'
    '<namespace key="14" case="first-letter">Категория</namespace></namespaces>'
    "</siteinfo>\n"
)
LINKS = (
    "Град[[Категория:Градове]], [[файл:a b|thumb|надпис]][[категория :X]][[Category:Y]]"
    "[[de:Stadt]][[zh-min-nan:S]] [[:de:Stadt]] [[:Категория:Градове|всички]] [[bg:Село]]"
    " [[Шаблон:Z]] [[wikt:град|дума]] [[De facto]]."
)
SHOWN = "Град,  de:Stadt всички bg:Село Шаблон:Z дума De facto."


@pytest.mark.parametrize(("name", "pack"), [("b.xml", bytes), ("b.xml.bz2", bz2.compress)])
@pytest.mark.parametrize("cuts", [[], [60], [200, 4000]])
def test_links_follow_the_siteinfo_of_the_dump_in_every_part(name, pack, cuts):
    text = " ".join(f"Дума {number}." for number in range(900))
    pages = [pack(page(number, LINKS + text).encode()) for number in range(3)]
    data = b"".join([pack(BULGARIAN.encode()), *pages, pack(b"</mediawiki>")])
    assert read_cut(data, name, cuts) == ([SHOWN + text] * 3, {})


def test_links_to_the_language_of_the_wiki_itself_and_to_its_own_namespaces_are_shown():
    siteinfo = b'<mediawiki xml:lang="nb"><siteinfo><dbname>nowiki</dbname>'
    hidden = hidden_prefixes(siteinfo + b'<namespace key="100">Simple</namespace>')
    assert {"sv", "de"} <= hidden
    assert not {"no", "nb", "simple"} & hidden
    found = parse_wikitext("A [[no:B]] [[sv:B]][[Simple:C]] [[:sv:D]].", hidden)
    assert found == "A no:B Simple:C sv:D."
    [without_siteinfo] = read(f"<mediawiki>{page(1, 'A.[[de:B]]')}</mediawiki>".encode())
    assert without_siteinfo.text == "A."


OLD = """<mediawiki xml:lang="de">
<siteinfo><dbname>dewiki</dbname><namespaces><namespace key="0" /><namespace key="1">Diskussion</namespace>
<namespace key="100" case="first-letter">Portal</namespace></namespaces></siteinfo>
{}</mediawiki>"""


def test_the_titles_of_a_dump_without_ns_say_what_is_an_article():
    titles = ["A", "Diskussion:A", "talk:A", "User:B", "Portal :C", "Star Trek: D", "2001: E", "F"]
    pages = [
        f"<page><title>{title}</title><id>1</id><revision><text>Text of {title}</text></revision></page>"
        for title in titles
    ]
    redirect = "<page><title>{}</title><revision><text>{}</text></revision></page>"
    pages += [redirect.format("G", "#WEITERLEITUNG [[A]]"), redirect.format("H", "#转向 : [[A]]")]
    pages += [redirect.format("I", "# Liste [[A]]\n\nText of I")]
    skipped: dict[str, int] = {}
    found = read(OLD.format("".join(pages)).encode(), skipped=skipped)
    expected = ["Text of A", "Text of Star Trek: D", "Text of 2001: E", "Text of F", "Text of I"]
    assert [document.text for document in found] == expected
    assert skipped == {"not_an_article": 4, "redirect": 2}


@pytest.mark.parametrize("end", [b"", b"\n", b"</mediawiki>\n"])
@pytest.mark.parametrize(
    ("name", "pack"), [("b.xml", bytes), ("b.xml.bz2", bz2.compress), ("b", bytes)]
)
def test_a_block_of_a_multistream_dump_is_read(name, pack, end):
    block = "".join(PAGES).encode() + end
    assert [document.text for document in read(pack(block), name)] == TEXTS
    for cuts in ([40], [100, 300], [len(block) - 5], [len(block) - 40]):
        if pack is bytes:
            assert read_cut(block, name, cuts)[0] == TEXTS


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (b"<page><title>x", "the file ends within a page; fetch it again"),
        (b"  <pa", r"found b'<pa' outside of a page, expected a MediaWiki dump, or whole pages"),
        (b"<row/>", r"found b'<row/>' outside of a page"),
    ],
)
@pytest.mark.parametrize("cuts", [[], [100]])
def test_a_block_that_is_cut_short_is_refused(rest, said, cuts):
    with pytest.raises(ValueError, match=said):
        read_cut("".join(PAGES).encode() + rest, "b.xml", cuts)


def test_real_small_dump(shared_data):
    skipped: dict[str, int] = {}
    files = find_inputs([str(shared_data / "data/wiki_dump/testcorpus.xml.bz2")])
    [part] = plan_parts(files, "auto", 2**20)
    assert len(list(read_part(part, skipped=skipped))) + sum(skipped.values()) == 9
