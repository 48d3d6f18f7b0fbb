"""Tensors. Without torch these are skipped."""

from __future__ import annotations

import importlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compat.cases.bed import Api, raises, same

HEADER = 304
TYPES = [
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
]


def torch() -> Any:
    return importlib.import_module("torch")


def sample() -> Any:
    return torch().arange(24, dtype=torch().float32).reshape(2, 3, 4)


def axis(api: Api, kind: Any, rank: int, size: int, dim: int | None = None, **more: int) -> Any:
    made = api.module.ParallelAxis()
    made.kind, made.rank, made.size, made.split_dim = kind, rank, size, dim
    for name, value in more.items():
        setattr(made, name, value)
    return made


def spread(*axes: Any) -> Any:
    made = importlib.import_module("mooncake.store").TensorParallelism()
    made.axes = list(axes)
    return made


def target(api: Api, mode: str, parallelism: Any = None) -> Any:
    made = api.module.ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


def equal(found: Any, wanted: Any) -> None:
    assert found is not None, "nothing"
    assert found.dtype == wanted.dtype, f"{found.dtype} is not {wanted.dtype}"
    assert torch().equal(found, wanted), f"{found} is not {wanted}"


def case_put_and_get(api: Api) -> None:
    tensor = sample()
    same(api.s.put_tensor("t", tensor), 0)
    equal(api.s.get_tensor("t"), tensor)
    same(api.s.get_size("t"), HEADER + 96)
    same(api.s.put_tensor("t", tensor + 1), 0)
    equal(api.s.get_tensor("t"), tensor)
    turned = tensor.transpose(0, 2)
    same(api.s.put_tensor("turned", turned), 0)
    equal(api.s.get_tensor("turned"), turned)


def case_the_format(api: Api) -> None:
    api.s.put_tensor("t", sample())
    api.s.put_tensor_with_tp("s", sample(), 0, 2, 2)
    whole = (
        "4e4f4f4d0100300100000000030000000000000000000000300100000000000060000000000000000200000000"
        "00000003000000000000000400000000000000" + "ff" * 40
    )
    same(api.s.get("t")[:104].hex(), whole)
    shard = api.s.get("s_tp_1")
    same(
        shard[:40].hex(),
        "4e4f4f4d010030010000000003000000010000000000000030010000000000003000000000000000",
    )
    same(
        shard[168:208].hex(),
        "01000000000000000100000000000000010000000200000002000000000000000200000000000000",
    )


def case_all_types(api: Api) -> None:
    for name in TYPES:
        kind = getattr(torch(), name)
        tensor = torch().arange(15).reshape(3, 5).to(kind)
        same((name, api.s.put_tensor(name, tensor)), (name, 0))
        found = api.s.get_tensor(name)
        same((found.dtype, tuple(found.shape)), (kind, (3, 5)))
    for name in ("complex64", "complex128", "float8_e4m3fnuz"):
        tensor = torch().zeros(3, 5).to(getattr(torch(), name))
        same((name, api.s.put_tensor(name, tensor)), (name, -600))


def case_what_is_no_tensor(api: Api) -> None:
    for wrong in (5, None, "x", [1.0]):
        same(api.s.put_tensor("w", wrong), -600)
    same(api.s.put_tensor("", sample()), -600)
    same(api.s.put_tensor("d", torch().zeros([1] * 9)), -600)
    api.s.put("raw", bytes(400))
    api.s.put("short", b"hello")
    for key in ("raw", "short", "nosuch", ""):
        same(api.s.get_tensor(key), None)
    same(
        tuple(api.s.get_tensor("s").shape)
        if api.s.put_tensor("s", torch().tensor(5.0)) == 0
        else 0,
        (1,),
    )
    same(api.s.put_tensor("e", torch().zeros(0, 3)), 0)
    same(tuple(api.s.get_tensor("e").shape), (0, 3))
    raises(TypeError, lambda: api.s.put_tensor(5, sample()))
    raises(TypeError, lambda: api.s.batch_put_tensor(["a"], sample()))


def case_batches(api: Api) -> None:
    tensor = sample()
    same(api.s.batch_put_tensor(["a", "b", ""], [tensor, 5, tensor]), [0, -600, -600])
    same(api.s.batch_put_tensor(["a", "b"], [tensor]), [-600, -600])
    same((api.s.batch_put_tensor([], []), api.s.batch_get_tensor([])), ([], []))
    found = api.s.batch_get_tensor(["a", "b"])
    equal(found[0], tensor)
    same(found[1], None)
    same(api.s.batch_pub_tensor(["p", "q"], [tensor, tensor], api.config()), [0, 0])


