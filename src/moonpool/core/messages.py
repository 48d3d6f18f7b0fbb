"""What is said to the master and what it answers.

The structs are the master's state machine's input and output and, packed by msgspec as arrays,
the wire format (docs/protocol.md). Fields are only ever appended, with a default, so that peers
one minor version apart understand each other. Sizes and offsets are bytes, times are seconds.
"""

from __future__ import annotations

import msgspec

MATCH_DIGESTS_MAX = 262_144
BATCH_ITEMS_MAX = 65_536
AWAIT_KEYS_MAX = 256
TRANSFER_CHARS_MAX = 128


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; on the wire ``[class name, field, field, ...]``."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the untagged structs inside messages."""


# --- sessions ---------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a connection. ``peer`` is unique to a process's life."""

    version_min: int
    version_max: int
    role: str
    peer: str
    token: str = ""


class Welcome(Message, frozen=True):
    """The master's answer: the version to speak and its epoch (grows with each restart).

    ``board_path`` is the file in which clients on the machine ``board_host`` may look objects up
    by themselves; empty if there is none. The file says ``board_cookie`` too. ``local`` is the name
    of an abstract Unix socket that does what the port does, for clients on that machine.
    ``kv_lease_s`` is what clients of the Mooncake API are to lease for.
    """

    version: int
    epoch: int
    board_path: str = ""
    board_host: str = ""
    board_cookie: int = 0
    local: str = ""
    kv_lease_s: float = 10.0


class Failed(Message, frozen=True):
    """The answer to a request that could not be served as a whole.

    A master that does not lead says -1010, and whom it takes for the ``leader`` in which ``epoch``.
    """

    code: int
    text: str
    leader: str = ""
    epoch: int = 0


class Done(Message, frozen=True):
    """The answer to a request that has nothing to tell."""


# --- segments and nodes -----------------------------------------------------------------------


class SegmentInfo(Part, frozen=True):
    """Where a segment is and how to reach it.

    ``host`` names the machine's memory (same host: map ``path``); ``address`` is the node's
    ``host:port``; ``data_bytes`` is the space for payloads; ``slots`` the entries of its table.
    """

    name: str
    node: str
    host: str
    address: str
    path: str
    data_bytes: int
    slots: int
    handle: int = 0


class Mount(Message, frozen=True):
    """A node offers a segment; answered by Mounted. Objects follow in Announce.

    ``copies``: the node knows Copy and SetDraining. ``draining``: it was told to drain, by this
    master or one before it.
    """

    segment: SegmentInfo
    generation_max: int = 0
    copies: bool = False
    draining: bool = False


class Mounted(Message, frozen=True):
    """The segment's number in this epoch of the master."""

    handle: int
    epoch: int


class Found(Part, frozen=True):
    """A committed slot that a node found in its segment.

    With ``writing`` it is one that a client the master may not know is still writing: its space
    stays reserved until a PutEnd or PutRevoke of its generation, or WriterGone("") of the node.
    A node announces these before all others.
    """

    key: bytes
    parent: bytes
    size: int
    capacity: int
    checksum: int
    generation: int
    index: int
    offset: int
    writing: bool = False


class Announce(Message, frozen=True):
    """What a node's segment holds, in pieces; the segment takes puts after the last one."""

    handle: int
    objects: list[Found]
    last: bool


PACKED_COLUMNS = ("size", "capacity", "checksum", "generation", "index", "offset")


class AnnouncePacked(Message, frozen=True):
    """As Announce, for committed objects named by digests of 16 bytes in one namespace.

    ``digests`` and ``parents`` are 16 bytes each, a parent of zeros none; ``numbers`` are
    little-endian u64, the columns above for one object after the other. Since version 2.
    """

    handle: int
    namespace: bytes
    digests: bytes
    parents: bytes
    numbers: bytes
    last: bool


class Announced(Message, frozen=True):
    """Slots (table indexes) that the master does not adopt; the node drops them."""

    rejected: list[int]


class Damaged(Message, frozen=True):
    """A node says that objects in its segment are not what was put: by their offsets and
    generations. Answered by Done. Since version 2."""

    handle: int
    offsets: list[int]
    generations: list[int]


class Unmount(Message, frozen=True):
    """A node takes its segment back."""

    handle: int


class GetSegments(Message, frozen=True):
    """Ask for all segments."""


class Segments(Message, frozen=True):
    """All mounted segments."""

    segments: list[SegmentInfo]


