"""What a Store asks a moonpool master, asked of a Mooncake cluster.

Its lookups lease what they find (for the cluster's ``default_kv_lease_ttl``): there is no other way
to ask. What it has no word for is answered by Failed(-1012).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from moonpool.client.mooncake.admin import Admin
from moonpool.client.mooncake.keys import key_of_name, name_of, names_of
from moonpool.client.mooncake.wheel import Wheel
from moonpool.core import messages as m
from moonpool.core.keys import pack, split
from moonpool.errors import InvalidKeyError, MasterUnreachableError, NotSupportedError

ASK_MAX: Final = 1024
"""Keys in one question: an answer of "no" early in a prefix ends it."""
_LOST: Final = (-900, -901)


class MooncakeChannel:
    """A Channel to a cluster."""

    def __init__(self, wheel: Wheel, admin: Admin) -> None:
        self.version = 0
        self.kv_lease_s = 10.0
        self._wheel = wheel
        self._admin = admin
        self._started = time.monotonic()
        self._answers: dict[type[m.Message], Callable[[Any], m.Reply]] = {
            m.Exists: self._exists,
            m.Match: self._match,
            m.MatchKeys: self._match_keys,
            m.Hold: self._match_keys,
            m.Prefetch: lambda _: m.Matched(0),
            m.Stat: self._stat,
            m.List: self._list,
            m.GetStatus: self._status,
            m.Remove: self._remove,
            m.RemoveAll: self._remove_all,
        }

    def call(self, request: m.Request, timeout_s: float | None = None) -> m.Reply:
        """Return the reply. Raises MasterUnreachableError, and NotSupportedError for what the
        cluster cannot be asked."""
        answer = self._answers.get(type(request))
        if answer is None:
            what = type(request).__name__
            raise NotSupportedError(f"{what} cannot be asked of a Mooncake cluster")
        return answer(request)

    def ask(self, request: m.Request, timeout_s: float | None = None) -> tuple[m.Reply, int]:
        """Return the reply and an epoch, which is always 1."""
        return self.call(request, timeout_s), 1

    def send_only(self, request: m.Request) -> None:
        """Do nothing: leases end by themselves there."""

    def dedicated(self, timeout_s: float) -> Any:
        """There are no connections to share out."""
        raise MasterUnreachableError("a Mooncake cluster has no such connections")

    def board(self) -> None:
        """There is no table to look things up in."""

    def connect(self) -> None:
        """The wheel is connected already."""

    def connect_later(self) -> None:
        """The wheel is connected already."""

    def close(self) -> None:
        """Give the client up."""
        self._wheel.close()

    # --- lookups ------------------------------------------------------------------------------

    def present(self, names: Sequence[str]) -> list[bool]:
        """Tell which names are there, and lease them. Raises MasterUnreachableError."""
        found: list[bool] = []
        for at in range(0, len(names), ASK_MAX):
            codes = self._wheel.batch_is_exist(list(names[at : at + ASK_MAX]))
            if any(code in _LOST for code in codes):
                raise MasterUnreachableError("mooncake_master does not answer")
            found += [code == 1 for code in codes]
        return found

    def _leading(self, names: Sequence[str]) -> int:
        count = 0
        for at in range(0, len(names), ASK_MAX):
            part = self.present(names[at : at + ASK_MAX])
            if False in part:
                return count + part.index(False)
            count += len(part)
        return count

    def _exists(self, request: m.Exists) -> m.Reply:
        return m.Existing(bytes(self.present(names_of(request.keys))))

    def _match_keys(self, request: m.MatchKeys | m.Hold) -> m.Reply:
        return m.Matched(self._leading(names_of(request.keys)))

    def _match(self, request: m.Match) -> m.Reply:
        width, stride = request.digest_bytes, request.stride
        names = [
            name_of(pack(request.digests[at : at + width], request.namespace))
            for at in range(0, len(request.digests) - width + 1, width)
        ]
        full = self._leading(names[stride - 1 :: stride]) * stride
        tails = names[full : full + stride - 1]
        there = self.present(tails) if tails else []
        longest = max((at + 1 for at, each in enumerate(there) if each), default=0)
        return m.Matched(full + longest)

    def _stat(self, request: m.Stat) -> m.Reply:
        return m.Listed(self._infos([name_of(request.key)]), 0)

    def _infos(self, names: Sequence[str]) -> list[m.ObjectInfo]:
        found = self._wheel.batch_get_replica_desc(list(names)) if names else {}
        return [_info(name, found[name]) for name in names if found.get(name)]

    def _list(self, request: m.List) -> m.Reply:
        keys = [name for name in self._admin.names() if _is_listed(name, request)]
        page = keys[request.after : request.after + request.limit]
        after = request.after + len(page)
        return m.Listed(self._infos(page), after if after < len(keys) else 0)

    def _status(self, _: m.GetStatus) -> m.Reply:
        metrics, segments = self._admin.metrics(), self._admin.segments()
        counters = {name: int(v) for name, v in metrics.items() if name.endswith("_total") and v}
        return m.Status(
            epoch=1,
            uptime_s=time.monotonic() - self._started,
            objects=int(metrics.get("master_key_count", 0)),
            puts_in_progress=0,
            leases=0,
            clients=int(metrics.get("master_active_clients", 0)),
            segments=[_segment(number, each) for number, each in enumerate(segments, 1)],
            counters=counters,
        )

    # --- removal ------------------------------------------------------------------------------

    def _remove(self, request: m.Remove) -> m.Reply:
        codes = self._wheel.batch_remove(names_of(request.keys), request.force)
        return m.Codes([int(code) for code in codes])

    def _remove_all(self, request: m.RemoveAll) -> m.Reply:
        if request.prefix:
            namespace, name = split(request.prefix)
            start = f"{namespace.hex()}/{name.hex()}" if namespace else name.decode()
            count = self._wheel.remove_by_regex(f"^{_escaped(start)}", request.force)
        else:
            count = self._wheel.remove_all(request.force)
        if count in _LOST:
            raise MasterUnreachableError("mooncake_master does not answer")
        return m.Matched(max(0, int(count)))


def _escaped(text: str) -> str:
    """Return text in which nothing has a meaning to ECMAScript's expressions."""
    return re.sub(r"[\\^$.|?*+()\[\]{}/]", r"\\\g<0>", text)


