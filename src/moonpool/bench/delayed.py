"""Put and get between two network namespaces with a delay between them, beside iperf3."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from moonpool.bench.batch import Batch
from moonpool.bench.bulk import VERBS, pool_for
from moonpool.bench.delay import Link, delayed, why_not
from moonpool.bench.options import Options
from moonpool.bench.report import Limit, Row, missing, rate_row
from moonpool.bench.sections import Step, Steps
from moonpool.bench.series import alternate
from moonpool.bench.systems import Placement, System, moonpool_system
from moonpool.bench.tally import Tally
from moonpool.errors import MoonpoolError
from moonpool.transport import streams
from moonpool.transport.pool import CONNECTIONS_MAX

WITHIN = 0.9
IPERF_PORT = 5201
IPERF_S = 60.0
STOP_S = 5.0
LISTEN_S = 0.3


def delay_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``delay``; where they cannot be measured, why."""
    why = why_not() or ("" if shutil.which("iperf3") else "there is no iperf3")
    for delay_ms in options.delays_ms:
        what = f"TCP, {delay_ms:g} ms round trip, {options.delay_batch}"
        if why:
            yield missing(section, what, why)
            continue
        try:
            yield from _one(section, what, delay_ms / 1000, options, tally)
        except (MoonpoolError, OSError, subprocess.SubprocessError) as error:
            yield missing(section, what, str(error))


def _one(
    section: str, what: str, round_trip_s: float, options: Options, tally: Tally
) -> Iterator[Row]:
    batch = options.delay_batch
    n = streams.width(options.streams, round_trip_s, CONNECTIONS_MAX)
    with delayed(round_trip_s / 2) as link, ExitStack() as stack:
        placement = Placement(
            host=link.far_address, servers=_in(link, link.far), clients=_in(link, link.near)
        )
        pool = pool_for(batch, 1)
        ours = stack.enter_context(moonpool_system(pool, transports=("tcp",), placement=placement))
        ours.hold(batch)
        stack.callback(tally.add, ours)
        stack.enter_context(_iperf_server(link))
        steps: Steps = []
        for verb in VERBS:
            steps.append((f"iperf3 {verb}", _iperf(link, verb, batch, n)))
            steps.append((verb, _step(ours, verb)))
        taken = alternate(steps, min(options.runs, options.delay_runs))
    for verb in VERBS:
        limit = Limit(f"iperf3, {n} streams", taken[f"iperf3 {verb}"], options.bar(WITHIN))
        yield rate_row(section, f"{what}: {verb}", taken[verb], batch.nbytes, limit)


def _step(system: System, verb: str) -> Step:
    return lambda: system.step(verb)


def _in(link: Link, namespace: str) -> tuple[str, ...]:
    return tuple(link.inside(namespace, ()))


@contextmanager
def _iperf_server(link: Link) -> Iterator[None]:
    command = link.inside(link.far, ["iperf3", "-s", "-p", str(IPERF_PORT)])
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(LISTEN_S)
        yield
    finally:
        server.terminate()
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _iperf(link: Link, verb: str, batch: Batch, count: int) -> Step:
    """Return a step: the seconds that iperf3 takes for as many bytes, on new connections. A get
    flows from the far end, as ``-R`` does."""
    flags: Sequence[str] = ("-R",) if verb == "get" else ()
    command = link.inside(
        link.near,
        [
            *("iperf3", "-c", link.far_address, "-p", str(IPERF_PORT), "-P", str(count)),
            *("-n", str(batch.nbytes), "-J", *flags),
        ],
    )

    def step() -> float:
        ended = subprocess.run(command, capture_output=True, timeout=IPERF_S, check=False)
        said = json.loads(ended.stdout or b"{}")
        try:
            bits_s = float(said["end"]["sum_received"]["bits_per_second"])
        except KeyError:
            raise MoonpoolError(f"iperf3: {said.get('error', 'it said nothing')}") from None
        if bits_s <= 0:  # the far end counts what has arrived when the near one says that it ends
            raise MoonpoolError("iperf3: its receiver counted no bytes")
        return batch.nbytes * 8 / bits_s

    return step
