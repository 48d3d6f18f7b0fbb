"""Who else names instances: files, Kubernetes, and a configuration that is read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web

from moonpool.config import RouterConfig
from moonpool.errors import ConfigError
from moonpool.router import build
from moonpool.router.discovery import FileSource, FileWatch, read_instances
from moonpool.router.kubernetes import (
    HttpSliceApi,
    KubernetesSource,
    Service,
    instances_of,
    parse_service,
)
from moonpool.router.members import Named
from moonpool.router.service import Reloader
from tests.unit.router.upstream import serving_app

WAIT_S = 10.0


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def _into(seen: list[list[str]]) -> Callable[[list[Named]], None]:
    return lambda found: seen.append([each.url for each in found])


def _urls(slices: dict[str, Any], port: str) -> list[str]:
    return [each.url for each in instances_of(slices, port)]


def _read(path: Path) -> list[str]:
    return [each.url for each in read_instances(path)]


def _ended(task: asyncio.Task[None]) -> Any:
    task.cancel()
    return asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.txt", "http://a:1  # the first\n\n# none\nhttp://b:2/\n"),
        ("list.json", json.dumps({"instances": ["http://a:1", {"url": "http://b:2"}]})),
        ("list.toml", 'instances = ["http://a:1", "http://b:2"]'),
    ],
)
def test_files_of_several_forms(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert _read(tmp_path / name) == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "not a url"), ("a.json", "{"), ("a.json", '{"instances": 3}'), ("a.txt", "\0"),
     ("a.json", '{"instances": [7]}'), ("a.txt", "http://a\n" * 600)],
)  # fmt: skip
def test_files_that_are_wrong_are_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError):
        _read(tmp_path / name)
    with pytest.raises(ConfigError):
        _read(tmp_path / "none.txt")


async def test_a_file_that_changes_is_read_again_and_a_broken_one_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, seen = tmp_path / "urls", list[list[str]]()
    file.write_text("http://a")
    task = asyncio.create_task(FileSource(file, look_s=0.001).run(_into(seen)))
    await _until(lambda: seen == [["http://a"]])
    file.write_text("this is broken")
    await _until(lambda: "stay as they are" in caplog.text)
    file.unlink()
    file.write_text("http://a\nhttp://b")
    await _until(lambda: seen[1:] == [["http://a", "http://b"]])
    await _ended(task)


def _slice(name: str, *addresses: str, ready: bool | None = True, port: int = 8000) -> Any:
    return {
        "metadata": {"name": name},
        "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": [a], "conditions": {"ready": ready}} for a in addresses],
    }


def test_ready_endpoints_are_instances() -> None:
    slices = {
        "a": _slice("a", "10.0.0.2", "10.0.0.1"),
        "b": _slice("b", "10.0.0.3", ready=False),
        "c": _slice("c", "fd00::1", ready=None, port=9000),
        "d": {"ports": None, "endpoints": "nonsense"},
        "e": {"ports": [{"port": 1}], "endpoints": [None, {"addresses": [7]}]},
    }
    assert _urls(slices, "") == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://[fd00::1]:9000",
    ]
    assert _urls(slices, "9000")[-1] == "http://[fd00::1]:9000"
    assert _urls({"a": slices["a"]}, "http") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert _urls({"a": slices["a"]}, "other") == []


@pytest.mark.parametrize("text", ["x", "a/", "/b", "a/b:", "../x/y", "a b/c"])
def test_services_are_parsed(text: str) -> None:
    assert parse_service("prod/vllm:http") == Service("prod", "vllm", "http")
    if text != "a/b:":
        with pytest.raises(ConfigError, match="names no service"):
            parse_service(text)


class ApiServer:
    """A Kubernetes API server as far as EndpointSlices go."""

    def __init__(self) -> None:
        self.slices = [_slice("a", "10.0.0.1")]
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.lists = 0
        self.fail = 0
        self.requests: list[web.Request] = []

    def app(self) -> web.Application:
        app = web.Application()
        path = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
        app.router.add_get(path, self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if "watch" not in request.query:
            self.lists += 1
            if self.fail:
                self.fail -= 1
                return web.Response(status=503, text="busy")
            body = {"metadata": {"resourceVersion": "7"}, "items": self.slices}
            return web.json_response(body)
        response = web.StreamResponse()
        await response.prepare(request)
        while (line := await self.events.get()) is not None:
            await response.write(line)
        return response

    def tell(self, kind: str, each: Any) -> None:
        line = json.dumps({"type": kind, "object": each}).encode() + b"\n"
        # In two pieces: an event may come in any number of them.
        self.events.put_nowait(line[:9])
        self.events.put_nowait(line[9:])


async def test_endpoints_are_listed_then_watched(tmp_path: Path) -> None:
    server, seen = ApiServer(), list[list[str]]()
    server.fail = 1
    (tmp_path / "token").write_text("secret\n")
    async with serving_app(server.app()) as base:
        api = HttpSliceApi(base, Service("prod", "vllm"), tmp_path)
        task = asyncio.create_task(
            KubernetesSource(api, retry_s=0.001).run(
                lambda found: seen.append([each.url for each in found])
            )
        )
        await _until(lambda: seen == [["http://10.0.0.1:8000"]])
        server.tell("ADDED", _slice("b", "10.0.0.2"))
        await _until(lambda: len(seen) == 2)
        server.tell("MODIFIED", _slice("a", "10.0.0.1", ready=False))
        await _until(lambda: len(seen) == 3)
        server.tell("BOOKMARK", {"metadata": {}})
        server.tell("DELETED", _slice("b"))
        await _until(lambda: len(seen) == 4)
        # Too old a version: everything is listed again.
        server.tell("ERROR", {"code": 410})
        await _until(lambda: len(seen) == 5)
        server.events.put_nowait(None)
        await _until(lambda: server.lists == 4)
        assert seen[1:4] == [
            ["http://10.0.0.1:8000", "http://10.0.0.2:8000"], ["http://10.0.0.2:8000"], [],
        ]  # fmt: skip
        request = server.requests[-1]
        assert request.headers["Authorization"] == "Bearer secret"
        assert request.query["labelSelector"] == "kubernetes.io/service-name=vllm"
        await _ended(task)


async def test_garbage_from_the_api_server_changes_nothing(tmp_path: Path) -> None:
    server, seen = ApiServer(), list[list[str]]()
    async with serving_app(server.app()) as base:
        api = HttpSliceApi(base, Service("prod", "vllm"), tmp_path)
        task = asyncio.create_task(
            KubernetesSource(api, retry_s=0.001).run(
                lambda found: seen.append([each.url for each in found])
            )
        )
        await _until(lambda: len(seen) == 1)
        for line in (b"{nonsense}\n", b"[]\n", b'{"type": "ADDED", "object": 3}\n'):
            lists = server.lists
            server.events.put_nowait(line)
            await _until(lambda before=lists: server.lists > before)  # type: ignore[misc]
        assert all(each == ["http://10.0.0.1:8000"] for each in seen)
        await _ended(task)


@pytest.mark.parametrize("text", ["file:", "etcd:x", "kubernetes:x/y", "kubernetes:bad"])
def test_sources_that_are_none_are_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="discovery"):
        build.source_of(text)


def test_a_configuration_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RouterConfig(backends=("http://a", "http://b"), policy="session")
    front = build.front_of(config)
    kept = front.instances[1]
    new: list[RouterConfig | ConfigError] = [
        RouterConfig(backends=("http://b", "http://c"), policy="least_loaded", in_flight=7, port=1),
        ConfigError("backends: broken"),
    ]

    def read() -> RouterConfig:
        found = new.pop(0)
        if isinstance(found, ConfigError):
            raise found
        return found

    reloader = Reloader(front, config, read, tmp_path / "none")
    reloader.reload()
    assert [each.url for each in front.instances] == ["http://b", "http://c"]
    assert front.instances[0] is kept
    assert front.policy_name == "least_loaded"
    assert front.admission.capacity() == 7
    assert "need a restart: port" in caplog.text
    reloader.reload()
    assert "configuration not taken: backends: broken" in caplog.text
    assert len(front.instances) == 2


def test_a_watch_sees_each_change_once(tmp_path: Path) -> None:
    file = tmp_path / "x"
    watch = FileWatch(file)
    assert not watch.changed()
    file.write_text("1")
    assert [watch.changed(), watch.changed()] == [True, False]
    file.write_text("22")
    # It may still be being written: only when it rests it has changed.
    assert [watch.changed(), watch.changed(), watch.changed()] == [False, True, False]


def test_a_configuration_without_engines_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    config = RouterConfig(backends=("http://a",), policy="session")
    front = build.front_of(config)
    Reloader(front, config, lambda: RouterConfig(policy="least_loaded")).reload()
    assert [each.url for each in front.instances] == ["http://a"]
    assert front.policy_name == "session"
    assert "configuration not taken: backends: none are named any more" in caplog.text


def test_a_list_that_was_emptied_is_a_mistake_and_an_empty_table_is_not(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="names no instance"):
        read_instances(tmp_path / "list")
    (tmp_path / "list.json").write_text('{"instances": []}')
    assert read_instances(tmp_path / "list.json") == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.txt", "http://a:1 prefill 8998\nhttp://b:2 decode\nhttp://c:3\n"),
        (
            "list.json",
            json.dumps(
                {
                    "instances": [
                        {"url": "http://a:1", "role": "kv_producer", "bootstrap": 8998},
                        {"url": "http://b:2", "role": "decode"},
                        "http://c:3",
                    ]
                }
            ),
        ),
    ],
)
def test_files_tell_roles(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_instances(tmp_path / name) == [
        Named("http://a:1", "prefill", "http://a:8998"),
        Named("http://b:2", "decode"),
        Named("http://c:3"),
    ]


@pytest.mark.parametrize("line", ["http://a best", "http://a prefill 0", "http://a prefill 1 2"])
def test_wrong_roles_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text(line)
    with pytest.raises(ConfigError, match="discovery"):
        read_instances(tmp_path / "list")


def test_a_service_s_label_and_ports_tell_the_role() -> None:
    prefill = _slice("p", "10.0.0.1", "fd00::1")
    prefill["metadata"]["labels"] = {"moonpool.io/role": "prefill"}
    prefill["ports"].append({"name": "bootstrap", "port": 8998})
    decode = _slice("d", "10.0.0.2")
    decode["metadata"]["labels"] = {"moonpool.io/role": "nonsense"}
    assert instances_of({"p": prefill, "d": decode}, "") == [
        Named("http://10.0.0.1:8000", "prefill", "http://10.0.0.1:8998"),
        Named("http://10.0.0.2:8000", "both"),
        Named("http://[fd00::1]:8000", "prefill", "http://[fd00::1]:8998"),
    ]
    assert parse_service("prod/p,d:http") == Service("prod", "p,d", "http")
    url = HttpSliceApi("http://api", Service("prod", "p,d"))._url
    assert unquote(url.partition("labelSelector=")[2]) == "kubernetes.io/service-name in (p,d)"
