"""/drains on the master's HTTP side."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.master.test_admin import Pool

NODE = "10.0.0.1:12345"


def nodes(text: str) -> list[Any]:
    return [(each["node"], each["objects"], each["empty"]) for each in json.loads(text)["drains"]]


async def test_a_drain_is_begun_listed_and_ended() -> None:
    pool = Pool()
    pool.put("a", "b")
    assert nodes((await pool.ask("/drains"))[1]) == []
    status, text = await pool.ask(f"/drains?node={NODE}", "POST")
    assert (status, nodes(text)) == (200, [(NODE, 2, False)])
    assert nodes((await pool.ask("/drains"))[1]) == [(NODE, 2, False)]
    metrics = (await pool.ask("/metrics"))[1]
    assert f'moonpool_drain_objects{{node="{NODE}"}} 2.0' in metrics
    assert "moonpool_thin_objects 0.0" in metrics
    status, text = await pool.ask(f"/drains?node={NODE}", "DELETE")
    assert (status, nodes(text)) == (200, [])


async def test_what_cannot_be_drained_is_said() -> None:
    pool = Pool()
    for target in ("/drains", "/drains?node=nobody"):
        status, text = await pool.ask(target, "POST")
        assert status == 404
        assert "no node" in json.loads(text)["error"]
    assert (await pool.ask("/drains", "PUT"))[0] == 405


async def test_the_token_is_needed_to_change_something() -> None:
    pool = Pool(token="secret")
    assert (await pool.ask("/drains"))[0] == 200
    target = f"/drains?node={NODE}"
    assert (await pool.ask(target, "POST"))[0] == 401
    assert (await pool.ask(target, "POST", head="Authorization: Bearer wrong\r\n"))[0] == 401
    status, text = await pool.ask(target, "POST", head="Authorization: Bearer secret\r\n")
    assert (status, nodes(text)) == (200, [(NODE, 0, True)])