class WriterGone(Message, frozen=True):
    """A node says that this client can no longer write into its segments (process gone).

    ``generation`` repeats that of the FenceWriter it answers: puts granted later are not meant.
    An empty client stands for all writers from before the node's present session (see Found).
    """

    client: str
    generation: int = 0


class DropSlots(Message, frozen=True):
    """Pushed to a node: these slots' objects were removed; forget them if unchanged."""

    handle: int
    indexes: list[int]
    generations: list[int]


class FenceWriter(Message, frozen=True):
    """Pushed to a node: answer with WriterGone as soon as this client cannot write any more, and
    refuse its writes of generations up to ``generation`` (0: all that it has had so far)."""

    client: str
    generation: int = 0


# --- copies and drains ------------------------------------------------------------------------


class CopyItem(Part, frozen=True):
    """An object to fetch from a segment of another node into a slot of one's own, where its
    generation differs. The node ends it like a put of its own: PutEnd, or PutRevoke."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    address: str
    source: str
    source_index: int
    source_offset: int
    source_generation: int
    segment: int
    index: int
    offset: int
    capacity: int
    generation: int


class Copy(Message, frozen=True):
    """Pushed to a node: fetch these from other nodes."""

    items: list[CopyItem]


class SetDraining(Message, frozen=True):
    """Pushed to a node: remember, also over a restart, that it is (not) being drained."""

    on: bool


class Drain(Message, frozen=True):
    """Begin or end the drain of a node: nothing new goes there, and what it holds is copied to
    others. Answered by Done; how far it is stands in Status."""

    node: str
    on: bool = True


# --- a node's disk ----------------------------------------------------------------------------

ON_EVICT, WRITE_THROUGH, SELECTIVE = "on-evict", "write-through", "selective"
DISK_POLICIES = (ON_EVICT, WRITE_THROUGH, SELECTIVE)
"""When an object goes to disk: before it leaves memory, as soon as it is put, or the former if it
was used or put before."""


class DiskInfo(Part, frozen=True):
    """A node's second tier. ``promote_bytes`` and ``offload_bytes`` bound what is on its way to
    memory and from it. ``address``: the data port that sends objects straight from the disk, as
    those of the segment ``disk``; empty if there is none."""

    node: str
    capacity_bytes: int
    policy: str
    promote_bytes: int
    offload_bytes: int
    address: str = ""


class MountDisk(Message, frozen=True):
    """A node offers a disk, behind its segments; answered by Mounted. Objects follow in Shelve."""

    disk: DiskInfo
    generation_max: int = 0


class Shelved(Part, frozen=True):
    """An object on a disk. ``generation`` is that of the slot it was written from."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    generation: int


class Shelve(Message, frozen=True):
    """What a disk holds, in pieces up to ``last``; afterwards, what was written on Offload.

    Answered by Announced: the positions of objects that the master does not adopt."""

    handle: int
    objects: list[Shelved]
    last: bool = True


UNSHELVE_REASONS = frozenset(
    {"reclaimed", "gone", "corrupt", "truncated", "io", "full", "stale", "too_large"}
)
"""Why: its room was needed, its file is not there, is damaged, is too short, could not be read or
written; the disk is full; its memory was used again meanwhile; it is too large for an extent."""


class Unshelve(Message, frozen=True):
    """Objects of these generations are not on the disk (any more), or were not written there (an
    empty key will do for those). ``reason`` is one of UNSHELVE_REASONS. Answered by Done."""

    handle: int
    keys: list[bytes]
    generations: list[int]
    reason: str = ""


class Offload(Message, frozen=True):
    """Pushed to a node: write what these slots of a segment hold to disk, if unchanged. Each is
    answered, by Shelve or Unshelve."""

    handle: int
    indexes: list[int]
    generations: list[int]


class Promotion(Part, frozen=True):
    """An object to read from disk into a slot; its generation there differs. The node
    ends it like a put of its own: PutEnd, or PutRevoke."""

    object: Shelved
    segment: int
    index: int
    offset: int
    capacity: int
    generation: int


class Promote(Message, frozen=True):
    """Pushed to a node: read these from disk."""

    items: list[Promotion]


class DropShelved(Message, frozen=True):
    """Pushed to a node: these objects were removed; forget them, also for after a restart."""

    keys: list[bytes]
    generations: list[int]


class TouchShelved(Message, frozen=True):
    """Pushed to a node: these objects were in use up to now, in memory."""

    keys: list[bytes]


