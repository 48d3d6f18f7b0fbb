"""Which objects go first: policies behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moonpool.core.eviction.arc import Arc
from moonpool.core.eviction.base import Policy
from moonpool.core.eviction.chains import family, is_evictable_leaf
from moonpool.core.eviction.cost import CostAware
from moonpool.core.eviction.leaf_lru import LeafLru, Lru
from moonpool.core.eviction.s3fifo import S3Fifo

__all__ = ["DEFAULT", "POLICIES", "Policy", "family", "is_evictable_leaf", "make_policy"]

POLICIES: Final = tuple(each.name for each in (Lru, LeafLru, S3Fifo, Arc, CostAware))
DEFAULT: Final = LeafLru.name


def make_policy(name: str, capacity: Callable[[], int]) -> Policy:
    """Return a policy by its name; ``capacity`` tells the pool's bytes."""
    if name == Arc.name:
        return Arc(capacity)
    made: dict[str, Callable[[], Policy]] = {
        each.name: each for each in (Lru, LeafLru, S3Fifo, CostAware)
    }
    return made[name]()
