"""``moonpool up``: the stack behind one OpenAI-compatible port, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.leftovers import Leftovers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
UP = [
    *(sys.executable, "-m", "moonpool.cli", "up", "--port", "0", "--pool-size", "256MB"),
    *("--engine-kv-size", "64MB", "--context-tokens", "2048"),
]
WAIT_S = 120.0
Ask = Callable[[str, str, subprocess.Popen[str]], None]
LONG_TEXT = "All work and no play makes a dull day. " * 20


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def _stream(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))
            elif line.strip():
                assert line == b"data: [DONE]\n"


def test_one_port_answers_like_openai_until_ctrl_c(tmp_path: Path) -> None:
    """The node has a disk."""
    disk = tmp_path / "ssd"
    _run(tmp_path, ["--ssd", f"{disk}:512MB"], _ask)
    assert [path.name for path in disk.glob("*/lock")] == ["lock"]


def test_what_is_killed_is_started_again(tmp_path: Path) -> None:
    """Node, master and a replica, one after the other: the front answers all the time, and what
    was in the pool before is there again."""
    _run(tmp_path, [], _kill_in_turn)


def test_prefill_and_decode_on_different_processes(tmp_path: Path) -> None:
    _run(tmp_path, ["--prefill", "1", "--decode", "1"], _ask_split)


def _run(
    tmp_path: Path, flags: list[str], ask: Callable[[str, str, subprocess.Popen[str]], None]
) -> None:
    leftovers = Leftovers(tmp_path)
    process = subprocess.Popen(
        [*UP, *flags],
        env=leftovers.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with leftovers.watching():
            ask(*_until_ready(process), process)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, rest
    assert rest.splitlines()[-1] == "stopped"
    leftovers.check(process.pid)


def _until_ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the base URL and the model's name that the command prints once it serves."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        match = re.match(r"ready: (http://\S+)/v1 \(model (\S+)\)", line)
        if match:
            return match[1], match[2]
    raise AssertionError("".join(lines))


def _ask(url: str, model: str, _: object) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=WAIT_S) as response:
        assert json.load(response)["data"][0]["id"] == model
    _chat(url, model)
    _same_answer_from_both_replicas(url, model)
    with pytest.raises(urllib.error.HTTPError) as caught:
        _post(f"{url}/v1/completions", {"model": "another", "prompt": "x"})
    with caught.value as error:
        assert error.code == 404
        assert "another" in json.load(error)["error"]["message"]


def _ask_split(url: str, model: str, _: object) -> None:
    body = {"model": model, "prompt": LONG_TEXT, "max_tokens": 40, "temperature": 0}
    first = _post(f"{url}/v1/completions", {**body, "ignore_eos": True})
    text = first["choices"][0]["text"]
    assert (
        "".join(
            event["choices"][0]["text"]
            for event in _stream(f"{url}/v1/completions", {**body, "ignore_eos": True})
        )
        == text
    )
    # Of the first request nothing was cached, of a longer one what was computed for it is.
    assert not (first["usage"]["prompt_tokens_details"] or {}).get("cached_tokens")
    again = _post(f"{url}/v1/completions", {**body, "prompt": LONG_TEXT + text + LONG_TEXT})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as response:
        page = response.read().decode()
    assert 'moonpool_router_pd_requests_total{path="split",reason="beside"}' in page


def _chat(url: str, model: str) -> None:
    messages = [{"role": "user", "content": "Say something."}]
    body = {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0}
    whole = _post(f"{url}/v1/chat/completions", {**body, "ignore_eos": True})
    text = whole["choices"][0]["message"]["content"]
    events = list(_stream(f"{url}/v1/chat/completions", {**body, "ignore_eos": True}))
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert sum(piece != "" for piece in pieces) > 1
    assert "".join(pieces) == text


def _kill_in_turn(url: str, model: str, process: subprocess.Popen[str]) -> None:
    for command, name in (("node", "node"), ("master", "master"), ("api_server", "vllm-pool-")):
        body = {"model": model, "prompt": f"{name}: {LONG_TEXT}", "max_tokens": 8, "temperature": 0}
        first = _post(f"{url}/v1/completions", body)
        os.kill(_child_of(process.pid, command), signal.SIGKILL)
        assert _post(f"{url}/v1/completions", {**body, "prompt": name})["choices"]
        assert process.stdout is not None
        assert any(re.match(f"{name}.* is back", line) for line in process.stdout)
        # In turn: one of the two has it from the pool, the restarted replica in any case.
        for each in (_post(f"{url}/v1/completions", body) for _ in range(2)):
            assert each["choices"][0]["text"] == first["choices"][0]["text"]
            assert each["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512


def _child_of(parent: int, word: str) -> int:
    """Return the id of the child that runs ``python -m ....word``."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if any(each.rpartition(".")[2] == word for each in words):
                return int(pid)
    raise AssertionError(f"no {word}")


def _same_answer_from_both_replicas(url: str, model: str) -> None:
    """Ask twice, round robin: the second replica finds in the pool what the first one made."""
    body = {"model": model, "prompt": LONG_TEXT, "max_tokens": 8, "temperature": 0}
    first, second = (_post(f"{url}/v1/completions", body) for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512