def case_published(api: Api) -> None:
    tensor = sample()
    same(api.s.pub_tensor("p", tensor), 0)
    same(api.s.pub_tensor("q", tensor, api.config(with_hard_pin=True)), 0)
    same(api.s.pub_tensor("r", tensor, api.config(replica_num=0)), -600)
    same(api.s.pub_tensor("s", None), -600)
    equal(api.s.get_tensor("q"), tensor)


def case_replaced(api: Api) -> None:
    tensor = sample()
    same((api.s.upsert_tensor("u", tensor), api.s.upsert_tensor("u", tensor + 1)), (0, 0))
    equal(api.s.get_tensor("u"), tensor + 1)
    same(api.s.upsert_pub_tensor("u", tensor[:1]), 0)
    equal(api.s.get_tensor("u"), tensor[:1])
    same(api.s.batch_upsert_tensor(["u", "v"], [tensor, tensor]), [0, 0])
    same(api.s.batch_upsert_pub_tensor(["u"], [tensor + 2]), [0])
    equal(api.s.get_tensor("u"), tensor + 2)


def case_into_memory(api: Api) -> None:
    memory, tensor = api.memory(1 << 16), sample()
    at = memory.at
    api.s.put_tensor("t", tensor)
    found = api.s.get_tensor_into("t", at, 1 << 16)
    equal(found, tensor)
    same(found.data_ptr() - at, HEADER)
    same(api.s.get_tensor_into("t", at, 100), None)
    equal(api.s.get_tensor_into("t", at, HEADER + 96), tensor)
    same(api.s.get_tensor_into("nosuch", at, 1000), None)
    found = api.s.batch_get_tensor_into(["t", "nosuch"], [at, at + 4096], [4096, 4096])
    equal(found[0], tensor)
    same(found[1], None)
    same(api.s.batch_get_tensor_into(["t", "u"], [at], [4096]), [-600, -600])


def case_from_memory(api: Api) -> None:
    memory, tensor = api.memory(1 << 16), sample()
    at, size = memory.at, HEADER + 96
    api.s.put_tensor("t", tensor)
    api.s.get_tensor_into("t", at, size)
    same(api.s.put_tensor_from("f", at, size), 0)
    equal(api.s.get_tensor("f"), tensor)
    same(api.s.put_tensor_from("g", at, size + 100), -600)
    same(api.s.put_tensor_from("g", at, 100), -600)
    same(api.s.put_tensor_from("g", at + 4096, size), -600)
    same(api.s.is_exist("g"), 0)
    same(api.s.batch_put_tensor_from(["h", "i"], [at, at], [size, 5]), [-600, -600])
    same(api.s.batch_put_tensor_from(["h", "i"], [at, at], [size, size]), [0, 0])
    same(api.s.upsert_tensor_from("f", at, size), 0)
    same(api.s.batch_upsert_tensor_from(["f", "j"], [at, at], [size, size]), [0, 0])


def case_split_by_rank(api: Api) -> None:
    tensor = sample()
    same(api.s.put_tensor_with_tp("t", tensor, 0, 2, 2), 0)
    same(api.s.batch_is_exist(["t", "t_tp_0", "t_tp_1"]), [0, 1, 1])
    for rank in range(2):
        equal(api.s.get_tensor_with_tp("t", rank, 2, 2), tensor.chunk(2, 2)[rank])
    for rank in (5, -1):
        same(api.s.get_tensor_with_tp("t", rank, 2), None)
    same(api.s.put_tensor_with_tp("one", tensor, 0, 1, 0), 0)
    same(api.s.batch_is_exist(["one", "one_tp_0"]), [1, 0])
    equal(api.s.get_tensor_with_tp("one", 0, 1), tensor)
    for size, dim in ((2, 5), (2, -1), (4, 0), (2, 1)):
        same(api.s.put_tensor_with_tp("w", tensor, 0, size, dim), -600)
    same(api.s.put_tensor_with_tp("w", 5, 0, 2, 0), -600)
    same(api.s.pub_tensor_with_tp("p", tensor, api.config(), 0, 2, 0), 0)
    raises(TypeError, lambda: api.s.put_tensor_with_tp("w", tensor, "0"))


def case_split_batches(api: Api) -> None:
    tensor = sample()
    put, get = api.s.batch_put_tensor_with_tp, api.s.batch_get_tensor_with_tp
    same(put(["a", "b"], [tensor, tensor], 0, 2, 0), [0, 0])
    for found in get(["a", "b"], 1, 2):
        equal(found, tensor[1:])
    same(get(["a", "nosuch"], 0, 2)[1], None)
    same(put(["c", "d"], [tensor, 5], 0, 2, 0), [-600, -600])
    same(put(["c", "d"], [tensor, torch().arange(3.0)], 0, 2, 0), [0, -600])
    same(put(["c", "d"], [tensor], 0, 2, 0), [-600, -600])
    same(api.s.batch_pub_tensor_with_tp(["p"], [tensor], api.config(), 0, 2, 0), [0])