class Prefetch(Message, frozen=True):
    """A hint that the prefix will be asked for: read what only disks have of it into memory.

    Fields as in Match. Answered by Matched: how many objects are on their way.
    """

    namespace: bytes
    digests: bytes
    digest_bytes: int
    stride: int = 1


# --- put --------------------------------------------------------------------------------------


class PutItem(Part, frozen=True):
    """One object to put. ``parent`` is the packed key it continues, or empty."""

    key: bytes
    size: int
    parent: bytes = b""


class PutStart(Message, frozen=True):
    """First phase of a put: ask for space. Answered by PutStarted."""

    items: list[PutItem]
    replicas: int = 1
    preferred: str = ""
    pinned: bool = False
    soft_pin_s: float = 0.0
    """How long eviction is to prefer others; 0: not at all, below 0: as long as the master says."""
    groups: list[bytes] = []
    """The group of each item, or empty: what is leased and evicted together."""


class Slot(Part, frozen=True):
    """A place in a segment: its handle, the table entry and the payload's offset.

    ``generation`` is what its pages carry where it is not the object's: in a copy made later.
    """

    segment: int
    index: int
    offset: int
    generation: int = 0


class Grant(Part, frozen=True):
    """The answer to one item: space (code 0), or why not.

    ``generation`` names the put and is written on every page of its slots. With a negative code
    ``retry_after_s`` > 0 means that space is being freed and the item is worth asking again.
    """

    code: int
    generation: int = 0
    capacity: int = 0
    slots: list[Slot] = []
    retry_after_s: float = 0.0


class PutStarted(Message, frozen=True):
    """One grant for each item, in order."""

    grants: list[Grant]


class PutEnd(Message, frozen=True):
    """Second phase: the bytes are in place. Answered by Codes."""

    generations: list[int]
    checksums: list[int]


class PutRevoke(Message, frozen=True):
    """The client gives puts up and will not write into their slots again. Answered by Codes."""

    generations: list[int]


class PutAbandon(Message, frozen=True):
    """The client gives puts up while a node may still be writing them: their keys are free at
    once, their slots after a PutRevoke or when the client is gone. Answered by Codes. Since
    version 3."""

    generations: list[int]


class Codes(Message, frozen=True):
    """One code for each item: 0, or a negative error code."""

    codes: list[int]


# --- read -------------------------------------------------------------------------------------


class Match(Message, frozen=True):
    """How long is the known prefix? Changes nothing.

    ``digests`` are names of ``digest_bytes`` each in one namespace, in prefix order. With stride
    s > 1 objects end at every s-th block, and a shorter one may end at any block after the last
    full one that is present. Answered by Matched.
    """

    namespace: bytes
    digests: bytes
    digest_bytes: int
    stride: int = 1


class Matched(Message, frozen=True):
    """How many leading blocks are in the pool. ``disks``: some object of the pool, which need not
    be one of these, is on a disk only: Prefetch is worth its while."""

    count: int
    disks: bool = False


class MatchKeys(Message, frozen=True):
    """Like Match, for any keys: answered by Matched, up to the first that is missing."""

    keys: list[bytes]


class Exists(Message, frozen=True):
    """Which keys are in the pool? Changes nothing. Answered by Existing."""

    keys: list[bytes]


class Existing(Message, frozen=True):
    """One byte for each key: 1 if it is there."""

    present: bytes


class Get(Message, frozen=True):
    """Where are these objects? Takes the lease ``lease`` (chosen by the client) on those found.

    Answered by Got. ``lease_s`` bounds the lease; Release ends it early.
    """

    keys: list[bytes]
    lease: int
    lease_s: float


class Located(Part, frozen=True):
    """Where an object is; generation 0 means that it is not there (``code`` says why).

    ``retry_after_s`` > 0: it is on its way from a disk, and worth asking for again. ``disk``: it is
    on one, memory has no room for it now, and the data port there sends what has the generation
    ``disk_generation``. No lease is needed for that.
    """

    size: int = 0
    checksum: int = 0
    generation: int = 0
    slots: list[Slot] = []
    code: int = 0
    retry_after_s: float = 0.0
    disk: str = ""
    disk_generation: int = 0


class Got(Message, frozen=True):
    """One location for each key, in order."""

    objects: list[Located]


class Hold(Message, frozen=True):
    """Take a lease on a planned load's objects without asking where they are. Answered by Matched:
    how many leading keys are held."""

    keys: list[bytes]
    lease: int
    lease_s: float


