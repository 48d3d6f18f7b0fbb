"""Setting up and closing."""

from __future__ import annotations

from typing import Any

from tests.compat.cases.bed import Api, raises, same

MB16 = 16 << 20


def settings(api: Api, **more: object) -> dict[str, object]:
    return {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_addr": api.master,
        **more,
    }


def case_health(api: Api) -> None:
    store = api.new()
    same(store.health_check(), 1)
    same(api.setup(store), 0)
    same(store.health_check(), 0)
    same((store.close(), store.health_check(), store.close()), (0, 1, 0))


def case_set_up_twice_and_again(api: Api) -> None:
    store = api.new()
    same((api.setup(store), api.setup(store)), (0, 0))
    same((store.close(), api.setup(store)), (0, 0))
    same((store.put("again", b"1"), store.get("again")), (0, b"1"))


def case_names(api: Api) -> None:
    store = api.another()
    host, _, port = store.get_hostname().rpartition(":")
    same(host, "127.0.0.1")
    assert 0 < int(port) < 65536
    named = api.new()
    same(named.setup("127.0.0.1:23456", "P2PHANDSHAKE", 0, MB16, "tcp", "", api.master), 0)
    same(named.get_hostname(), "127.0.0.1:23456")


def case_as_keywords(api: Api) -> None:
    store = api.new()
    found = store.setup(
        local_hostname="127.0.0.1",
        metadata_server="P2PHANDSHAKE",
        global_segment_size=0,
        local_buffer_size=MB16,
        protocol="tcp",
        rdma_devices="",
        master_server_addr=api.master,
        engine=None,
    )
    same(found, 0)


def case_as_a_dict(api: Api) -> None:
    for more in (
        {},
        {"global_segment_size": "16MB", "local_buffer_size": "16 MB"},
        {"global_segment_size": MB16},
        {"global_segment_size": "16777216"},
        {"global_segment_size": "16384kb", "local_buffer_size": "32m"},
        {"global_segment_size": 0, "nosuch": "1"},
        {"global_segment_size": "0", "enable_ssd_offload": False, "rdma_devices": ""},
    ):
        store = api.new()
        same((more, store.setup(settings(api, **more))), (more, 0))
        same(store.close(), 0)
    store = api.new()
    same(store.setup(config=settings(api, global_segment_size=0)), 0)
    same(store.put("large", bytes(17 << 20)), -600)


def case_dicts_that_are_refused(api: Api) -> None:
    for more in (
        {"global_segment_size": "50%"},
        {"global_segment_size": "junk"},
        {"global_segment_size": "-5"},
        {"global_segment_size": "1.5MB"},
        {"global_segment_size": "0.02GiB"},
        {"global_segment_size": "100"},
    ):
        same((more, api.new().setup(settings(api, **more))), (more, -600))
    same(api.new().setup({}), -600)
    for name in ("local_hostname", "metadata_server"):
        short = {k: v for k, v in settings(api).items() if k != name}
        same((name, api.new().setup(short)), (name, -600))


def case_wrong_arguments(api: Api) -> None:
    good = ("127.0.0.1", "P2PHANDSHAKE", MB16, MB16, "tcp", "", api.master)
    for place, value in ((2, "16MB"), (2, 1e6), (2, -1), (3, None), (0, 5), (6, 5), (4, None)):
        wrong = (*good[:place], value, *good[place + 1 :])
        raises(TypeError, api.new().setup, *wrong)
    raises(TypeError, lambda: api.new().setup(*good[:6]))
    raises(TypeError, lambda: api.new().setup(*good, nosuch=1))
    raises(TypeError, lambda: api.new().setup(None))
    raises(TypeError, lambda: api.new().setup())
    raises(RuntimeError, lambda: api.new().setup(*good, "engine"))


def case_sizes_and_names_that_are_refused(api: Api) -> None:
    good = ("127.0.0.1", "P2PHANDSHAKE", MB16, MB16, "tcp", "", api.master)
    same(api.new().setup(*good[:2], 100, *good[3:]), -600)
    same(api.new().setup(*good[:2], 1 << 60, *good[3:]), -600)
    same(api.new().setup("", *good[1:]), -600)
    same(api.new().setup(*good[:4], "quux", "", api.master), -1)
    same(api.new().setup(*good[:4], "", "", api.master), -1)
    same(api.new().setup("127.0.0.1", "", *good[2:]), -1)
    same(api.new().setup(*good, enable_client_http_server=True, client_http_port=70000), -600)


def case_a_closed_client_takes_its_objects_along(api: Api) -> None:
    lender = api.another(MB16)
    config = api.config(preferred_segments=[lender.get_hostname()])
    same(api.s.put("theirs", b"1", config), 0)
    found = api.s.get_replica_desc("theirs")
    same(len(found), 1)
    same(lender.close(), 0)
    same(api.s.get("theirs"), b"")
    same(api.s.is_exist("theirs"), 0)


def case_not_set_up(api: Api) -> None:
    """What Mooncake does not survive has moonpool's answer only."""
    for store in (api.new(), closed(api)):
        same((store.get("k"), store.get_batch(["k"])), (b"", [b""]))
        same((store.upsert("k", b"v"), store.put_from_with_metadata("k", 1, 1, 1, 1)), (-600, -600))
        same(store.batch_put_from_multi_buffers(["k"], [[1]], [[1]]), [])
        same(store.batch_replica_clear(["k"]), [])
        if api.real:
            continue
        same(api.differs("not set up", None, store.put("k", b"v")), -600)
        same((store.is_exist("k"), store.batch_is_exist(["k"])), (-600, [-600]))
        same((store.get_size("k"), store.remove("k"), store.remove_all()), (-600, -600, -600))
        same((store.get_buffer("k"), store.batch_get_buffer(["k"])), (None, [None]))
        same((store.get_hostname(), store.register_buffer(4096, 10)), ("", -600))
        same((store.put_from("k", 1, 1), store.batch_put_from(["k"], [1], [1])), (-600, [-600]))
        same((store.get_into("k", 1, 1), store.batch_get_into(["k"], [1], [1])), (-600, [-600]))
        same((store.remove_by_regex("k"), store.batch_remove(["k"])), (-600, [-600]))


def closed(api: Api) -> Any:
    store = api.another()
    store.close()
    return store
