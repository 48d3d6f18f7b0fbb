"""A session that ends while somebody asks."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from moonpool.core.messages import GetSegments, Segments, Welcome
from moonpool.errors import TransferError
from moonpool.node.link import Link, hello
from moonpool.protocol.codec import decode_request, encode
from moonpool.protocol.framing import FrameDecoder


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a hello, and nothing else."""
    frames = FrameDecoder()
    while chunk := await reader.read(4096):
        for payload in frames.feed(chunk):
            number, message = decode_request(payload)
            if not isinstance(message, GetSegments):
                writer.write(encode(number, Welcome(1, 1)))
    writer.close()


async def ask_a_closed_one() -> None:
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        link, _ = await Link.open("127.0.0.1", port, hello("node", ""), lambda push: None)
        link.abort()
        # The transport closes in this turn of the loop; the receiver hears of it in a later one.
        await asyncio.sleep(0)
        assert not link.ended.done()
        with pytest.raises(TransferError):
            await link.request(GetSegments(), Segments, 5.0)
        await link.close()


def test_a_request_on_a_transport_that_has_closed_is_a_typed_error() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_a_closed_one())
