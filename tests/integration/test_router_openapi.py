"""The router against schemathesis: requests made of its own OpenAPI document, valid and not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import hypothesis
import pytest
from aiohttp import web

from moonpool.router.front import PROXIED, Front
from moonpool.router.index import PrefixIndex
from moonpool.router.members import Named, named
from moonpool.router.options import Options
from moonpool.router.policy import create
from moonpool.router.service import listen, serving
from tests.unit.router.upstream import serving_app

schemathesis = pytest.importorskip("schemathesis")
KEY = "secret"
# Of each operation, by whether the router splits requests into prefill and decode.
EXAMPLES = {"whole": 12, "split": 5}

pytestmark = [
    pytest.mark.timeout(120),
    # Warnings of schemathesis' own dependencies are not the router's.
    pytest.mark.filterwarnings("ignore"),
]


ASKED: list[str] = []


async def _answer(request: web.Request) -> web.Response:
    ASKED.append(request.path)
    await request.read()
    return web.json_response({"object": "list", "data": []})


def _serve(started: threading.Event, found: dict[str, Any]) -> None:
    async def main() -> None:
        stop = found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{any:.*}", _answer)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(serving_app(app))
            index = PrefixIndex()
            options = Options(admin_key=KEY, body_timeout_s=2.0, idle_timeout_s=5.0)
            wanted: list[str | Named] = [url]
            if found["kind"] == "split":
                other = await stack.enter_async_context(serving_app(app))
                wanted = [named(url, "decode"), named(other, "prefill")]
            front = Front(wanted, create("prefix", index), options=options, index=index)
            found["front"], found["engine"] = front, url
            sock = listen("port", "127.0.0.1", 0)
            await stack.enter_async_context(serving(front, sock))
            found["url"] = f"http://127.0.0.1:{sock.getsockname()[1]}"
            started.set()
            await stop.wait()

    asyncio.run(main())


@pytest.fixture(scope="module", params=[*EXAMPLES])
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A router before engines that accept everything, in a thread of its own."""
    found: dict[str, Any] = {"kind": request.param}
    ASKED.clear()
    started = threading.Event()
    thread = threading.Thread(target=_serve, args=(started, found), daemon=True)
    thread.start()
    assert started.wait(20)
    yield found
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(20)


@pytest.fixture(scope="module")
def api(running: dict[str, Any]) -> Any:
    """The schema that the router itself tells."""
    return schemathesis.openapi.from_url(f"{running['url']}/openapi.json")


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_answers_are_as_the_document_says(api: Any, running: dict[str, Any], mode: str) -> None:
    generation = schemathesis.GenerationMode(mode)
    for result in api.get_all_operations():
        _try(result.ok().as_strategy(generation_mode=generation), EXAMPLES[running["kind"]])


def _try(cases: Any, examples: int) -> None:
    @hypothesis.given(case=cases)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[*hypothesis.HealthCheck],
        derandomize=True,
        database=None,
    )
    def attempt(case: Any) -> None:
        checks = schemathesis.specs.openapi.checks
        case.call_and_validate(
            checks=[
                schemathesis.checks.not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
            ],
            headers={"X-API-Key": KEY},
        )

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        # Nothing about an operation without input can be wrong.
        attempt()


def test_nothing_of_it_is_left(running: dict[str, Any]) -> None:
    front = running["front"]
    # Most of what was sent reached the engine, on every path.
    assert len(ASKED) > 40
    assert set(PROXIED) <= set(ASKED)
    assert front.admission.in_flight == front.admission.waiting == 0
    assert front.members.find(running["engine"]) is not None
    assert all(each.in_flight == 0 for each in front.instances)
