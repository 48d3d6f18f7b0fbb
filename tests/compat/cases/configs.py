"""ReplicateConfig: its fields, and what a put makes of them."""

from __future__ import annotations

from typing import Any

from tests.compat.cases.bed import Api, raises, same

DEFAULTS: dict[str, Any] = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_ttl_ms": None,
    "with_hard_pin": False,
    "preferred_segments": [],
    "preferred_segment": "",
    "preferred_nof_segments": [],
    "prefer_alloc_in_same_node": False,
    "group_ids": None,
}


def case_defaults(api: Api) -> None:
    config = api.config()
    same({name: getattr(config, name) for name in DEFAULTS}, DEFAULTS)
    assert config.soft_pin_action == api.module.SoftPinAction.PRESERVE
    assert config.data_type == api.module.ObjectDataType.UNKNOWN


def case_what_fields_take(api: Api) -> None:
    wrong = {
        "replica_num": (-1, 1 << 64, 2.0, "1", None),
        "soft_pin_ttl_ms": (-1, 1 << 64, "1", 1.0),
        "soft_pin_action": (1, "ENABLE", None),
        "with_hard_pin": ("x",),
        "preferred_segments": ("segment", 5, None, [1]),
        "preferred_segment": (5, None),
        "data_type": (3, None),
        "group_ids": ("g", [1], 5),
    }
    for name, values in wrong.items():
        for value in values:
            raises(TypeError, api.config, **{name: value})
    raises(AttributeError, lambda: api.config(nosuch=1))
    same(api.config(replica_num=True).replica_num, 1)
    same(api.config(with_hard_pin=1).with_hard_pin, True)
    same(api.config(with_hard_pin=None).with_hard_pin, False)
    same(api.config(preferred_segments=("a", "b")).preferred_segments, ["a", "b"])
    same(api.config(soft_pin_ttl_ms=None).soft_pin_ttl_ms, None)


def case_lists_are_copies(api: Api) -> None:
    config = api.config()
    config.preferred_segments.append("a")
    same(config.preferred_segments, [])


def case_how_it_is_shown(api: Api) -> None:
    pins = api.module.SoftPinAction
    same(
        str(api.config()),
        "ReplicateConfig: { replica_num: 1, nof_replica_num: 0, dfs_replica_num: 0, "
        "soft_pin_action: PRESERVE, soft_pin_ttl_ms: default, with_hard_pin: 0, "
        "preferred_segments: [], preferred_nof_segments: [], prefer_alloc_in_same_node: 0, "
        "data_type: UNKNOWN }",
    )
    made = api.config(
        group_ids=["a"],
        preferred_segments=["x", "y"],
        soft_pin_action=pins.ENABLE,
        soft_pin_ttl_ms=5,
        with_hard_pin=True,
        preferred_segment="z",
    )
    same(
        str(made),
        "ReplicateConfig: { replica_num: 1, nof_replica_num: 0, dfs_replica_num: 0, "
        "soft_pin_action: ENABLE, soft_pin_ttl_ms: 5, with_hard_pin: 1, "
        "preferred_segments: [x, y], preferred_segment (deprecated): z, "
        "preferred_nof_segments: [], prefer_alloc_in_same_node: 0, data_type: UNKNOWN, "
        "group_ids: [a] }",
    )


def case_puts_that_are_refused(api: Api) -> None:
    pins = api.module.SoftPinAction
    refused: tuple[tuple[dict[str, Any], int], ...] = (
        ({"replica_num": 0}, -600),
        ({"nof_replica_num": 1}, -600),
        ({"dfs_replica_num": 1}, -1601),
        ({"soft_pin_ttl_ms": 1000}, -600),
        ({"soft_pin_action": pins.DISABLE, "soft_pin_ttl_ms": 5}, -600),
        ({"soft_pin_action": pins.ENABLE, "soft_pin_ttl_ms": 86_400_001}, -600),
        ({"prefer_alloc_in_same_node": True}, -600),
        ({"group_ids": ["g", "h"]}, -600),
        ({"group_ids": []}, -600),
    )
    for fields, code in refused:
        same((fields, api.s.put("r", b"v", api.config(**fields))), (fields, code))
        same(api.s.is_exist("r"), 0)


def case_puts_that_are_served(api: Api) -> None:
    pins = api.module.SoftPinAction
    served = (
        {"replica_num": 3},
        {"replica_num": 1000},
        {"soft_pin_action": pins.ENABLE},
        {"soft_pin_action": pins.ENABLE, "soft_pin_ttl_ms": 5000},
        {"soft_pin_action": pins.ENABLE, "soft_pin_ttl_ms": 0},
        {"soft_pin_action": pins.DISABLE},
        {"with_hard_pin": True},
        {"preferred_segments": [api.owner]},
        {"preferred_segments": ["nosuch"]},
        {"preferred_segments": ["nosuch", api.owner]},
        {"preferred_segment": api.owner},
        {"data_type": api.module.ObjectDataType.KVCACHE},
        {"group_ids": ["g"]},
        {"group_ids": [""]},
        {"preferred_nof_segments": ["nosuch"]},
    )
    for fields in served:
        key = api.key()
        same((fields, api.s.put(key, b"v", api.config(**fields))), (fields, 0))
        same(api.s.get(key), b"v")