def case_split_in_memory(api: Api) -> None:
    memory, tensor = api.memory(1 << 16), sample()
    at, size = memory.at, HEADER + 96
    api.s.put_tensor("t", tensor)
    api.s.get_tensor_into("t", at, size)
    same(api.s.put_tensor_with_tp_from("f", at, size, 0, 2, 2), 0)
    same(api.s.put_tensor_with_tp_from("g", at, size, 0, 2, 1), -600)
    same(api.s.batch_put_tensor_with_tp_from(["h"], [at], [size], 0, 2, 0), [0])
    equal(api.s.get_tensor_with_tp_into("f", at + 8192, 4096, 1, 2, 2), tensor.chunk(2, 2)[1])
    (found,) = api.s.batch_get_tensor_with_tp_into(["h"], [at + 16384], [4096], 0, 2)
    equal(found, tensor[:1])


def case_shards_by_axes(api: Api) -> None:
    tensor, put = sample(), api.s.put_tensor_with_parallelism
    for rank in range(2):
        shard = tensor.chunk(2, 2)[rank].contiguous()
        same(put("k", shard, spread(axis(api, "tp", rank, 2, 2))), 0)
    same(api.s.batch_is_exist(["k", "k_tp_0", "k_tp_1", "k__parallelism_manifest"]), [0, 1, 1, 1])
    get = api.s.get_tensor_with_parallelism
    half, quarter = spread(axis(api, "tp", 1, 2, 2)), spread(axis(api, "tp", 3, 4, 2))
    equal(get("k", target(api, "shard", half)), tensor.chunk(2, 2)[1])
    equal(get("k", target(api, "shard", quarter)), tensor.chunk(4, 2)[3])
    equal(get("k", target(api, "full", half)), tensor)
    for nothing in (None, target(api, "as_stored"), target(api, "full"), target(api, "shard")):
        same(get("k", nothing), None)
    same(get("k", target(api, "as_stored", half)), None)
    same(get("k", 5), None)


def case_whole_tensors_by_axes(api: Api) -> None:
    tensor, put, get = (
        sample(),
        api.s.put_tensor_with_parallelism,
        api.s.get_tensor_with_parallelism,
    )
    same(put("k", tensor), 0)
    for wish in (None, target(api, "as_stored"), target(api, "full")):
        equal(get("k", wish), tensor)
    same(get("k", target(api, "shard", spread(axis(api, "tp", 1, 2, 2)))), None)
    same(api.s.put_tensor_with_tp("t", tensor, 0, 2, 2), 0)
    equal(get("t", target(api, "full", spread(axis(api, "tp", 1, 2, 2)))), tensor)


def case_keys_of_axes(api: Api) -> None:
    tensor, put = sample(), api.s.put_tensor_with_parallelism
    named = {
        "k__dp_1of2": (axis(api, "dp", 1, 2),),
        "k__pp_1of2_sid1": (axis(api, "pp", 1, 2, stage_id=1),),
        "k__ep_1of2_eid3": (axis(api, "ep", 1, 2, expert_id=3),),
        "k__dp_0of2__tp_1of2_sd2": (axis(api, "dp", 0, 2), axis(api, "tp", 1, 2, 2)),
        "k_tp_1": (axis(api, "TP", 1, 2, 0),),
    }
    for key, axes in named.items():
        same((key, put("k", tensor, spread(*axes))), (key, 0))
        same((key, api.s.is_exist(key)), (key, 1))
    wish = target(api, "shard", spread(axis(api, "dp", 1, 2)))
    equal(api.s.get_tensor_with_parallelism("k", wish), tensor)


def case_axes_that_cannot_be(api: Api) -> None:
    tensor, put = sample(), api.s.put_tensor_with_parallelism
    for axes in (
        (),
        (axis(api, "tp", 1, 2),),
        (axis(api, "ep", 1, 2, 0),),
        (axis(api, "xx", 1, 2, 0),),
        (axis(api, "tp", 2, 2, 0),),
        (axis(api, "tp", -1, 2, 0),),
        (axis(api, "tp", 0, 0, 0),),
        (axis(api, "tp", 0, 2, -1),),
        (axis(api, "tp", 0, 2, 5),),
        (axis(api, "tp", 0, 2, 0), axis(api, "tp", 1, 2, 2)),
    ):
        same(put("k", tensor, spread(*axes)), -600)
    same(put("k", tensor, 5), -600)
    raises(TypeError, lambda: axis(api, 5, 0, 1))
    raises(TypeError, lambda: spread(5))
    raises(RuntimeError, lambda: target(api, "nosuch"))