def _is_listed(name: str, request: m.List) -> bool:
    try:
        namespace, own = split(key_of_name(name))
    except InvalidKeyError:
        return False
    return request.namespace in (None, namespace) and own.startswith(request.prefix)


def size_of(replicas: Sequence[Any]) -> int:
    """Return an object's bytes, from what is known of its replicas."""
    for each in replicas:
        if each.is_memory_replica():
            return int(each.get_memory_descriptor().buffer_descriptor.size)
    for each in replicas:
        if each.is_disk_replica():
            return int(each.get_disk_descriptor().object_size)
    return 0


def _info(name: str, replicas: Sequence[Any]) -> m.ObjectInfo:
    where = [
        str(each.get_memory_descriptor().buffer_descriptor.transport_endpoint)
        for each in replicas
        if each.is_memory_replica()
    ]
    return m.ObjectInfo(
        key=key_of_name(name),
        parent=b"",
        size=size_of(replicas),
        checksum=0,
        generation=0,
        complete=True,
        pinned=False,
        children=0,
        leases=0,
        created_s_ago=0.0,
        used_s_ago=0.0,
        segments=where,
    )


def _segment(number: int, said: dict[str, Any]) -> m.SegmentStatus:
    info = m.SegmentInfo(
        name=str(said.get("segment_name", "?")),
        node=str(said.get("client_id", "")),
        host="",
        address=str(said.get("te_endpoint", "")),
        path="",
        data_bytes=int(said.get("size_bytes", 0)),
        slots=0,
        handle=number,
    )
    used = int(said.get("allocator_used_bytes", 0))
    return m.SegmentStatus(info, used, 0, said.get("status") == "OK", 0)
