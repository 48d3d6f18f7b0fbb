"""What may be evicted of the chains that objects form."""

from __future__ import annotations

from collections.abc import Iterable

from moonpool.core.index import Object, children_of


def is_evictable(candidate: Object) -> bool:
    """Tell whether an object may be evicted, whatever hangs on it."""
    return candidate.alive and not candidate.leases and not candidate.pinned


def is_evictable_leaf(candidate: Object) -> bool:
    """Tell whether an object may be evicted by itself."""
    return (
        candidate.alive
        and candidate.first_child is None
        and not candidate.leases
        and not candidate.pinned
    )


def family(roots: Iterable[Object], limit: int) -> list[Object] | None:
    """Return the objects and all their descendants, descendants mostly first.

    None if one of them may not be evicted, or if there are more than ``limit``.
    """
    found: dict[Object, None] = {}
    todo = list(roots)
    while todo:
        each = todo.pop()
        if each in found:
            continue
        if each.leases or each.pinned or len(found) >= limit:
            return None
        found[each] = None
        todo += children_of(each)
    return list(reversed(found))