def case_batches_by_axes(api: Api) -> None:
    tensor, put = sample(), api.s.batch_put_tensor_with_parallelism
    half = spread(axis(api, "tp", 0, 2, 2))
    same(put(["a", "b"], [tensor, tensor], [half, None]), [0, 0])
    same((put(["c"], [tensor], []), put(["c"], [tensor])), ([-600], [0]))
    get = api.s.batch_get_tensor_with_parallelism
    equal(get(["b", "c"])[0], tensor)
    same(get(["b"], []), [None])
    same(api.s.upsert_tensor_with_parallelism("b", tensor + 1), 0)
    equal(api.s.get_tensor("b"), tensor + 1)
    same(api.s.batch_upsert_tensor_with_parallelism(["b"], [tensor]), [0])


def case_a_writers_part(api: Api) -> None:
    tensor = sample()
    part = axis(api, "tp", 1, 2, 0)
    put = api.s.put_tensor_with_parallelism
    same(put("k", tensor, None, api.config(), part), 0)
    same(api.s.batch_is_exist(["k__writer_1of2_sd0", "k__writer_manifest", "k"]), [1, 1, 0])
    equal(api.s.get_tensor("k__writer_1of2_sd0"), tensor[1:])
    for wrong in (5, (0, 2), {"rank": 0, "size": 2, "split_dim": 0}):
        same(put("l", tensor, None, api.config(), wrong), -600)


def case_reading_what_writers_put(api: Api) -> None:
    tensor, get = sample(), api.s.get_tensor_with_parallelism
    for rank in range(2):
        part = axis(api, "tp", rank, 2, 2)
        same(api.s.put_tensor_with_parallelism("k", tensor, None, api.config(), part), 0)
    equal(get("k", target(api, "full")), tensor)
    half = spread(axis(api, "tp", 1, 2, 2))
    equal(get("k", target(api, "shard", half)), tensor.chunk(2, 2)[1])
    for other in (spread(axis(api, "tp", 3, 4, 2)), spread(axis(api, "tp", 1, 2, 0))):
        same(get("k", target(api, "shard", other)), None)
    for nothing in (None, target(api, "as_stored"), target(api, "full", half)):
        same(get("k", nothing), None)


def case_axes_in_memory(api: Api) -> None:
    memory, tensor = api.memory(1 << 16), sample()
    at, size = memory.at, HEADER + 96
    api.s.put_tensor("t", tensor)
    equal(api.s.get_tensor_with_parallelism_into("t", at, 4096), tensor)
    half = spread(axis(api, "tp", 1, 2, 2))
    same(
        api.s.get_tensor_with_parallelism_into("t", at + 4096, 4096, target(api, "shard", half)),
        None,
    )
    same(api.s.put_tensor_with_parallelism_from("f", at, size, half), 0)
    same(api.s.batch_is_exist(["f", "f_tp_0", "f_tp_1"]), [0, 1, 1])
    same(api.s.put_tensor_with_parallelism_from("g", at, size), 0)
    equal(api.s.get_tensor("g"), tensor)


def case_files(api: Api) -> None:
    tensor = sample()
    api.s.put_tensor("t", tensor)
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "t.safetensors")
        same(api.s.save_tensor_to_safetensor("t", path), 0)
        equal(importlib.import_module("safetensors.torch").load_file(path)["t"], tensor)
        same(api.s.save_tensor_to_safetensor("nosuch", path), -1100)
        same(api.s.save_tensor_to_safetensor("t", "/nosuch/folder/t"), -600)
        equal(api.s.load_tensor_from_safetensor("loaded", path), tensor)
        equal(api.s.get_tensor("loaded"), tensor)
        equal(api.s.load_tensor_from_safetensor(file_name=path), tensor)
        same(api.s.is_exist(path), 1)
        same(api.s.load_tensor_from_safetensor("x", path + "nosuch"), None)


def case_memory_of_a_gpu_is_asked_for(api: Api) -> None:
    api.s.put_tensor("t", sample())
    same(api.s.get_tensor_into_cuda("t", torch().zeros(2, 3, 4)), -600)
    same(api.s.batch_get_tensor_into_cuda(["t"], [torch().zeros(2, 3, 4)]), [-600])


def case_headers_by_themselves(api: Api) -> None:
    tensor = sample()
    header, address, nbytes, owner = api.module._serialize_tensor(tensor)
    same((len(header), api.module._tensor_metadata_size(), nbytes), (HEADER, HEADER, 96))
    assert address > 0
    assert owner is not None
    same(api.s.put_parts("t", header, tensor.numpy().tobytes()), 0)
    equal(api.s.get_tensor("t"), tensor)
    equal(api.module._deserialize_tensor(api.s.get("t")), tensor)
    raises(ValueError, lambda: api.module._deserialize_tensor(b"abc"))
