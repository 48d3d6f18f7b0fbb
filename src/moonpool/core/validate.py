"""Checks every cross-reference of the state; for tests, and for a master in doubt."""

from __future__ import annotations

from moonpool.core.catching import settle
from moonpool.core.index import Object
from moonpool.core.messages import Slot
from moonpool.core.segments import Put
from moonpool.core.state import State


def validate(state: State) -> None:
    """Raise AssertionError if any two parts of the state contradict each other."""
    settle(state)
    objects = list(state.index)
    state.index.validate()
    state.leases.validate(objects)
    leaving = {each.object.generation for each in state.disks.leaving.values()}
    leaving |= {each.generation for each in state.copies.parked}
    leaving |= {each.generation for each in state.groups.parked}
    state.groups.validate(objects)
    state.tenants.validate(objects, state.puts)
    state.eviction.validate(objects, leaving)
    state.soft.validate(objects)
    state.pins.validate(objects, state.puts)
    state.sessions.validate()
    state.disks.validate((each.key for each in objects), state.puts)
    state.handoffs.validate()
    state.copies.validate()
    _validate_puts(state)
    _validate_places(state, objects)
    _validate_absent(state)
    assert all(each.generation <= state.generation for each in objects)
    assert all(generation <= state.generation for generation in state.puts)


def _validate_puts(state: State) -> None:
    pending: dict[str, int] = {}
    queued = set(state.put_queue)
    for generation, put in state.puts.items():
        assert put.generation == generation
        assert not put.resolved
        assert put.slots or put.held or put.absent
        pending[put.client] = pending.get(put.client, 0) + put.capacity
        if put.discarded:
            assert not put.slots
        else:
            assert put.slots
            assert not put.orphaned
            assert state.in_progress[put.key] is put
            assert put in queued
    assert pending == state.pending_bytes
    for key, put in state.in_progress.items():
        assert state.puts[put.generation] is put
        assert put.key == key
        assert not put.discarded


def _validate_places(state: State, objects: list[Object]) -> None:
    expected: dict[int, dict[int, tuple[Slot, Object | Put]]] = {
        handle: {} for handle in state.segments.by_handle
    }
    owners: list[tuple[Object | Put, list[Slot], int | None]] = [
        *((each, each.slots, None) for each in objects),
        *((each, each.slots + each.held, each.capacity) for each in state.puts.values()),
    ]
    for owner, slots, capacity in owners:
        assert slots or isinstance(owner, Put)
        assert len({slot.segment for slot in slots}) == len(slots)
        spaces = [(state.segments.by_handle[slot.segment].space, slot) for slot in slots]
        capacities = {space.capacity_at(slot.offset) for space, slot in spaces}
        assert capacity is None or capacities <= {capacity}
        assert isinstance(owner, Put) or min(capacities) >= owner.size
        for slot in slots:
            assert slot.offset not in expected[slot.segment]
            expected[slot.segment][slot.offset] = (slot, owner)
    for handle, segment in state.segments.by_handle.items():
        places = expected[handle]
        assert segment.handle == segment.info.handle == handle
        assert state.segments.by_name[segment.name] is segment
        segment.space.validate()
        segment.table.validate()
        found = segment.owners()
        assert [offset for offset, _ in found] == sorted(places)
        assert all(places[offset][1] is owner for offset, owner in found)
        indexes = {slot.index for slot, _ in places.values()}
        assert len(indexes) == len(places) == segment.table.used
        assert all(segment.table.is_taken(index) for index in indexes)
    assert len(state.segments.by_name) == len(state.segments.by_handle)


def _validate_absent(state: State) -> None:
    counts: dict[int, int] = {}
    assert set(state.absent) == set(state.absent_shapes)
    for name, places in state.absent.items():
        assert places
        assert name not in state.segments.by_name
        for generation in places:
            counts[generation] = counts.get(generation, 0) + 1
    for generation, put in state.puts.items():
        assert put.absent == counts.pop(generation, 0)
    assert not counts
