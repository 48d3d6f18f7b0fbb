"""ReplicateConfig: what a put of the Mooncake API asks for, and what of it moonpool can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moonpool.client.wishes import Wishes
from moonpool.compat.casting import Caster, CastError, boolean, text, texts, u64
from moonpool.compat.codes import INVALID, OK
from moonpool.compat.enums import ObjectDataType, SoftPinAction
from moonpool.compat.records import Record, instance_of, optional

SOFT_PIN_MS_MAX = 86_400_000
REPLICAS_MAX = 8
NO_DFS = -1601


class ReplicateConfig(Record):
    """How an object is to be kept. Fields, defaults and what they take are Mooncake's."""

    __slots__ = ()
    CASTS: ClassVar[dict[str, Caster]] = {
        "replica_num": u64,
        "nof_replica_num": u64,
        "dfs_replica_num": u64,
        "soft_pin_action": instance_of(SoftPinAction),
        "soft_pin_ttl_ms": optional(u64),
        "with_hard_pin": boolean,
        "preferred_segments": texts,
        "preferred_segment": text,
        "preferred_nof_segments": texts,
        "prefer_alloc_in_same_node": boolean,
        "data_type": instance_of(ObjectDataType),
        "group_ids": optional(texts),
    }

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        return {
            "replica_num": 1,
            "nof_replica_num": 0,
            "dfs_replica_num": 0,
            "soft_pin_action": SoftPinAction.PRESERVE,
            "soft_pin_ttl_ms": None,
            "with_hard_pin": False,
            "preferred_segments": [],
            "preferred_segment": "",
            "preferred_nof_segments": [],
            "prefer_alloc_in_same_node": False,
            "data_type": ObjectDataType.UNKNOWN,
            "group_ids": None,
        }

    def __str__(self) -> str:
        shown = []
        for name, value in self._fields.items():
            if name in ("preferred_segment", "group_ids") and not value:
                continue
            label = "preferred_segment (deprecated)" if name == "preferred_segment" else name
            shown.append(f"{label}: {_shown(name, value)}")
        return f"ReplicateConfig: {{ {', '.join(shown)} }}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    if isinstance(value, SoftPinAction | ObjectDataType):
        return value.name
    if name == "soft_pin_ttl_ms" and value is None:
        return "default"
    return str(int(value)) if isinstance(value, bool) else str(value)


def replicate_config(value: Any) -> ReplicateConfig:
    """Cast to a ReplicateConfig."""
    if not isinstance(value, ReplicateConfig):
        raise CastError
    return value


DEFAULT = ReplicateConfig()


def for_nothing(config: ReplicateConfig) -> int:
    """Return the code of a put of no bytes, or of no objects: mostly 0."""
    return INVALID if config.prefer_alloc_in_same_node else OK


def refused(config: ReplicateConfig, objects: int, *, same_node: bool = False) -> int:
    """Return the code with which a put of so many objects is refused, or 0. ``same_node``: whether
    the call takes ``prefer_alloc_in_same_node``."""
    if config is DEFAULT:
        return OK
    if config.prefer_alloc_in_same_node and not same_node:
        return INVALID
    groups, ttl_ms, action = config.group_ids, config.soft_pin_ttl_ms, config.soft_pin_action
    if groups is not None and len(groups) != objects:
        return INVALID
    if ttl_ms is not None and (action is not SoftPinAction.ENABLE or ttl_ms > SOFT_PIN_MS_MAX):
        return INVALID
    if config.dfs_replica_num:
        return NO_DFS
    # NVMe-oF replicas must all be had, and there are none.
    return INVALID if config.nof_replica_num or not config.replica_num else OK


def wishes(
    config: ReplicateConfig, preferred: str = "", groups: Mapping[bytes, bytes] | None = None
) -> Wishes | None:
    """Return what a put asks moonpool for; ``preferred``: the first preferred segment that is
    there; ``groups`` by packed key."""
    if config is DEFAULT:
        return None
    soft = config.soft_pin_action is SoftPinAction.ENABLE
    ttl_ms = config.soft_pin_ttl_ms
    return Wishes(
        replicas=min(config.replica_num, REPLICAS_MAX),
        pinned=config.with_hard_pin,
        soft_pin_s=(-1.0 if ttl_ms is None else ttl_ms / 1000) if soft else 0.0,
        preferred=preferred,
        groups=groups or {},
    )


def regrouped(config: ReplicateConfig, groups: list[str]) -> ReplicateConfig:
    """Return the same with other groups."""
    found = ReplicateConfig()
    for name in ReplicateConfig.CASTS:
        setattr(found, name, getattr(config, name))
    setattr(found, "group_ids", groups)  # noqa: B010 - fields are known to CASTS only
    return found


def preferences(config: ReplicateConfig) -> list[str]:
    """Return the segments to put to, the best first."""
    if config is DEFAULT:
        return []
    found: list[str] = config.preferred_segments
    one: str = config.preferred_segment
    return [*found, one] if one and one not in found else found
