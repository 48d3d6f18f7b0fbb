from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.errors import ProtocolError, VersionMismatchError
from moonpool.protocol.framing import FRAME_BYTES_MAX, FrameDecoder, frame
from moonpool.protocol.versions import PROTOCOL_MAX, PROTOCOL_MIN, negotiate

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(payloads, st.lists(st.integers(0, 400), max_size=20))
def test_frames_survive_any_cut_of_the_stream(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in sent)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    decoder = FrameDecoder()
    got: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        got += decoder.feed(stream[start:end])
    assert got == sent
    assert decoder.held_bytes == 0


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_stream_is_cut_or_refused(stream: bytes, step: int) -> None:
    decoder = FrameDecoder(limit=64)
    for start in range(0, len(stream), step):
        try:
            payloads = decoder.feed(stream[start : start + step])
        except ProtocolError:
            return
        assert all(0 < len(payload) <= 64 for payload in payloads)
        assert decoder.held_bytes < 64 + 4
        assert decoder.missing_bytes > 0


@pytest.mark.parametrize("size", [0, FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_bad_length_is_refused_before_anything_is_stored(size: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        decoder.feed(size.to_bytes(4, "little"))
    assert decoder.held_bytes == 0


def test_the_limit_can_be_raised_when_the_peer_is_known() -> None:
    decoder = FrameDecoder(limit=3)
    assert decoder.feed(frame(b"abc")) == [b"abc"]
    decoder.limit = 4
    assert decoder.feed(frame(b"abcd")) == [b"abcd"]


def test_an_empty_frame_cannot_be_made() -> None:
    with pytest.raises(ProtocolError):
        frame(b"")


@given(st.integers(0, 9), st.integers(0, 9))
def test_the_newest_common_version_is_spoken(low: int, high: int) -> None:
    if low <= PROTOCOL_MAX and high >= PROTOCOL_MIN and low <= high:
        assert low <= negotiate(low, high) <= high
        assert PROTOCOL_MIN <= negotiate(low, high) <= PROTOCOL_MAX
    else:
        with pytest.raises(VersionMismatchError, match="are spoken here"):
            negotiate(low, high)
