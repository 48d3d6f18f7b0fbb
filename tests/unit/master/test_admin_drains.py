"""Drain jobs, as Mooncake's pages have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moonpool.core import messages as m
from tests.unit.core.driver import segment_info
from tests.unit.master.test_admin import Pool

NAME = "10.0.0.1:12345"
URL = "/api/v1/drain_jobs"


async def start(pool: Pool, *names: str) -> str:
    body = json.dumps({"segments": list(names)}).encode()
    status, text = await pool.ask(URL, "POST", body)
    said = json.loads(text)
    assert (status, said["status"]) == (200, "CREATED")
    return str(said["job_id"])


async def query(pool: Pool, job: str) -> dict[str, Any]:
    status, text = await pool.ask(f"{URL}/query?job_id={job}")
    assert status == 200
    found: dict[str, Any] = json.loads(text)
    return found


async def test_a_drain_of_an_empty_node_succeeds() -> None:
    pool = Pool()
    job = await start(pool, NAME)
    pool.do(m.Tick(), "")
    found = await query(pool, job)
    assert (found["status_name"], found["segments"]) == ("SUCCEEDED", [NAME])
    _, text = await pool.ask(f"/api/v1/segments/status?segment={NAME}")
    assert json.loads(text)["status_name"] == "DRAINED"
    status, text = await pool.ask(f"{URL}/cancel?job_id={job}", "POST")
    assert (status, json.loads(text)["error_code"]) == (409, -1010)


async def test_what_has_no_other_place_blocks_a_drain_until_it_is_canceled() -> None:
    pool = Pool()
    pool.put("a", "b")
    job = await start(pool, NAME)
    pool.do(m.Tick(), "")
    found = await query(pool, job)
    assert found["status_name"] == "RUNNING"
    assert found["succeeded_units"] == 0
    _, text = await pool.ask(f"/api/v1/segments/status?segment={NAME}")
    assert json.loads(text)["status_name"] == "DRAINING"
    status, text = await pool.ask(f"{URL}/cancel?job_id={job}", "POST")
    assert (status, json.loads(text)["status"]) == (200, "CANCELED")
    _, text = await pool.ask(f"/api/v1/segments/status?segment={NAME}")
    assert json.loads(text)["status_name"] == "OK"
    assert (await query(pool, job))["status_name"] == "CANCELED"
    pool.put("c")


async def test_a_node_that_leaves_ends_the_job() -> None:
    pool = Pool()
    pool.put("a")
    pool.do(m.Mount(segment_info("10.0.0.2:1", 8, 8)), "other")
    job = await start(pool, NAME)
    pool.do(m.Unmount(1), "node")
    assert (await query(pool, job))["status_name"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"junk", 400, -600),
        (b"[]", 400, -600),
        (b'{"segments": []}', 400, -600),
        (b'{"segments": [5]}', 400, -600),
        (b'{"segments": ["nope"]}', 404, -101),
        (b"\xff", 400, -600),
    ],
)
async def test_what_cannot_be_drained(body: bytes, status: int, code: int) -> None:
    found, text = await Pool().ask(URL, "POST", body)
    assert (found, json.loads(text)["error_code"]) == (status, code)


async def test_jobs_that_are_not_there() -> None:
    pool = Pool(token="secret")
    for job, status in (("1-2", 404), ("x", 400), ("", 400)):
        assert (await pool.ask(f"{URL}/query?job_id={job}"))[0] == status
        head = "Authorization: Bearer secret\r\n"
        asked = await pool.ask(f"{URL}/cancel?job_id={job}", "POST", head=head)
        assert asked[0] == status
    assert (await pool.ask(URL, "POST", b'{"segments": ["x"]}'))[0] == 401
    assert (await pool.ask(f"{URL}/cancel?job_id=1-2", "POST"))[0] == 401
