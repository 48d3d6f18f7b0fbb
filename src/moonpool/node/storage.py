"""A node's segments on this host: made, taken over from a life before, deleted on a clean end.

``<segment_dir>/<node>/`` holds for each segment the file itself, ``<name>.seg``, and a *users
file*, ``<name>.<time>.users``: who maps the segment holds a shared lock on it. A segment that is
taken over gets a new users file; as long as the old one is locked there are writers from before.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from moonpool.core.messages import SegmentInfo
from moonpool.errors import ConfigError, InvalidArgumentError, TransferError
from moonpool.protocol.data import AttachedSegment
from moonpool.transport.host import host_identity
from moonpool.transport.layout import BYTES_PER_SLOT, PAGE_BYTES, Geometry, doubt_of, new_header
from moonpool.transport.scan import Scan
from moonpool.transport.segment import Segment

_log = logging.getLogger(__name__)

SIZE_MIN = 1024 * 1024
STALE_AFTER_S = 600.0
NAME_CHARS_MAX = 100
DRAINING = "draining"
"""A file of this name beside the segments says, also after a kill, that the node is drained."""


@dataclass
class Held:
    """A segment and its users file."""

    segment: Segment
    users: Path
    taken_over: bool
    doubt: Path | None = None
    file: tuple[int, int] = (0, 0)
    """Which file it is: its device and inode."""


class Storage:
    """The segments of the node ``name``: ``size`` bytes of files in ``directory``, none larger
    than ``segment_size``, each with a table entry for every ``object_size`` bytes. Nothing is on
    disk before ``open``."""

    def __init__(
        self,
        name: str,
        directory: str,
        size: int,
        segment_size: int,
        object_size: int = BYTES_PER_SLOT,
    ) -> None:
        if not 0 < len(name) <= NAME_CHARS_MAX or name[0] == "." or set(name) & set("/\0\n"):
            raise ConfigError(f"name: {name!r} cannot name a node; a host name would do")
        self.name = name
        self.host = ""
        self.root = Path(directory)
        self.directory = self.root / name
        self._shapes = _shapes(size, segment_size, object_size)
        self._held: dict[str, Held] = {}
        self._old_users: list[Path] = []
        self._made_root = False
        self._lock: int | None = None

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the segments or take over those that are there. Raises ConfigError."""
        kept: dict[str, Segment] = {}
        try:
            self._made_root = not self.root.exists()
            self._lock = self._locked()
            self.host = host_identity(self.root)
            self._take_over(kept)
            self._check_space(kept)
            for name, shape in self._shapes.items():
                segment = kept.get(name)
                made = segment or Segment.create(
                    self.directory / f"{name}.seg", new_header(self.name, name, shape)
                )
                self._held[name] = self._hold(name, made, taken_over=segment is not None)
        except BaseException as error:
            for held in self._held.values():
                if not held.taken_over:
                    _unlink(held)
                held.users.unlink(missing_ok=True)
            for segment in [*kept.values(), *self.segments()]:
                segment.close()
            self._held.clear()
            if self._lock is not None:
                self._remove_empty()
            self._unlock()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"segment_dir: {self.directory}: {error.strerror}; a directory in shared "
                    "memory that this user may write to is needed"
                ) from None
            raise

    def close(self, *, delete: bool) -> None:
        """Give the segments up; with ``delete`` their files go, else the next start has them."""
        for held in self._held.values():
            if delete:
                _unlink(held)
                held.users.unlink(missing_ok=True)
                doubt_of(held.segment.path).unlink(missing_ok=True)
            held.segment.close()
        self._held.clear()
        if delete:
            (self.directory / DRAINING).unlink(missing_ok=True)
            for path in self._old_users:
                path.unlink(missing_ok=True)
            self._remove_empty()
        self._unlock()

    def _locked(self) -> int:
        """Take the directory for this node: a segment's own lock is gone with its file."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            raise self._runs_already(self.directory) from None
        return fd

    def _runs_already(self, path: Path) -> ConfigError:
        return ConfigError(
            f"name: a node {self.name!r} runs on this host already ({path} is locked); "
            "names are unique"
        )

    def _unlock(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):  # somebody's files are there
            self.directory.rmdir()
            if self._made_root:
                self.root.rmdir()

    def beat(self) -> None:
        """Mark the files as in use, so that their age tells how long a dead node is dead."""
        for held in self._held.values():
            with contextlib.suppress(OSError):
                os.utime(held.segment.path)

    @property
    def draining(self) -> bool:
        """Whether the node was told to drain."""
        return (self.directory / DRAINING).exists()

    def set_draining(self, *, on: bool) -> None:
        """Remember whether the node is being drained."""
        try:
            if on:
                (self.directory / DRAINING).touch(mode=0o600)
            else:
                (self.directory / DRAINING).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s: %s", self.directory / DRAINING, error)
        _log.info("the node is %s", "being drained" if on else "in use")

    # --- what there is ------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """Return all segments."""
        return [held.segment for held in self._held.values()]

    def segment(self, name: str) -> Segment | None:
        """Return a segment by name."""
        held = self._held.get(name)
        return None if held is None else held.segment

    def users_of(self, name: str) -> str:
        """Return the path of a segment's users file."""
        return str(self._held[name].users)

    def attachable(self) -> list[AttachedSegment]:
        """Return what clients on this host may map."""
        return [
            AttachedSegment(name, held.segment.path, held.segment.header.epoch, str(held.users))
            for name, held in self._held.items()
        ]

    def infos(self, address: str) -> list[SegmentInfo]:
        """Return the segments as the master is told of them."""
        return [
            SegmentInfo(
                name=name,
                node=self.name,
                host=self.host,
                address=address,
                path=held.segment.path,
                data_bytes=held.segment.geometry.data_bytes,
                slots=held.segment.slots,
            )
            for name, held in self._held.items()
        ]

    def contents(self, name: str, floor: int = 0) -> Scan:
        """Return what is in a segment now.

        floor: the generation above which the master that asks grants; no other is begun from now
        on. Until now clients may have put what another master granted, or this one to an earlier
        session, also since this node has started.
        """
        segment = self._held[name].segment
        segment.raise_floor(floor)
        return segment.scan(pack=True)

    def doubtful(self) -> list[str]:
        """Return the segments of which payloads have not been compared with their checksums."""
        return [name for name, held in self._held.items() if held.doubt is not None]

    def cut_short(self) -> list[str]:
        """Return the paths of segments whose files are smaller than they were made."""
        return [held.segment.path for held in self._held.values() if _is_short(held)]

    def strays(self) -> list[str]:
        """Return the paths at which there is no file any more, or one that is not the node's."""
        return [held.segment.path for held in self._held.values() if not _is_there(held)]

    def trust(self, name: str) -> None:
        """Let clients read a segment without comparing."""
        held = self._held[name]
        doubt, held.doubt = held.doubt, None
        if doubt is not None:
            doubt.unlink(missing_ok=True)

    def has_old_users(self) -> bool:
        """Tell whether processes map a segment since before this life of the node."""
        self._old_users = [path for path in self._old_users if not _remove_unused(path)]
        return bool(self._old_users)

    # --- opening ------------------------------------------------------------------------------

    def _take_over(self, kept: dict[str, Segment]) -> None:
        """Collect the segments of an earlier life that fit; delete the others."""
        for path in sorted(self.directory.glob("*.seg")):
            segment = self._open_owned(path)
            name = path.name.removesuffix(".seg")
            if segment is not None and self._fits(segment, name):
                kept[name] = segment
                continue
            path.unlink(missing_ok=True)
            _log.info("deleted %s, which is no segment of this node as it is now", path)
            if segment is not None:
                segment.close()
        for path in self.directory.glob("*.doubt"):
            if path.name.removesuffix(".doubt") not in kept:
                path.unlink(missing_ok=True)
        for path in self.directory.glob("*.users"):
            name = path.name.split(".")[0]
            if name not in kept:
                path.unlink(missing_ok=True)
            elif not _remove_unused(path):
                self._old_users.append(path)

    def _open_owned(self, path: Path) -> Segment | None:
        try:
            return Segment.open(path, own=True)
        except TransferError:
            raise self._runs_already(path) from None
        except (InvalidArgumentError, OSError) as error:
            _log.warning("%s: %s", path, error)
            return None

    def _fits(self, segment: Segment, name: str) -> bool:
        header = segment.header
        return (header.node, header.name, header.geometry) == (
            self.name,
            name,
            self._shapes.get(name),
        )

    def _check_space(self, kept: dict[str, Segment]) -> None:
        wanted = sum(shape.total_bytes for shape in self._shapes.values())
        have = sum(512 * Path(segment.path).stat().st_blocks for segment in kept.values())
        found = os.statvfs(self.root)
        free = found.f_bavail * found.f_frsize
        if wanted - have > free:
            raise ConfigError(
                f"size: {wanted} bytes are wanted and {have + free} are free in {self.root}; "
                f"at most {have + free} are allowed"
            )

    def _hold(self, name: str, segment: Segment, *, taken_over: bool) -> Held:
        users = self.directory / f"{name}.{time.time_ns()}.users"
        users.touch(mode=0o600)
        doubt = None
        if taken_over:
            doubt = doubt_of(segment.path)
            doubt.touch(mode=0o600)
            adopted = segment.scan(reset=True, pack=True)
            _log.info(
                "took over %s: %d objects, %d unfinished, %d broken entries",
                segment.path,
                adopted.count,
                len(adopted.writing),
                adopted.torn,
            )
        found = Path(segment.path).stat()
        return Held(segment, users, taken_over, doubt, (found.st_dev, found.st_ino))