class Release(Message, frozen=True):
    """End leases early. Sent without waiting; not answered."""

    leases: list[int]


# --- handoffs ---------------------------------------------------------------------------------

UNHEARD, OPEN, ENDED, FAILED = range(4)
"""States of a handoff: nothing is known of it; its prefill is queued or runs; it is over and all
that will come is there; it is over and the rest will not come."""


class News(Part, frozen=True):
    """What a prefill engine says of one of its requests: ``number`` is its own, OPEN is repeated
    as a sign of life, ENDED or FAILED come once."""

    transfer: str
    number: int
    state: int


class Tell(Message, frozen=True):
    """News of handoffs. Answered by Done."""

    news: list[News]


class Await(Message, frozen=True):
    """Say when the first of these keys is there, in the order of a prefix.

    Answered by Awaited: at once if it is there or the handoff ``transfer`` is over, else when
    that happens or ``wait_s`` have passed. Answers to later requests of the connection may come
    before.
    """

    keys: list[bytes]
    transfer: str = ""
    wait_s: float = 0.0


class Awaited(Message, frozen=True):
    """How many leading keys are there now, the handoff's state, and for how long nothing was heard
    of it while it is open."""

    count: int
    state: int = UNHEARD
    quiet_s: float = 0.0


# --- what is to stay, and what may go first -----------------------------------------------------

SESSION_CHARS_MAX = 128
SESSION_KEYS_MAX = 1024


class Pin(Message, frozen=True):
    """Keep objects in memory. With ``soft_s`` 0 eviction never takes them; else only where nothing
    else is left, for so many seconds, or below 0 as long as the master says. Answered by Codes:
    -1020 is over the quota of what may be kept for good. Since version 4."""

    keys: list[bytes]
    soft_s: float = 0.0


class Unpin(Message, frozen=True):
    """End pins of either kind. Answered by Codes. Since version 4."""

    keys: list[bytes]


class UseSession(Message, frozen=True):
    """A session uses the prefixes that end with these objects, which must be in memory to count.
    Answered by Done. Since version 4."""

    session: str
    keys: list[bytes]


class Replicate(Message, frozen=True):
    """Have an object copied to a node, or with ``source`` moved from one. Answered by Codes: 0 when
    it is done, -703 while it is on its way and to be asked again, -710 if it is not on the source
    or the target takes no copies. Since version 5."""

    key: bytes
    node: str
    source: str = ""


class EndSession(Message, frozen=True):
    """A session has ended: what no other one uses is evicted before all else. Answered by Matched:
    how many objects. One that is not known is no error. Since version 4."""

    session: str


# --- remove, list, status ---------------------------------------------------------------------


class Remove(Message, frozen=True):
    """Remove objects; leased ones only with ``force``. Answered by Codes."""

    keys: list[bytes]
    force: bool = False


class RemoveAll(Message, frozen=True):
    """Remove every object whose packed key starts with ``prefix``. Answered by Matched."""

    prefix: bytes = b""
    force: bool = False


class List(Message, frozen=True):
    """Objects in insertion order, a page at a time. Answered by Listed."""

    namespace: bytes | None
    prefix: bytes
    after: int
    limit: int


class ObjectInfo(Part, frozen=True):
    """What people may know of an object; ``leases`` counts those who hold it."""

    key: bytes
    parent: bytes
    size: int
    checksum: int
    generation: int
    complete: bool
    pinned: bool
    children: int
    leases: int
    created_s_ago: float
    used_s_ago: float
    segments: list[str]
    disk: str = ""
    """The node that has it on disk, if one has; without segments it is only there."""
    soft_pin_s: float = 0.0
    """How long it is soft-pinned still; one of these is not ``pinned``."""
    replicas: int = 1
    """Copies that were asked for; ``hosts`` has those that there are."""
    hosts: int = 1
    """Hosts that have a copy in memory, without those that are being drained."""
    group: bytes = b""
    """What it is leased and evicted together with."""


class Listed(Message, frozen=True):
    """A page of objects; ``next`` continues it, 0 when there is no more."""

    objects: list[ObjectInfo]
    next: int


class Stat(Message, frozen=True):
    """Ask for one object. Answered by Listed with one or no object."""

    key: bytes


class GetChanges(Message, frozen=True):
    """Ask which engines' blocks came and went, from change number ``first`` on; 0 only learns the
    number to begin with. Changes are recorded while somebody asks now and then. Answered by
    Changes."""

    first: int
    limit: int = 4096


