"""Random arguments for all calls, made from a number, and what came of a call, in short.

Arguments are JSON: ``{"at": n}`` is an address in registered memory, ``{"wild": n}`` one that is in
none, ``{"bytes": hex}``, ``{"tuple": [...]}`` and ``{"config": {...}}`` stand for themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

MEMORY = 1 << 16
Call = dict[str, Any]

TEXT = ["a", "b", "nosuch", "", "ü", "a\0", {"bytes": "61"}]
NO_TEXT: list[Any] = [5, None, ["a"], "\ud800", 1.5, {"tuple": []}]
TEXTS = [
    ["a"],
    ["a", "b"],
    ["nosuch", "a"],
    [],
    ["a", ""],
    {"tuple": ["b"]},
    ["new"],
    ["new", "new2"],
]
NO_TEXTS = ["a", [5], None, 5, [None], [["a"]], {"bytes": "61"}, {}]
NUMBER = [0, 1, 3, 10, 20, True]
NO_NUMBER = [-1, 1 << 64, 1.0, "5", None, [1]]
FLAG = [True, False, None, 0, 1, 1.5]
NO_FLAG = ["yes", [1], {"bytes": "61"}]
VALUE = [{"bytes": "6162"}, {"bytes": ""}, {"zeros": 5000}]
NO_VALUE = ["text", 5, None, [1]]
CONFIG: list[Any] = [
    {"config": {}},
    {"config": {"replica_num": 0}},
    {"config": {"replica_num": 2}},
    {"config": {"with_hard_pin": True}},
    {"config": {"preferred_segments": ["nosuch"]}},
    {"config": {"group_ids": ["g"]}},
    {"config": {"group_ids": ["g", "h"]}},
    {"config": {"prefer_alloc_in_same_node": True}},
    {"config": {"soft_pin_ttl_ms": 5}},
    {"config": {"nof_replica_num": 1}},
]
NO_CONFIG: list[Any] = [None, 5, "x", {}]
ANYTHING: list[Any] = [None, 5, "x", [], {"bytes": "61"}]
GOOD: dict[str, list[Any]] = {
    "text": TEXT,
    "texts": TEXTS,
    "number": NUMBER,
    "flag": FLAG,
    "value": VALUE,
    "values": [[v] for v in VALUE] + [[], [VALUE[0], VALUE[0]], [VALUE[0], VALUE[1]]],
    "config": CONFIG,
    "no_group": [each for each in CONFIG if "group_ids" not in each["config"]],
    "no_tensor": ANYTHING,
    "no_tensors": [[], [5], [None, "x"]],
    "regex": ["a", "(", "^b$", "", "nosuch", "[ab]"],
    "pair": [{"tuple": [1, 2]}, [3, 4]],
    "name": ["nosuch", "", "x:1"],
    "names": [["nosuch"], [], ["x", "y"]],
    "rank": [0, 1, 2, -1],
}
BAD: dict[str, list[Any]] = {
    "text": NO_TEXT,
    "texts": NO_TEXTS,
    "number": NO_NUMBER,
    "at": NO_NUMBER,
    "ats": ["x", 5, None, [1.0], [-1], ["x"]],
    "numbers": ["x", 5, None, [1.0], [-1], ["x"], [1 << 64]],
    "all_ats": [[5], None, "x", [[1.0]], [["x"]], [[-1]]],
    "all_numbers": [[5], None, "x", [[1.0]], [["x"]], [[-1]], [[1 << 64]]],
    "flag": NO_FLAG,
    "value": NO_VALUE,
    "values": ["x", 5, None, ["text"], [5], {"bytes": "61"}],
    "config": NO_CONFIG,
    "no_group": NO_CONFIG,
    "no_tensors": [None, 5, "x", {"tuple": []}],
    "regex": NO_TEXT,
    "pair": [5, None, [1], [1, 2, 3], ["a", "b"], [-1, 1]],
    "name": NO_TEXT,
    "names": NO_TEXTS,
    "rank": ["x", 1.0, None, 1 << 31],
}
PLACE = "key:text", "buffer_ptr:at", "size:number"
PLACES = "keys:texts", "buffer_ptrs:ats", "sizes:numbers"
PIECES = "keys:texts", "all_buffer_ptrs:all_ats", "all_sizes:all_numbers"
CONF = "config:config?"
CONF_UPSERT = "config:no_group?"
METHODS: dict[str, tuple[str, ...]] = {
    "put": ("key:text", "value:value", CONF),
    "put_batch": ("keys:texts", "values:values", CONF),
    "upsert": ("key:text", "value:value", CONF_UPSERT),
    "upsert_batch": ("keys:texts", "values:values", CONF_UPSERT),
    "get": ("arg0:text",),
    "get_batch": ("arg0:texts",),
    "get_buffer": ("arg0:text",),
    "batch_get_buffer": ("arg0:texts",),
    "get_size": ("arg0:text",),
    "is_exist": ("arg0:text",),
    "batch_is_exist": ("keys:texts",),
    "remove": ("key:text", "force:flag?"),
    "batch_remove": ("keys:texts", "force:flag?"),
    "remove_by_regex": ("regex_pattern:regex", "force:flag?"),
    "remove_all": ("force:flag?",),
    "batch_replica_clear": ("keys:texts", "segment_name:name?"),
    "get_replica_desc": ("key:text",),
    "batch_get_replica_desc": ("keys:texts",),
    "create_copy_task": ("key:text", "targets:names"),
    "create_move_task": ("key:text", "source:name", "target:name"),
    "query_task": ("task_id:pair",),
    "put_from": (*PLACE, CONF),
    "upsert_from": (*PLACE, CONF_UPSERT),
    "get_into": PLACE,
    "batch_put_from": (*PLACES, CONF),
    "batch_upsert_from": (*PLACES, CONF_UPSERT),
    "batch_get_into": PLACES,
    "batch_put_from_multi_buffers": (*PIECES, CONF),
    "batch_get_into_multi_buffers": (*PIECES, "prefer_alloc_in_same_node:flag?"),
    "batch_get_session_start": ("keys:texts",),
    "batch_get_session_end": ("keys:texts",),
    "batch_put_session_start": ("keys:texts", "sizes:numbers", CONF),
    "batch_put_session_end": ("keys:texts",),
    "batch_put_session_revoke": ("keys:texts",),
    "batch_get_into_multi_buffer_ranges": (*PIECES, "all_src_offsets:all_numbers"),
    "batch_put_from_multi_buffer_ranges": (*PIECES, "all_dst_offsets:all_numbers"),
    "unmount_segment": ("segment_ids:names", "grace_period_seconds:number?"),
    "unmount_and_free_segment": ("segment_ids:names", "grace_period_seconds:number?"),
    "unmount_local_disk_segment": ("grace_period_seconds:number?",),
    "mount_segment": ("path:name", "size:number", "offset:number?"),
    "health_check": (),
    "get_hostname": (),
    "get_offload_rpc_read_count": (),
    "get_tensor": ("key:text",),
    "batch_get_tensor": ("keys:texts",),
    "put_tensor": ("key:text", "tensor:no_tensor"),
    "batch_put_tensor": ("keys:texts", "tensors_list:no_tensors"),
    "pub_tensor": ("key:text", "tensor:no_tensor", CONF),
    "upsert_tensor": ("key:text", "tensor:no_tensor"),
    "batch_upsert_tensor": ("keys:texts", "tensors_list:no_tensors"),
    "get_tensor_into": PLACE,
    "batch_get_tensor_into": PLACES,
    "put_tensor_from": PLACE,
    "batch_put_tensor_from": PLACES,
    "put_tensor_with_tp": ("key:text", "tensor:no_tensor", "tp_rank:rank?", "tp_size:rank?"),
    "get_tensor_with_tp": ("key:text", "tp_rank:rank?", "tp_size:rank?"),
    "batch_get_tensor_with_tp": ("base_keys:texts", "tp_rank:rank?", "tp_size:rank?"),
    "put_tensor_with_parallelism": ("key:text", "tensor:no_tensor", "parallelism:no_tensor?"),
    "get_tensor_with_parallelism": ("key:text", "target:no_tensor?"),
    "save_tensor_to_safetensor": ("key:text", "file_name:name?"),
    "unregister_buffer": ("buffer_ptr:inside",),
    "register_buffer": ("buffer_ptr:inside", "size:number"),
}


def calls(seed: int, count: int) -> list[Call]:
    """Return calls with random arguments, the same for the same number."""
    chance = random.Random(seed)
    return [_call(chance, chance.choice(sorted(METHODS))) for _ in range(count)]


def _call(chance: random.Random, method: str) -> Call:
    parameters = METHODS[method]
    count = chance.choice((1, 1, 2))
    args: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        name, _, kind = parameter.partition(":")
        if kind.endswith("?") and (named or chance.random() < 0.5):
            continue
        value = _argument(chance, kind.rstrip("?"), count)
        if named or chance.random() < 0.05:
            named[name] = value
        else:
            args.append(value)
    whim = chance.random()
    if whim < 0.03:
        named["nosuch"] = 1
    elif whim < 0.06:
        args.append(5)
    elif whim < 0.09 and args:
        args.pop()
    return {"method": method, "args": args, "named": named}


def _argument(chance: random.Random, kind: str, count: int) -> Any:
    if chance.random() < 0.12 and kind in BAD:
        return chance.choice(BAD[kind])
    if kind == "texts" and chance.random() < 0.6:
        return chance.sample(("a", "b", "nosuch", "new", "new2"), count)
    if kind in GOOD:
        return chance.choice(GOOD[kind])
    count = max(0, count + chance.choice((0, 0, 0, 0, 0, 1, -1)))
    makers: dict[str, Callable[[], Any]] = {
        "at": lambda: _at(chance),
        "inside": lambda: {"at": chance.choice((5, 100, MEMORY - 50))},
        "ats": lambda: [_at(chance) for _ in range(count)],
        "numbers": lambda: [chance.choice(NUMBER) for _ in range(count)],
        "all_ats": lambda: [[_at(chance), _at(chance)] for _ in range(count)],
        "all_numbers": lambda: [[chance.choice(NUMBER), 3] for _ in range(count)],
    }
    return makers[kind]()


def _at(chance: random.Random) -> Any:
    return {"at": chance.randrange(0, MEMORY // 2, 64)}


def real(value: Any, memory: int, config: Any) -> Any:
    """Return the argument that JSON stands for."""
    if isinstance(value, list):
        return [real(each, memory, config) for each in value]
    if not isinstance(value, dict) or not value:
        return value
    ((kind, what),) = value.items()
    if kind == "at":
        return memory + what
    if kind == "bytes":
        return bytes.fromhex(what)
    if kind == "zeros":
        return bytes(what)
    if kind == "tuple":
        return tuple(real(each, memory, config) for each in what)
    return config(**what) if kind == "config" else what


def outcome(found: Any, method: str = "") -> Any:
    """Return what came of a call, in short."""
    if found is None or isinstance(found, str):
        return "none" if found is None else "text"
    if isinstance(found, bool | int):
        if method == "put_from_with_metadata" and found > 0:
            found = -found
        return "ok" if found >= 0 else int(found)
    if isinstance(found, bytes):
        return "bytes" if found else "no bytes"
    if isinstance(found, list | tuple):
        return [outcome(each) for each in found]
    if isinstance(found, dict):
        return {key: outcome(value) for key, value in sorted(found.items())}
    return type(found).__name__
