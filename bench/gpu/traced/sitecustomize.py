"""Notes where the time of a request goes, in every Python process that finds this directory first.

With ``MOONPOOL_TRACE`` naming a directory, each process writes ``PID.jsonl`` there: lines of
[seconds on the host's monotonic clock, what, milliseconds or null, a detail]. Functions of vLLM's
engine and of connectors are wrapped as their modules are imported; what is called in every step is
summed up, and the sums are written when the next request comes after a rest.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

REST_S = 0.2
PLACE = os.environ.get("MOONPOOL_TRACE", "")


class Trace:
    """This process's notes."""

    def __init__(self) -> None:
        self._file: Any = None
        self._sums: dict[str, list[float]] = {}
        self._last = 0.0

    def note(self, what: str, spent_s: float | None = None, detail: object = None) -> None:
        """Write a line."""
        if self._file is None:
            self._file = open(f"{PLACE}/{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115, PTH123
        took = None if spent_s is None else round(spent_s * 1e3, 3)
        self._file.write(json.dumps([round(time.monotonic(), 6), what, took, detail]) + "\n")

    def add(self, what: str, spent_s: float) -> None:
        """Add to a sum."""
        found = self._sums.setdefault(what, [0, 0.0, 0.0])
        found[0] += 1
        found[1] += spent_s
        found[2] = max(found[2], spent_s)
        self._last = time.monotonic()

    def rest(self) -> None:
        """Write the sums if there has been nothing to do for a while."""
        if self._sums and time.monotonic() - self._last > REST_S:
            sums = {
                what: [int(n), round(total * 1e3, 2), round(most * 1e3, 2)]
                for what, (n, total, most) in self._sums.items()
            }
            self._sums = {}
            self.note("sums", None, sums)


trace = Trace()
atexit.register(trace.rest)


def summed(what: str) -> Callable[[Any], Any]:
    """Sum up the calls of a function."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                trace.add(what, time.perf_counter() - began)

        return call

    return decorate


def noted(
    what: str, detail: Callable[[Any, Any], object] = lambda _args, _result: True
) -> Callable[[Any], Any]:
    """Note each call of a function of which there is a detail to tell."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            try:
                told = detail(args, result)
            except (AttributeError, IndexError, TypeError) as error:
                told = repr(error)  # the function is another one by now; it must not suffer
            spent = time.perf_counter() - began
            if told:
                trace.note(what, spent, told)
            else:
                trace.add(what, spent)
            return result

        return call

    return decorate


def _added(args: Any, _result: Any) -> object:
    return [args[1].request_id, args[1].num_tokens]


def _after_rest(function: Any) -> Any:
    """Write the sums when a request comes after a rest."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        trace.rest()
        return function(*args, **kwargs)

    return call


def _loading(args: Any, _result: Any) -> object:
    meta = getattr(args[0], "_connector_metadata", None)
    found = getattr(meta, "loads", None) or getattr(meta, "load_jobs", None)
    return [len(found)] if found else None


CONNECTOR = {
    "get_num_new_matched_tokens": noted("matched", lambda _a, r: [r[0]] if r[0] != 0 else None),
    "update_state_after_alloc": noted("alloc", lambda a, _r: [a[3]] if a[3] else None),
    "build_connector_meta": summed("meta"),
    "handle_preemptions": summed("handle_preemptions"),
    "bind_connector_metadata": summed("bind"),
    "wait_for_layer_load": summed("layer load"),
    "save_kv_layer": summed("layer save"),
    "build_connector_worker_meta": summed("worker meta"),
    "get_kv_connector_stats": summed("stats"),
    "get_block_ids_with_load_errors": summed("load errors"),
    "start_load_kv": noted("start loads", _loading),
    "wait_for_save": summed("wait_for_save"),
    "get_finished": noted("finished", lambda _a, r: sorted(r[1]) if r[1] else None),
    "update_connector_output": summed("connector output"),
    "request_finished": summed("request_finished"),
    "on_new_request": summed("on_new_request"),
}
WRAPPED: dict[str, dict[str, dict[str, Callable[[Any], Any]]]] = {
    "vllm.v1.engine.core": {
        "EngineCore": {
            "add_request": noted("add", _added),
            "preprocess_add_request": noted("preprocess"),
            "step": summed("step"),
            "step_with_batch_queue": summed("step"),
        },
        "EngineCoreProc": {"_handle_client_request": _after_rest},
    },
    "vllm.v1.core.sched.scheduler": {
        "Scheduler": {
            "schedule": noted(
                "schedule",
                lambda _a, r: (
                    [r.total_num_scheduled_tokens] if r.total_num_scheduled_tokens > 300 else None
                ),
            ),
            "update_from_output": summed("update"),
        }
    },
    "vllm.v1.executor.uniproc_executor": {
        "UniProcExecutor": {
            "execute_model": summed("execute"),
            "sample_tokens": summed("sample"),
        }
    },
    "moonpool.vllm.connector": {"MoonpoolConnector": CONNECTOR},
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector": {
        "OffloadingConnector": CONNECTOR
    },
    "moonpool.vllm.executor": {"Executor": {"load": noted("job", lambda a, _r: [len(a[1])])}},
    "moonpool.vllm.loads": {
        "Loader": {
            "_fetch": noted("fetch", lambda a, _r: [a[2], a[3]]),
            "_end": noted("load end"),
        }
    },
    "moonpool.vllm.pins": {
        "PinBook": {
            "hold": noted("pin", lambda a, _r: [a[1], len(a[2]), a[0].blocks]),
            "give_back": noted("unpin", lambda a, _r: [a[1], a[0].blocks]),
        }
    },
    "moonpool.vllm.mover_client": {
        "Mover": {
            "_handle": noted(
                "told",
                lambda a, _r: [
                    [done.job_id for done in getattr(a[1], "saves", ())],
                    [done.generation for done in getattr(a[1], "loads", ())],
                ],
            )
        }
    },
    "moonpool.vllm.saves": {
        "Saver": {
            "submit": noted("save jobs", lambda a, _r: [job.job_id for job in a[1]]),
            "_put": noted("put", lambda a, _r: [a[1].save.job.job_id, a[1].first, a[1].last]),
            "_end": noted("save end", lambda a, _r: [a[1].job.job_id, sum(map(bool, a[1].codes))]),
        }
    },
    "moonpool.client.getting": {"Getter": {"read_chunk": noted("read", lambda a, _r: [len(a[1])])}},
    "moonpool.gpu.copier": {
        "CudaCopier": {
            "scatter": noted("scatter", lambda a, _r: [len(a[2])]),
            "gather": noted("gather", lambda a, _r: [len(a[1])]),
        }
    },
}


def wrap(module: ModuleType) -> None:
    """Wrap what is of interest in a module."""
    for name, methods in WRAPPED[module.__name__].items():
        owner = getattr(module, name, None)
        for method, decorate in methods.items():
            function = getattr(owner, "__dict__", {}).get(method)
            if function is not None:
                setattr(owner, method, decorate(function))


class Finder(importlib.abc.MetaPathFinder):
    """Wraps modules once they have been executed."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> Any:
        """Return the spec of a module of interest with a loader that wraps it."""
        if name not in WRAPPED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                wrap(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if PLACE:
    sys.meta_path.insert(0, Finder())
