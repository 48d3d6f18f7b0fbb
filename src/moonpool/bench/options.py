"""What to measure, and how often: the presets."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.bench.batch import Batch
from moonpool.transport import streams

SECTIONS = ("shm", "tcp", "small", "lookup", "compat", "checksum", "delay", "memory")
MATRIX_SECTIONS = ("shm-matrix", "tcp-matrix")
MANY = Batch(512, 61, 36 << 10)
LARGE = Batch(512, 1, 2 << 20)
HALF = Batch(256, 1, 2 << 20)


@dataclass(frozen=True)
class Options:
    """One run of ``moonpool bench store``."""

    sections: tuple[str, ...] = SECTIONS
    bars: bool = False
    """Whether the figures are what the bars are for."""
    batches: tuple[Batch, ...] = (MANY, LARGE)
    clients: tuple[int, ...] = (1,)
    runs: int = 5
    streams: int = streams.STREAMS
    mooncake: str = ""
    """Interpreter that has Mooncake's wheel; empty: it is not compared with."""
    blocks: int = 5000
    lookups: int = 100
    lookup_s: float = 1.5
    many: int = 4
    calls: int = 100
    pauses: int = 40
    pause_s: float = 0.01
    single_batches: tuple[Batch, ...] = tuple(Batch(64 // n, 1, n << 20) for n in (1, 4, 16))
    piece_batch: Batch = MANY
    objects: int = 200_000
    object_bytes: int = 4096
    pool_bytes: int = 16 << 30
    idle_s: float = 20.0
    delays_ms: tuple[float, ...] = (1.0, 10.0, 50.0)
    delay_batch: Batch = HALF
    delay_runs: int = 2
    matrix_bytes: int = 256 << 20
    sizes: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
    counts: tuple[int, ...] = (1, 16, 128, 512, 5000)
    pieces: tuple[int, ...] = (1, 8, 64)

    def bar(self, at_least: float) -> float | None:
        """Return what a ratio must be, where these figures are what it is for."""
        return at_least if self.bars else None


PRESETS: dict[str, Options] = {
    "bars": Options(bars=True),
    "matrix": Options(sections=MATRIX_SECTIONS, clients=(1, 2, 4), runs=3),
    "quick": Options(
        sections=(*SECTIONS, *MATRIX_SECTIONS),
        batches=(Batch(16, 4, 4 << 10),),
        clients=(2,),
        runs=2,
        blocks=64,
        lookups=10,
        lookup_s=0.1,
        many=2,
        calls=10,
        pauses=3,
        pause_s=0.002,
        single_batches=(Batch(4, 1, 1 << 20),),
        piece_batch=Batch(16, 4, 4 << 10),
        objects=2_000,
        object_bytes=64,
        pool_bytes=64 << 20,
        idle_s=0.2,
        delays_ms=(1.0,),
        delay_batch=Batch(4, 1, 1 << 20),
        matrix_bytes=1 << 20,
        sizes=(4 << 10, 64 << 10),
        counts=(16,),
        pieces=(1, 4),
    ),
}
"""bars: what is promised, beside what it is held against. matrix: sizes, counts, pieces and client
processes. quick: everything, small, to see that it works; its figures say nothing."""