class Changes(Message, frozen=True):
    """Changes ``first`` to ``next`` - 1 of this epoch. ``places``: for each key 0 if it is gone,
    else 1 + the place of its host among ``hosts``. With ``lost`` there are none: those asked for
    are not kept any more, and the blocks must be asked for by GetKeys."""

    epoch: int
    first: int
    next: int
    keys: list[bytes]
    places: list[int]
    hosts: list[str]
    lost: bool = False


class GetKeys(Message, frozen=True):
    """Ask for a page of the engines' blocks in memory, by age, behind ``after`` (-1: the oldest).
    Answered by Keys."""

    after: int = -1
    limit: int = 4096


class Keys(Message, frozen=True):
    """Blocks; places and hosts as in Changes. ``next`` continues, 0 when there is no more."""

    keys: list[bytes]
    places: list[int]
    hosts: list[str]
    next: int


class GetStatus(Message, frozen=True):
    """Ask for the pool's state. Answered by Status."""


class SegmentStatus(Part, frozen=True):
    """A segment and how full it is. ``pending_bytes`` waits for a writer to be gone."""

    info: SegmentInfo
    used_bytes: int
    objects: int
    ready: bool
    pending_bytes: int
    draining: bool = False


class DrainStatus(Part, frozen=True):
    """How far the drain of a node is: what its memory still holds and how many bytes of it are on
    their way. ``stuck``: objects for which there is no room elsewhere. ``disk_only``: objects that
    only its disk has, which stay there. ``empty``: it may be stopped."""

    node: str
    since_s: float
    objects: int
    nbytes: int
    copying_bytes: int
    stuck: int
    disk_only: int
    empty: bool


class DiskStatus(Part, frozen=True):
    """A node's disk: what is on it, and what is on its way from memory and to it."""

    info: DiskInfo
    used_bytes: int
    objects: int
    ready: bool
    offloading_bytes: int
    promoting_bytes: int


class Status(Message, frozen=True):
    """The pool at a glance; counters are since the master's start. ``disk_only``: objects that
    are on a disk and not in memory; ``objects`` are those in memory."""

    epoch: int
    uptime_s: float
    objects: int
    puts_in_progress: int
    leases: int
    clients: int
    segments: list[SegmentStatus]
    counters: dict[str, int]
    disks: list[DiskStatus] = []
    disk_only: int = 0
    drains: list[DrainStatus] = []
    thin: int = 0
    """Objects that are on fewer hosts than they were put for."""
    spare: int = 0
    """Objects with copies beyond that, because they are read much."""
    copying: int = 0
    """Objects on their way from node to node."""


# --- events of the service around the state machine, never on the wire -------------------------


class PeerGone(Message, frozen=True):
    """A connection to ``peer`` broke: a node's segments are gone, a client's puts are orphans."""

    peer: str
    role: str


class Tick(Message, frozen=True):
    """Time passes: expire leases and abandoned puts, evict down to the watermark."""


class WaitersGone(Message, frozen=True):
    """Nobody waits for the answers to these Awaits any more."""

    numbers: list[int]


class Parked(Message, frozen=True):
    """The state machine's word for an Await that is answered later, under this number."""

    number: int


Request = (
    Hello
    | Mount
    | Announce
    | AnnouncePacked
    | Damaged
    | Unmount
    | GetSegments
    | WriterGone
    | PutStart
    | PutEnd
    | PutRevoke
    | PutAbandon
    | Match
    | MatchKeys
    | Exists
    | Get
    | Hold
    | Release
    | Remove
    | RemoveAll
    | List
    | Stat
    | GetStatus
    | GetChanges
    | GetKeys
    | Tell
    | Await
    | MountDisk
    | Shelve
    | Unshelve
    | Prefetch
    | Drain
    | Pin
    | Unpin
    | UseSession
    | EndSession
    | Replicate
)
"""What a peer may send."""

Reply = (
    Welcome
    | Failed
    | Done
    | Mounted
    | Announced
    | Segments
    | PutStarted
    | Codes
    | Matched
    | Existing
    | Got
    | Listed
    | Status
    | Changes
    | Keys
    | Awaited
)
"""What the master answers."""

Push = DropSlots | FenceWriter | Offload | Promote | DropShelved | TouchShelved | Copy | SetDraining
"""What the master sends to a node unasked."""
