"""Bytes damaged in every way give a result, or an error with the place, and nothing else.

scripts/soak/fuzz.py searches the same targets for longer, guided by coverage.
"""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.shards import manifest
from scripts.soak.fuzz import PLACE, expect_refusal, make_target
from scripts.soak.fuzz_seeds import codec_seeds, reader_seeds
from tests.peak_memory import peak_megabytes, reset_peak

TARGETS = [*reader_seeds(), *codec_seeds()]
NUMBERS = [-(2**63), -(2**31), -1, 0, 1, 2**15, 2**31 - 1, 2**32, 2**40, 2**62, 2**63 - 1]


@st.composite
def damage(draw, seeds):
    """A sound file after one to six changes: bytes, numbers, pieces taken out."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        at, size = draw(st.integers(0, max(0, len(data) - 1))), draw(st.integers(1, 40))
        change = draw(st.sampled_from("flip byte number cut double move end".split()))  # noqa: SIM905
        if change == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "byte" and data:
            data[at : at + 1] = draw(st.binary(max_size=4))
        elif change == "number":
            data[at : at + 8] = struct.pack("<q", draw(st.sampled_from(NUMBERS)))
        elif change == "cut":
            del data[at : at + size]
        elif change == "double":
            data[at:at] = data[at : at + size] * draw(st.integers(1, 50))
        elif change == "move":
            data[at:at] = data[draw(st.integers(0, len(data))) :][:size]
        elif change == "end":
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_give_a_result_or_an_error_with_the_place(name, tmp_path):
    seeds = (reader_seeds() | codec_seeds())[name]
    target = make_target(name, str(tmp_path / "files"))
    for seed in seeds:
        target(seed)  # sound as it is
    reset_peak()
    before = peak_megabytes()

    @settings(deadline=20_000, suppress_health_check=list(HealthCheck), database=None)
    @given(damage(seeds))
    def check(data):
        expect_refusal(target, data)

    check()
    assert peak_megabytes() - before < 300


@pytest.mark.parametrize("name", TARGETS)
def test_every_beginning_of_a_file_gives_a_result_or_an_error_with_the_place(name, tmp_path):
    target = make_target(name, str(tmp_path / "files"))
    for seed in (reader_seeds() | codec_seeds())[name]:
        for size in range(0, len(seed), 1 + len(seed) // 30):
            expect_refusal(target, seed[:size])


def test_a_parquet_footer_that_ends_processes_is_refused(tmp_path):
    """Of columns described wrongly: asked about them, Arrow throws where Python cannot catch."""
    for name in ("shards.parquet", "parquet.parquet"):
        data = (reader_seeds() | codec_seeds())[name][0]
        target = make_target(name, str(tmp_path / "files"))
        footer = data.rindex(b"PAR1") - 4 - struct.unpack("<I", data[-8:-4])[0]
        for at in range(footer, len(data) - 8):
            expect_refusal(target, data[:at] + bytes([data[at] ^ 0x30]) + data[at + 1 :])


def test_refusals_name_the_place():
    with pytest.raises(AssertionError, match="no place in"):
        expect_refusal(lambda _: (_ for _ in ()).throw(ValueError("somewhere")), b"")
    with pytest.raises(KeyError):
        expect_refusal(lambda _: {}["a"], b"")
    with pytest.raises(ValueError, match=f"^{PLACE}: not a dataset manifest"):
        manifest.parse_manifest(b"", PLACE)
