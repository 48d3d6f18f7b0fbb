"""What must be readable, leased and reserved: a plain model of the master to compare it with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moonpool.core import messages as m
from moonpool.core.copies import wanted_of

PUT_TIMEOUT_S = 30.0


@dataclass(eq=False)
class Claim:
    """A place that a writer may still touch, or an object's. ``generation``: 0, or its own where
    it is not the object's."""

    node: str
    index: int
    offset: int
    capacity: int
    generation: int = 0

    def overlaps(self, node: str, offset: int, capacity: int) -> bool:
        return (
            self.node == node
            and offset < self.offset + self.capacity
            and self.offset < offset + capacity
        )


@dataclass(eq=False)
class ModelPut:
    """A granted put: its claims end when its writer has ended it or is known to be dead.

    ``nodes`` are those on which it still has live slots.
    """

    generation: int
    item: m.PutItem
    client: str
    pinned: bool
    started: float
    claims: list[Claim]
    nodes: set[str]
    discarded: bool = False
    orphaned: bool = False


@dataclass(eq=False)
class ModelObject:
    """A committed object and where its replicas are."""

    generation: int
    item: m.PutItem
    pinned: bool
    places: list[Claim]

    def wants(self, node: ModelNode, found: m.Found) -> bool:
        """Tell whether what a node found is one of the copies that there are to be."""
        if found.size != self.item.size:
            return False
        if found.generation == self.generation and not self.has_copies:
            return True
        nodes = {place.node for place in self.places}
        return node.name not in nodes and len(nodes) < wanted_of(self.generation)

    @property
    def has_copies(self) -> bool:
        """Tell whether a place is of another generation."""
        return any(place.generation for place in self.places)


@dataclass(eq=False)
class ModelNode:
    """A node: its session (None while away), what its file holds, and unanswered fences."""

    name: str
    pages: int
    peer: str | None = None
    handle: int = 0
    found: dict[int, m.Found] = field(default_factory=dict)
    fences: list[m.FenceWriter] = field(default_factory=list)


class Model:
    """The pool as it must be."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: dict[str, ModelNode] = {}
        self.objects: dict[bytes, ModelObject] = {}
        self.removed: dict[bytes, int] = {}
        """The newest generation there was when the key was removed."""
        self.puts: dict[int, ModelPut] = {}
        self.ended: dict[int, str] = {}
        self.leases: dict[tuple[str, int], tuple[float, set[int]]] = {}
        self.dead: set[str] = set()

    def node_of(self, handle: int) -> ModelNode:
        return next(each for each in self.nodes.values() if each.peer and each.handle == handle)

    def is_leased(self, generation: int) -> bool:
        return any(
            expires > self.now and generation in generations
            for expires, generations in self.leases.values()
        )

    def expire_puts(self) -> None:
        for put in self.puts.values():
            if put.started + PUT_TIMEOUT_S <= self.now:
                put.discarded = True

    def in_progress(self, key: bytes) -> bool:
        return any(put.item.key == key and not put.discarded for put in self.puts.values())

    def grant(self, item: m.PutItem, grant: m.Grant, client: str, *, pinned: bool) -> None:
        """Take note of a grant; its places must be nobody else's."""
        claims = [
            Claim(self.node_of(slot.segment).name, slot.index, slot.offset, grant.capacity)
            for slot in grant.slots
        ]
        assert len({claim.node for claim in claims}) == len(claims) > 0
        for claim in claims:
            for place in self._reserved():
                assert not place.overlaps(claim.node, claim.offset, claim.capacity)
                assert (place.node, place.index) != (claim.node, claim.index)
            self._overwrite(claim)
        nodes = {claim.node for claim in claims}
        self.puts[grant.generation] = ModelPut(
            grant.generation, item, client, pinned, self.now, claims, nodes
        )

    def _reserved(self) -> Iterator[Claim]:
        for put in self.puts.values():
            yield from put.claims
        for each in self.objects.values():
            yield from each.places

    def _overwrite(self, claim: Claim) -> None:
        node = self.nodes[claim.node]
        for index, found in list(node.found.items()):
            if index == claim.index or claim.overlaps(node.name, found.offset, found.capacity):
                del node.found[index]

    def end(self, generation: int, client: str) -> int:
        """Return the code that PutEnd must give, and do it."""
        put = self.puts.get(generation)
        if put is None:
            return 0 if self.ended.get(generation) == client else -700
        if put.client != client:
            return -601
        del self.puts[generation]
        if put.discarded:
            return -700
        if put.item.key in self.objects:
            return -705
        self.ended[generation] = client
        places = [claim for claim in put.claims if claim.node in put.nodes]
        self.objects[put.item.key] = ModelObject(generation, put.item, put.pinned, places)
        for place in places:
            self.nodes[place.node].found[place.index] = m.Found(
                put.item.key,
                put.item.parent,
                put.item.size,
                place.capacity,
                1,
                generation,
                place.index,
                place.offset,
            )
        return 0

    def node_gone(self, node: ModelNode) -> None:
        node.peer = None
        node.fences.clear()
        for key, each in list(self.objects.items()):
            each.places = [place for place in each.places if place.node != node.name]
            if not each.places:
                del self.objects[key]
                # A lease ends with its object; one that the node brings back is not leased.
                for _, held in self.leases.values():
                    held.discard(each.generation)
        for put in self.puts.values():
            put.nodes.discard(node.name)
            if not put.nodes:
                put.discarded = True

    def adopt(self, node: ModelNode) -> list[int]:
        """Adopt what a node announces; return the indexes that must be rejected."""
        rejected: list[int] = []
        for index, found in sorted(node.found.items(), key=lambda each: each[1].generation):
            known = self.objects.get(found.key)
            place = Claim(node.name, index, found.offset, found.capacity)
            if self.removed.get(found.key, 0) >= found.generation:
                rejected.append(index)
                continue
            if known is not None and known.wants(node, found):
                if found.generation != known.generation:
                    place.generation = found.generation
                known.places.append(place)
                continue
            if known is not None and (known.generation >= found.generation or known.has_copies):
                rejected.append(index)
                continue
            item = m.PutItem(found.key, found.size, found.parent)
            self.objects[found.key] = ModelObject(found.generation, item, False, [place])
        return rejected

    def writer_gone(self, node: str, fence: m.FenceWriter) -> None:
        for put in list(self.puts.values()):
            if put.client == fence.client and put.orphaned and put.generation <= fence.generation:
                put.claims = [claim for claim in put.claims if claim.node != node]
                if not put.claims:
                    del self.puts[put.generation]

    def pushed(self, peer: str, push: m.Push) -> None:
        """A node gets what the master sent."""
        node = next(each for each in self.nodes.values() if each.peer == peer)
        if isinstance(push, m.FenceWriter):
            node.fences.append(push)
            return
        assert isinstance(push, m.DropSlots)
        assert push.handle == node.handle
        for index, generation in zip(push.indexes, push.generations, strict=True):
            if index in node.found and node.found[index].generation == generation:
                del node.found[index]
