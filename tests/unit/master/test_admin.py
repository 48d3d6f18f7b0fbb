"""The pages of Mooncake's master, as its users' scripts read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from moonpool.master.http import HttpSession
from moonpool.master.pages import pages_of
from moonpool.master.service import Service
from tests.unit.core.driver import segment_info
from tests.unit.master.peers import Pipe, new_service

NAMES = Path(__file__).parent / "mooncake_metrics.txt"


class Pool:
    """A service with a segment and some objects, and its pages."""

    def __init__(self, token: str = "") -> None:
        self.service: Service = new_service(token=token)
        self.pages = pages_of(self.service)
        self.do(m.Mount(segment_info("10.0.0.1:12345", 64, 64)), "node")
        self.do(m.Announce(1, [], True), "node")

    def do(self, request: Any, peer: str = "client") -> Any:
        return self.service.state.handle(request, peer, self.service.now()).reply

    def put(self, *names: str, size: int = 5000, **more: Any) -> None:
        items = [m.PutItem(key_of(name), size) for name in names]
        grants = self.do(m.PutStart(items, **more)).grants
        self.do(m.PutEnd([each.generation for each in grants], [0] * len(grants)))

    async def ask(
        self, target: str, method: str = "GET", body: bytes = b"", head: str = ""
    ) -> tuple[int, str]:
        session, pipe = HttpSession(self.pages), Pipe()
        session.connection_made(pipe)
        first = f"{method} {target} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        session.data_received(first.encode())
        session.data_received(body)
        for _ in range(100):
            if not pipe.closed:
                session._go_on()
        session.connection_lost(None)
        assert pipe.closed
        sent, _, text = bytes(pipe.sent).partition(b"\r\n\r\n")
        return int(sent.split()[1]), text.decode()


async def test_keys() -> None:
    pool = Pool()
    pool.put("a b", "k2", "line\nbreak")
    status, text = await pool.ask("/query_key?key=k2")
    found = json.loads(text)
    assert (status, found["success"]) == (200, True)
    assert found["data"][0]["size_"] == 5000
    assert set(found["data"][0]) == {
        "size_",
        "buffer_address_",
        "protocol_",
        "transport_endpoint_",
    }
    assert (await pool.ask("/query_key?key=a%20b"))[0] == 200
    missing = {"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}
    for target in ("/query_key?key=none", "/query_key"):
        status, text = await pool.ask(target)
        assert (status, json.loads(text)) == (404, missing)
    _, text = await pool.ask("/batch_query_keys?keys=k2,none")
    data = json.loads(text)["data"]
    assert (data["k2"]["ok"], data["none"]["error"]) == (True, "OBJECT_NOT_FOUND")
    assert (await pool.ask("/batch_query_keys"))[0] == 400
    _, text = await pool.ask("/get_all_keys")
    assert sorted(text.splitlines()) == ["a b", "k2", "line\\nbreak"]


async def test_all_keys_come_in_parts() -> None:
    pool = Pool()
    for start in range(40):
        pool.put(f"k{start}", size=100)
    _, text = await pool.ask("/get_all_keys")
    assert len(text.split()) == 40
    assert await pool.ask("/get_all_keys", "HEAD") == (200, "")
    assert await pool.ask("/role", "HEAD") == (200, "")


async def test_segments() -> None:
    pool = Pool()
    pool.put("a")
    name = "10.0.0.1:12345"
    assert await pool.ask("/get_all_segments") == (200, f"{name}\n")
    _, text = await pool.ask(f"/query_segment?segment={name}")
    assert text.splitlines() == [name, "Used(bytes): 8192", f"Capacity(bytes) : {64 * 4096}"]
    assert await pool.ask("/query_segment?segment=none") == (500, "Failed to query segment")
    _, text = await pool.ask(f"/api/v1/segments/status?segment={name}")
    assert json.loads(text)["status_name"] == "OK"
    assert (await pool.ask("/api/v1/segments/status?segment=none"))[0] == 404
    assert (await pool.ask("/api/v1/segments/status"))[0] == 400
    _, text = await pool.ask("/get_segments_detail")
    detail = json.loads(text)
    assert (detail["total_segments"], detail["segments"][0]["segment_name"]) == (1, name)


async def test_what_the_master_is() -> None:
    pool = Pool()
    _, text = await pool.ask("/health")
    assert {"status": "ok", "role": "leader", "service_ready": True}.items() <= json.loads(
        text
    ).items()
    assert await pool.ask("/role") == (200, "leader")
    assert await pool.ask("/ha_status") == (200, "serving")
    assert json.loads((await pool.ask("/leader"))[1])["present"] is False
    assert json.loads((await pool.ask("/kv_events/status"))[1])["enabled"] is False
    status, text = await pool.ask("/api/v1/tenant_quotas")
    assert (status, json.loads(text)["error_code"]) == (409, -1011)


async def test_all_of_mooncakes_metrics_are_there() -> None:
    pool = Pool()
    pool.put("a", soft_pin_s=-1.0)
    _, text = await pool.ask("/metrics")
    for line in NAMES.read_text().splitlines():
        assert f"# TYPE {line}\n" in text, line
    values = dict(re.findall(r"^(\S+) ([0-9.e+]+)$", text, re.MULTILINE))
    assert values["master_key_count"] == values["master_soft_pin_key_count"] == "1"
    assert values["master_total_capacity_bytes"] == str(64 * 4096)
    assert values['segment_allocated_bytes{segment="10.0.0.1:12345"}'] == "8192"
    assert values['master_value_size_bytes_bucket{le="4096.000000"}'] == "0"
    assert values['master_value_size_bytes_bucket{le="65536.000000"}'] == "1"
    assert values["moonpool_objects"] == "1.0"


async def test_the_summary_tells_what_operators_look_for() -> None:
    pool = Pool()
    pool.put("a", "b")
    status, text = await pool.ask("/metrics/summary")
    assert status == 200
    assert text.startswith("role=leader, state=serving, service_ready=true, master={Mem Storage: ")
    assert "16.00 KB / 256.00 KB (6.2%)" in text
    assert "Keys: 2 (soft-pinned: 0)" in text
    assert "Eviction: Success/Attempts=0/0, AllocFail=0" in text


async def test_remove_all_spares_what_is_leased_and_wants_the_token() -> None:
    pool = Pool(token="secret")
    pool.put("a", "b")
    pool.do(m.Get([key_of("a")], 1, 60.0))
    assert (await pool.ask("/api/v1/remove_all", "POST"))[0] == 401
    assert (await pool.ask("/api/v1/remove_all"))[0] == 405
    said = "Authorization: Bearer secret\r\n"
    _, text = await pool.ask("/api/v1/remove_all", "POST", head=said)
    assert json.loads(text) == {"success": True, "removed_count": 1}
    _, text = await pool.ask("/api/v1/remove_all?force=true", "POST", b"{}", head=said)
    assert json.loads(text)["removed_count"] == 1


@pytest.mark.parametrize("length", ["-1", "x", "99999999"])
async def test_bodies_are_bounded(length: str) -> None:
    pool = Pool()
    session, pipe = HttpSession(pool.pages), Pipe()
    session.connection_made(pipe)
    session.data_received(
        f"POST /api/v1/remove_all HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    assert b" 413 " in bytes(pipe.sent)[:20]
    session.connection_lost(None)
