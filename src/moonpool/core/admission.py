"""Whether a tenant may put: its own objects make room for its puts, nobody else's."""

from __future__ import annotations

from typing import Final

from moonpool.core import codes
from moonpool.core.eviction import is_evictable_leaf
from moonpool.core.index import Object
from moonpool.core.room import evict
from moonpool.core.state import State
from moonpool.core.tenants import Quota

SHARE: Final = 20
"""The least that is freed at once is this part of a quota: looking for it costs a walk."""


def admit(state: State, key: bytes, size: int) -> int:
    """Return 0 if a put may begin as far as its tenant goes, or why not."""
    tenants = state.tenants
    quota = tenants.of(key)
    if quota is None:
        if not tenants.needs_one(key):
            return codes.OK
        state.counters["tenants_unknown"] += 1
        return codes.NO_TENANT
    tenants.scale(state.segments.total_bytes())
    over = quota.charged + size - quota.effective
    if over > 0 and size <= quota.effective:
        _evict_own(state, quota, max(over, quota.effective // SHARE))
    if quota.charged + size <= quota.effective:
        return codes.OK
    quota.refused += 1
    return codes.TENANT_QUOTA


def _evict_own(state: State, quota: Quota, nbytes: int) -> None:
    """Evict objects of a tenant, those used least recently first; soft-pinned ones at last."""
    goal = quota.charged - nbytes
    _evict_while(state, quota, goal)
    if quota.charged > goal and state.config.evict_soft_pinned:
        for each in [o for o in quota.objects if o.pinned and o not in state.pins and not o.leases]:
            state.soft.forget(each)
            each.pinned = False
            state.offer([each])
        _evict_while(state, quota, goal)


def _evict_while(state: State, quota: Quota, goal: int) -> None:
    before = quota.charged + 1
    while goal < quota.charged < before:  # the parents of what goes may go next
        before = quota.charged
        leaves = [each for each in quota.objects if is_evictable_leaf(each)]
        for each in sorted(leaves, key=lambda one: (one.used, one.serial)):
            if quota.charged <= goal:
                return
            if each.alive and _may_go(state, each):
                quota.evicted_bytes += evict(state, each)


def _may_go(state: State, each: Object) -> bool:
    return not state.groups.of or state.groups.may_go(each)
