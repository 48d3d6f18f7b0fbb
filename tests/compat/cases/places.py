"""Where objects are: descriptors, tasks, segments."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compat.cases.bed import Api, eventually, raises, same

MB16 = 16 << 20


def case_descriptors(api: Api) -> None:
    api.s.put("r", b"hello")
    found = api.s.get_replica_desc("r")
    same(len(found), 1)
    (one,) = found
    same(
        (one.status, str(one.status)), (api.module.ReplicaStatus.COMPLETE, "ReplicaStatus.COMPLETE")
    )
    same(int(one.status), 3)
    kinds = one.is_memory_replica(), one.is_disk_replica(), one.is_local_disk_replica()
    same(kinds, (True, False, False))
    place = one.get_memory_descriptor().buffer_descriptor
    assert place.size == 5
    assert place.buffer_address > 0
    assert place.transport_endpoint.startswith("127.0.0.1:")
    assert repr(place).startswith("<Descriptor size=5 buffer_address=")
    raises(RuntimeError, one.get_disk_descriptor)


def case_descriptors_of_what_is_not_there(api: Api) -> None:
    api.s.put("r", b"hello")
    same((api.s.get_replica_desc("nosuch"), api.s.get_replica_desc("")), ([], []))
    same(
        {k: len(v) for k, v in api.s.batch_get_replica_desc(["r", "nosuch", ""]).items()}, {"r": 1}
    )
    same(api.s.batch_get_replica_desc([]), {})
    raises(TypeError, lambda: api.s.get_replica_desc(5))
    raises(TypeError, lambda: api.s.batch_get_replica_desc("r"))


def case_replicas_are_on_segments_of_their_own(api: Api) -> None:
    lender = api.another(MB16)
    assert lender.get_hostname() != api.owner
    same(api.s.put("two", b"v", api.config(replica_num=2)), 0)
    wanted = api.differs("replicas on one host", 2, 1)
    same(len(api.s.get_replica_desc("two")), wanted)


def case_tasks_that_cannot_be(api: Api) -> None:
    api.s.put("r", b"hello")
    nothing = (0, 0)
    same(api.s.create_copy_task("nosuch", [api.owner]), (nothing, -704))
    same(api.s.create_copy_task("r", ["nosuch"]), (nothing, -600))
    same(api.s.create_copy_task("r", []), (nothing, -600))
    same(api.s.create_move_task("r", api.owner, api.owner), (nothing, -600))
    same(api.s.create_move_task("r", "nosuch", api.owner), (nothing, -600))
    same(api.s.query_task((1, 2)), (None, -1400))
    raises(TypeError, lambda: api.s.query_task(5))
    raises(TypeError, lambda: api.s.query_task((1,)))
    raises(TypeError, lambda: api.s.create_copy_task("r", "x"))


def case_an_object_is_moved(api: Api) -> None:
    lender = api.another(MB16)
    there = lender.get_hostname()
    same(api.s.put("m", b"value", api.config(preferred_segments=[api.owner])), 0)
    number, code = api.s.create_move_task("m", api.owner, there)
    same(code, 0)
    kind, status = api.module.TaskType, api.module.TaskStatus

    def done() -> bool:
        task, code = api.s.query_task(number)
        assert code == 0
        assert (task.id, task.type) == (number, kind.REPLICA_MOVE)
        assert task.status != status.FAILED, task.message
        return bool(task.status == status.SUCCESS)

    eventually(done)
    same(api.s.query_task(number)[0].message, "Task completed successfully")
    same((len(api.s.get_replica_desc("m")), api.s.get("m")), (1, b"value"))
    lender.close()
    same(api.s.get("m"), b"")


def finished(api: Api, number: Any) -> Any:
    """Return a task once it is over."""
    over = api.module.TaskStatus.SUCCESS, api.module.TaskStatus.FAILED
    eventually(lambda: api.s.query_task(number)[0].status in over)
    return api.s.query_task(number)[0]


def case_an_object_is_copied(api: Api) -> None:
    lender = api.another(MB16)
    there = lender.get_hostname()
    same(api.s.put("c", b"value", api.config(preferred_segments=[api.owner])), 0)
    for _ in range(2):  # where there is a copy, nothing is left to be done
        number, code = api.s.create_copy_task("c", [there])
        same(code, 0)
        task = finished(api, number)
        same((task.type, task.status), (api.module.TaskType.REPLICA_COPY, task.status.SUCCESS))
    found = [each.get_memory_descriptor() for each in api.s.get_replica_desc("c")]
    same(sorted(each.buffer_descriptor.size for each in found), [5, 5])
    same((api.s.get("c"), api.s.remove("c", True)), (b"value", 0))


def case_a_copy_outlives_the_first(api: Api) -> None:
    first, second = api.another(MB16), api.another(MB16)
    config = api.config(preferred_segments=[first.get_hostname()])
    same(api.s.put("c", b"value" * 1000, config), 0)
    number, code = api.s.create_copy_task("c", [second.get_hostname()])
    same((code, finished(api, number).message), (0, "Task completed successfully"))
    first.close()
    same((api.s.get("c"), len(api.s.get_replica_desc("c"))), (b"value" * 1000, 1))


def case_memory_is_lent_and_taken_back(api: Api) -> None:
    store = api.another()
    found = store.allocate_and_mount_segment(MB16)
    same((found["ret"], found["allocated_size"], len(found["segment_ids"])), (0, MB16, 1))
    high, _, low = found["segment_ids"][0].partition("-")
    assert high.isdecimal()
    assert low.isdecimal()
    same(store.unmount_segment(found["segment_ids"]), -1)
    same(store.unmount_and_free_segment(found["segment_ids"]), 0)
    same(store.unmount_and_free_segment(found["segment_ids"]), -1)
    same(store.allocate_and_mount_segment(100)["allocated_size"], MB16)
    nothing = {"ret": -1, "segment_ids": [], "allocated_size": 0}
    same(store.allocate_and_mount_segment(0), nothing)
    same((store.unmount_segment([]), store.unmount_local_disk_segment()), (0, 0))
    raises(TypeError, lambda: store.allocate_and_mount_segment(-1))
    raises(TypeError, lambda: store.unmount_segment("x"))


def case_files_are_lent(api: Api) -> None:
    store = api.another()
    nothing: dict[str, Any] = {"ret": -1, "segment_ids": []}
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "segment"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(2 * MB16)
        found = store.mount_segment(str(path), MB16, MB16)
        same((found["ret"], len(found["segment_ids"])), (0, 1))
        same(store.unmount_and_free_segment(found["segment_ids"]), -1)
        same(store.unmount_segment(found["segment_ids"]), 0)
        same(store.mount_segment(str(path), 4 * MB16), nothing)
        same(store.mount_segment(str(path), MB16, 5), nothing)
        same(store.mount_segment(folder, MB16), nothing)
        same(store.mount_segment(str(path), 0), {"ret": 0, "segment_ids": []})
    same(store.mount_segment("/nosuch", MB16), nothing)
    same(store.mount_segment("", MB16), nothing)


def case_what_is_in_a_file_that_is_lent(api: Api) -> None:
    store = api.another()
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "segment"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(MB16)
        found = store.mount_segment(str(path), MB16)
        same(found["ret"], 0)
        puts = [
            api.s.put(f"q{i}", b"Q" * (4 << 20)) for i in range(18)
        ]  # of 80 MiB: some are there
        same(puts, [0] * 18)
        same(b"Q" * 4096 in path.read_bytes(), api.differs("files that are lent", True, False))
        same(store.unmount_segment(found["segment_ids"]), 0)
        api.s.remove_all(True)