def case_the_same_node_is_for_multi_buffers(api: Api) -> None:
    memory = api.memory(4096)
    config = api.config(prefer_alloc_in_same_node=True)
    at = memory.at
    same(api.s.batch_put_from_multi_buffers(["s"], [[at]], [[5]], config), [0])
    same(api.s.put_from("t", at, 5, config), -600)
    same(api.s.batch_put_from(["t"], [at], [5], config), [-600])
    same(api.s.put_batch(["t"], [b"1"], config), -600)
    same((api.s.put_from("t", at, 0, config), api.s.upsert_from("t", at, 0, config)), (-600, -600))
    same((api.s.put_batch([], [], config), api.s.put_parts("t", config=config)), (-600, -600))
    same(api.s.put_from_with_metadata("t", at, at, 5, 5, config), -1)


def case_groups_have_a_name_for_each_key(api: Api) -> None:
    memory = api.memory(4096)
    at = memory.at
    two, one = api.config(group_ids=["a", "b"]), api.config(group_ids=["a"])
    put = api.s.batch_put_from_multi_buffers
    same(put(["g1", "g2"], [[at], [at]], [[5], [5]], two), [0, 0])
    same(put(["g3", "g4"], [[at], [at]], [[5], [5]], one), [-600, -600])
    same(api.s.put_batch(["g5", "g6"], [b"1", b"1"], two), 0)
    same(api.s.put_batch(["g7", "g8"], [b"1", b"1"], one), -600)
    same(api.s.batch_put_from(["g7", "g8"], [at, at], [5, 5], one), [-600, -600])


def case_a_default_config_is_not_shared(api: Api) -> None:
    config = api.config(replica_num=0)
    same(api.s.put("a", b"1", config), -600)
    same(api.s.put("a", b"1"), 0)


def case_groups_are_leased_together(api: Api) -> None:
    both = api.config(group_ids=["g", "g"])
    same(api.s.put_batch(["g1", "g2"], [b"1", b"2"], both), 0)
    same(api.s.put("g3", b"3"), 0)
    same((api.s.remove("g3"), api.s.get("g1"), api.s.remove("g2")), (0, b"1", -706))
    same(api.s.put("g4", b"4", api.config(group_ids=["g"])), 0)
    same((api.s.remove("g4"), api.s.remove("g2", True), api.s.remove("g1")), (0, 0, -706))


def case_lookups_lease_the_group(api: Api) -> None:
    same(api.s.put_batch(["g1", "g2"], [b"1", b"2"], api.config(group_ids=["g", "g"])), 0)
    same((api.s.is_exist("g1"), api.s.remove("g2")), (1, -706))


def case_no_name_is_no_group(api: Api) -> None:
    same(api.s.put_batch(["g1", "g2"], [b"1", b"2"], api.config(group_ids=["", ""])), 0)
    same((api.s.get("g1"), api.s.remove("g2")), (b"1", 0))


def case_a_group_is_for_life(api: Api) -> None:
    one, other, none = (api.config(group_ids=[name]) for name in ("g", "h", ""))
    same((api.s.put("g1", b"1", one), api.s.put("g2", b"1", one)), (0, 0))
    same((api.s.put("g1", b"2", other), api.s.get("g1")), (0, b"1"))
    same((api.s.upsert("g1", b"3", other), api.s.upsert("g1", b"3", none)), (-600, -600))
    same((api.s.upsert("g1", b"4", one), api.s.get("g1")), (0, b"4"))
    same((api.s.upsert("g1", b"longer"), api.s.get("g1")), (0, b"longer"))
    same(api.s.remove("g2"), -706)
    same((api.s.put("n", b"1"), api.s.upsert("n", b"2", one)), (0, -600))
    same((api.s.upsert("n", b"2", none), api.s.get("n")), (0, b"2"))


def case_upserts_in_batches_keep_groups(api: Api) -> None:
    memory = api.memory(4096)
    one, other = api.config(group_ids=["g", "g"]), api.config(group_ids=["h", "h"])
    same(api.s.put_batch(["g1", "g2"], [b"1", b"1"], one), 0)
    same(api.s.upsert_batch(["g1", "n"], [b"2", b"2"], other), -600)
    same((api.s.get("g1"), api.s.get("n")), (b"1", b"2"))
    places = [memory.at, memory.at]
    same(api.s.batch_upsert_from(["g1", "g2"], places, [4, 4], other), [-600, -600])
    same(api.s.batch_upsert_from(["g1", "g2"], places, [4, 4]), [0, 0])
    same((len(api.s.get("g1")), api.s.remove("g2")), (4, -706))


def case_groups_go_together(api: Api) -> None:
    """Of a full pool, the oldest object's group goes, and nothing of it is left over."""
    value = bytes(4 << 20)
    same(api.s.put_batch(["g1", "g2", "g3"], [value] * 3, api.config(group_ids=["g"] * 3)), 0)
    for i in range(40):
        api.eventually_put(f"o{i}", value)
    there = api.s.batch_get_replica_desc(["g1", "g2", "g3", "o0", "o39"])
    same(("g1" in there, "g2" in there, "g3" in there, "o39" in there), (False,) * 3 + (True,))


def case_a_lease_keeps_all_of_the_group(api: Api) -> None:
    value = bytes(4 << 20)
    same(api.s.put_batch(["g1", "g2", "g3"], [value] * 3, api.config(group_ids=["g"] * 3)), 0)
    same(len(api.s.get("g2")), len(value))
    for i in range(40):
        api.eventually_put(f"o{i}", value)
    same(api.s.batch_is_exist(["g1", "g2", "g3", "o0", "o39"]), [1, 1, 1, 0, 1])
