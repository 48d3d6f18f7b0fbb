"""Client processes of a benchmark that misbehave: each ends in a PeerError within its deadline."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moonpool.bench.peers import Peer, PeerError, call_all

ANSWER = "import json,sys\nfor line in sys.stdin: print(json.dumps({}), flush=True)"


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    peers: list[Peer] = []

    def start(code: str) -> Peer:
        log = tmp_path / f"{len(peers)}.log"
        peers.append(Peer("the peer", [sys.executable, "-c", code], dict(os.environ), log))
        return peers[-1]

    yield start
    for each in peers:
        each.close()


def test_a_peer_answers(peer: Callable[[str], Peer]) -> None:
    peers = [peer(ANSWER.replace("{}", f"{{'n': {n}}}")) for n in range(3)]
    assert call_all(peers, "ask", within_s=30) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert peers[0].call("ask", within_s=30) == {"n": 0}


def test_a_silent_peer_is_ended_at_its_deadline(peer: Callable[[str], Peer]) -> None:
    silent = peer("import time\ntime.sleep(600)")
    began = time.monotonic()
    with pytest.raises(PeerError, match="no answer within"):
        silent.call("ask", within_s=0.2)
    with pytest.raises(PeerError):
        silent.call("ask", within_s=30)
    silent.close()
    assert time.monotonic() - began < 30


def test_half_an_answer_is_none(peer: Callable[[str], Peer]) -> None:
    half = peer("import sys,time\nprint('{\"begin\"', end='', flush=True)\ntime.sleep(600)")
    with pytest.raises(PeerError, match="no answer within"):
        half.call("ask", within_s=1.0)


def test_the_last_words_of_a_peer_that_dies_are_told(peer: Callable[[str], Peer]) -> None:
    dies = peer("import sys\nsys.stdin.readline()\nsys.exit('no such library')")
    with pytest.raises(PeerError, match=r"exit code 1.*no such library"):
        dies.call("ask", within_s=30)


def test_failures_of_calls_are_told(peer: Callable[[str], Peer]) -> None:
    failing = peer(ANSWER.replace("{}", "{'failed': {'-800': 512}}"))
    with pytest.raises(PeerError, match="512 x -800"):
        failing.call("put", within_s=30)
    wrong = peer(ANSWER.replace("{}", "{'wrong': 2}"))
    with pytest.raises(PeerError, match="2 wrong"):
        wrong.call("lookup", within_s=30)
    raising = peer(ANSWER.replace("{}", "{'error': 'KeyError: 1'}"))
    with pytest.raises(PeerError, match="KeyError"):
        raising.call("put", within_s=30)


def test_a_peer_that_does_not_leave_is_ended(peer: Callable[[str], Peer]) -> None:
    stays = peer("import time\ntime.sleep(600)")
    began = time.monotonic()
    stays.close()
    assert time.monotonic() - began < 30
