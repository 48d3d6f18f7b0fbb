"""``moonpool bench e2e`` and servers that are not what they should be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.caching_engine import BLOCK, CachingEngine
from tests.integration.test_bench_e2e import _bench, _trace
from tests.unit.router.upstream import serving_app


@asynccontextmanager
async def _saying(models: bytes) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=models)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with serving_app(app) as url:
        yield url


@pytest.mark.parametrize(
    "models", [b"", b"nonsense", b"[]", b'{"data": 5}', b'{"data": [{"id": 3}]}', b"\xff\xfe"]
)
async def test_no_model_that_anyone_understands(tmp_path: Path, models: bytes) -> None:
    async with _saying(models) as url:
        code, _, err = await _bench("--endpoint", url, "--trace", _trace(tmp_path))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "/v1/models" in err


async def test_another_model_and_none(tmp_path: Path) -> None:
    engine = CachingEngine()
    async with engine.serving(), _saying(b'{"data": []}') as empty:
        for url, said in ((engine.url, "allowed: caching"), (empty, "allowed: none")):
            code, _, err = await _bench(
                "--endpoint", url, "--trace", _trace(tmp_path), "--model", "other"
            )
            assert code == 2
            assert said in err


async def test_an_endpoint_that_does_not_warm_up(tmp_path: Path) -> None:
    engine = CachingEngine(trouble={0: 500})
    async with engine.serving():
        code, out, err = await _bench("--endpoint", engine.url, "--trace", _trace(tmp_path))
    assert code == 1
    assert "does not answer: http 500" in err
    assert out == ""


async def test_counters_that_nobody_tells(tmp_path: Path) -> None:
    """Hits are then what the answers say, and sources unknown."""
    engine = CachingEngine()
    async with engine.serving():
        code, out, err = await _bench(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--metrics", "http://127.0.0.1:1", "--concurrency", 1,
        )  # fmt: skip
    assert code == 0, err
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert "unknown" in lines["pool"]
    assert "unknown" not in lines["hit, by the answers"]


async def test_a_trace_of_which_nothing_fits(tmp_path: Path) -> None:
    engine = CachingEngine()
    async with engine.serving():
        code, _, err = await _bench(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--context", 10,
        )  # fmt: skip
    assert code == 2
    assert "12 are too long" in err