def remove_stale(root: Path, own: str, now_s: float, after_s: float = STALE_AFTER_S) -> list[Path]:
    """Delete segments of other nodes whose owner is dead for ``after_s``; return their paths.

    now_s: the time as in the files' modification times, which a living node renews (``beat``).
    Younger ones are left alone: their node may be about to start again.
    """
    removed = []
    for path in sorted(root.glob("*/*.seg")):
        if path.parent.name == own:
            continue
        with contextlib.suppress(OSError):
            age = now_s - path.stat().st_mtime
            if age >= after_s and _delete_if_free(path):
                _log.warning("deleted %s, whose node died %.0f s ago", path, age)
                removed.append(path)
                path.parent.rmdir()
    return removed


def _shapes(size: int, segment_size: int, object_size: int) -> dict[str, Geometry]:
    """Return the segments' names and geometries."""
    if size < SIZE_MIN:
        raise ConfigError(f"size: {size} bytes; at least {SIZE_MIN} are needed")
    if segment_size < SIZE_MIN:
        raise ConfigError(f"segment_size: {segment_size} bytes; at least {SIZE_MIN} are needed")
    if object_size < PAGE_BYTES:
        raise ConfigError(f"object_size: {object_size} bytes; at least {PAGE_BYTES} are needed")
    count = -(-size // segment_size)
    try:
        shape = Geometry.within(size // count, per_slot=object_size)
    except InvalidArgumentError as error:
        raise ConfigError(f"size: {size}: {error}") from None
    return {f"segment-{i}": shape for i in range(count)}


def _is_there(held: Held) -> bool:
    """Tell whether a segment's path still leads to its file."""
    try:
        found = Path(held.segment.path).stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == held.file


def _is_short(held: Held) -> bool:
    size = held.segment.geometry.total_bytes
    with contextlib.suppress(OSError):
        return _is_there(held) and Path(held.segment.path).stat().st_size < size
    return False


def _unlink(held: Held) -> None:
    """Delete a segment's file, unless another one is in its place."""
    if _is_there(held):
        held.segment.unlink()


def _remove_unused(path: Path) -> bool:
    """Delete a users file that nobody has locked; return whether it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        # The lock keeps a client out that is just about to map the segment.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _delete_if_free(path: Path) -> bool:
    """Delete a segment file and its users files if nobody owns it; return whether it is gone."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    doubt_of(path).unlink(missing_ok=True)
    for users in path.parent.glob(f"{path.name.removesuffix('.seg')}.*.users"):
        users.unlink(missing_ok=True)
    return True
