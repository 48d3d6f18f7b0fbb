"""What ``mc_store_rest_server`` does about segments."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from moonpool.compat.commands.rest_answers import body_of, done, error

GRACE_S_MAX = 3600
PREFILL, DECODE = "prefill", "decode"


class RestSegments:
    """Handlers for lending and taking back; in decode mode a segment of a file is lent."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._mode = PREFILL
        self._lent: list[str] = []
        self._changing = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return what is served."""
        return [
            web.post("/api/mount", self.mount),
            web.post("/api/unmount", self.unmount),
            web.post("/api/mount_shm", self.mount_shm),
            web.post("/api/unmount_shm", self.unmount_shm),
            web.post("/api/unmount_local_disk", self.unmount_local_disk),
            web.post("/api/reconfigure", self.reconfigure),
        ]

    async def _call(self, name: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(self._store, name), *args)

    async def mount(self, request: web.Request) -> web.Response:
        """Lend ``size`` bytes more."""
        size = (await body_of(request)).get("size")
        if type(size) is not int or size <= 0:
            return error(400, "Invalid size, must be a positive integer")
        found = await self._call("allocate_and_mount_segment", size)
        if found["ret"]:
            return error(500, f"Allocate and mount failed, ret={found['ret']}")
        names = ("segment_ids", "allocated_size")
        return web.json_response({"status": "success", **{name: found[name] for name in names}})

    async def unmount(self, request: web.Request) -> web.Response:
        """Take ``segment_ids`` back; their objects go."""
        ids = _ids_of(await body_of(request))
        if not ids:
            return error(400, "Missing segment_ids")
        code = await self._call("unmount_and_free_segment", ids)
        return error(500, f"Unmount and free failed, ret={code}") if code else done()

    async def mount_shm(self, request: web.Request) -> web.Response:
        """Lend as much as a part of the shared memory ``name`` has."""
        body = await body_of(request)
        path, size = _path_of(body.get("name")), body.get("size")
        if not path or size is None:
            return error(400, "Missing or invalid name or size")
        try:
            found = await self._call("mount_segment", path, size, body.get("offset", 0))
        except TypeError as wrong:
            return error(500, str(wrong))
        if found["ret"]:
            return error(500, f"Mount failed, ret={found['ret']}")
        return web.json_response({"status": "success", "segment_ids": found["segment_ids"]})

    async def unmount_shm(self, request: web.Request) -> web.Response:
        """Take back what ``mount_shm`` lent, one by one."""
        ids = _ids_of(await body_of(request))
        if not ids:
            return error(400, "Missing segment_ids")
        async with self._changing:
            failed = [each for each in ids if await self._call("unmount_segment", [each])]
            self._lent = [each for each in self._lent if each in failed or each not in ids]
            self._mode = self._mode if self._lent else PREFILL
        if failed:
            text = "Unmount failed for one or more segments"
            return web.json_response({"error": text, "failed_segment_ids": failed}, status=500)
        return done()

    async def unmount_local_disk(self, request: web.Request) -> web.Response:
        """Take this store's disk back: it has none, so nothing is left to be done."""
        grace_s = (await body_of(request)).get("grace_period_seconds", 0)
        if type(grace_s) is not int or not 0 <= grace_s <= GRACE_S_MAX:
            text = "must be a non-negative integer no greater than"
            return error(400, f"Invalid grace_period_seconds, {text} {GRACE_S_MAX}")
        code = await self._call("unmount_local_disk_segment", grace_s)
        return error(500, f"Unmount local disk failed, ret={code}") if code else done()

    async def reconfigure(self, request: web.Request) -> web.Response:
        """``decode``: lend a part of the file ``path``, then take back what was lent so before;
        ``prefill``: take that back."""
        body = await body_of(request)
        mode = str(body.get("mode", "")).lower()
        async with self._changing:
            if mode == DECODE:
                return await self._decode(body)
            if mode == PREFILL:
                return await self._prefill()
        return error(400, "Invalid mode. Use 'decode' or 'prefill'")

    async def _decode(self, body: dict[str, Any]) -> web.Response:
        path, size = body.get("path"), body.get("size")
        if not path or size is None:
            return error(400, "Missing path or size for decode mode")
        try:
            found = await self._call("mount_segment", path, size, body.get("offset", 0))
        except TypeError as wrong:
            return error(500, str(wrong))
        if found["ret"]:
            kept = "keeping previous decode segments" if self._lent else "rolled back to prefill"
            text = f"Mount failed, ret={found['ret']}; {kept}"
            return web.json_response({"error": text, "mode": self._mode}, status=500)
        failed = [each for each in self._lent if await self._call("unmount_segment", [each])]
        self._mode, self._lent = DECODE, [*found["segment_ids"], *failed]
        return web.json_response(
            {"status": "success", "mode": self._mode, "segment_ids": self._lent}
        )

    async def _prefill(self) -> web.Response:
        code = await self._call("unmount_segment", self._lent) if self._lent else 0
        if code:
            return error(500, f"Unmount failed, ret={code}")
        self._mode, self._lent = PREFILL, []
        return web.json_response({"status": "success", "mode": PREFILL})


def _ids_of(body: dict[str, Any]) -> list[str]:
    ids = body.get("segment_ids", [])
    ids = [ids] if isinstance(ids, str) else ids
    fine = isinstance(ids, list) and all(isinstance(each, str) for each in ids)
    return ids if fine else []


def _path_of(name: object) -> str:
    """Return the path of shared memory, nothing for what cannot be its name."""
    if not isinstance(name, str):
        return ""
    name = name.removeprefix("/")
    return "" if not name or "/" in name or name in (".", "..") else f"/dev/shm/{name}"
