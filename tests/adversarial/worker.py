"""Client processes of the tests: ``python -m tests.adversarial.worker MODE JSON``."""

import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import moonpool
import moonpool.cli
from moonpool import Store
from tests.adversarial.values import NONCES, fault_in, value_of

QUIET = ("NotFoundError", "NoSpaceError", "LeasedError", "NotReadyError", "TransferError")


class Storm:
    """Threads that do everything to the same keys and check whatever they read."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.keys = [f"{options['prefix']}-{i}" for i in range(options["keys"])]
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.lock = threading.Lock()
        self.store = connect(options)

    def run(self) -> None:
        """Run until the time is up and print what happened."""
        print("up", flush=True)  # noqa: T201
        until = time.monotonic() + self.options["seconds"]
        threads = [
            threading.Thread(target=self.thread, args=(until, self.options["seed"] * 100 + i))
            for i in range(self.options["threads"])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.store.close()
        print(json.dumps({"counts": self.counts, "faults": self.faults[:20]}), flush=True)  # noqa: T201

    def thread(self, until: float, seed: int) -> None:
        """Do random operations until the time is up."""
        chance = random.Random(seed)
        buffer = bytearray(2 << 20)
        while time.monotonic() < until:
            try:
                self.step(chance, buffer)
            except moonpool.MoonpoolError as error:
                self.count(type(error).__name__)
                if type(error).__name__ not in QUIET:
                    self.fault(repr(error))
            except BaseException as error:  # noqa: BLE001 - anything else is a finding
                self.fault(f"untyped: {error!r}")
                return

    def step(self, chance: random.Random, buffer: bytearray) -> None:
        """Do one operation."""
        key = chance.choice(self.keys)
        some = chance.sample(self.keys, 6)
        verb = chance.choice(
            ("put", "put", "put_batch", "get", "get", "into", "get_batch", "remove", "look")
        )
        if verb == "put":
            parent = chance.choice([None, None, *(k for k in some[:1] if k != key)])
            put = self.store.put(key, value_of(key, chance.randrange(NONCES)), parent=parent)
            self.count("put" if put else "taken")
        elif verb == "put_batch":
            values = [value_of(k, chance.randrange(NONCES)) for k in some]
            for code in self.store.put_batch(some, values):
                self.count(f"code {code}")
        elif verb == "get":
            self.seen(key, self.store.get(key))
        elif verb == "into":
            size = self.store.get_into(key, buffer)
            self.seen(key, bytes(buffer[:size]))
        elif verb == "get_batch":
            for name, value in zip(some, self.store.get_batch(some), strict=True):
                if value is None:
                    self.count("miss")
                else:
                    self.seen(name, value)
        elif verb == "remove":
            self.store.remove(key, force=chance.random() < 0.3)
            self.count("removed")
        else:
            self.store.match_prefix(some)
            self.store.exists_batch(some)
            self.count("look")

    def seen(self, key: str, data: bytes) -> None:
        """Check bytes that were read."""
        self.count("hit")
        if fault := fault_in(key, data):
            self.fault(fault)

    def count(self, what: str) -> None:
        """Count one more."""
        with self.lock:
            self.counts[what] += 1

    def fault(self, text: str) -> None:
        """Note what must not happen."""
        with self.lock:
            self.faults.append(text)


def connect(options: dict[str, Any]) -> Store:
    """Return the store that the options ask for."""
    return Store.connect(
        options["address"],
        transports=tuple(options.get("transports", ("shm", "tcp"))),
        timeout_s=options.get("timeout_s", 5.0),
        put_timeout_s=options.get("put_timeout_s", 5.0),
    )


def put_loop(options: dict[str, Any]) -> None:
    """Put large values one after the other; note each key in a file once its put returned."""
    store = connect(options)
    log = os.open(options["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    values = {
        f"{options['prefix']}-{i}": value_of(
            f"{options['prefix']}-{i}", i % NONCES, options["size"]
        )
        for i in range(options["count"])
    }
    print("up", flush=True)  # noqa: T201
    for _ in range(options.get("rounds", 1)):
        for key, value in values.items():
            try:
                if store.put(key, value):
                    os.write(log, f"{key}\n".encode())
            except moonpool.MoonpoolError as error:
                os.write(log, f"! {type(error).__name__}: {error}\n".encode())
    print("done", flush=True)  # noqa: T201
    time.sleep(600)


def hold(options: dict[str, Any]) -> None:
    """Take a long lease and sit on it."""
    store = connect(options)
    lease = store.hold(options["keys"], options["ttl_s"])
    print(lease.count, flush=True)  # noqa: T201
    time.sleep(600)


def local(options: dict[str, Any]) -> None:
    """Use an embedded pool; end in the way asked for."""
    store = Store.local("16MB")
    for i in range(8):
        store.put(f"k{i}", value_of(f"k{i}", 0, 1 << 20))
    maps = {line.split(maxsplit=5)[5] for line in mapped() if "/dev/shm" in line or "memfd" in line}
    print(json.dumps(sorted(maps)), flush=True)  # noqa: T201
    if options["end"] == "sleep":
        time.sleep(600)
    if options["end"] == "close":
        store.close()


def mapped() -> list[str]:
    """Return the lines of this process's memory map that name a file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if len(line.split(maxsplit=5)) == 6]


def fork(options: dict[str, Any]) -> None:
    """Fork with a store that is in use; parent and child read on and check."""
    store = connect(options)
    keys: list[str] = options["keys"]
    for key in keys:
        store.get(key)
    child = os.fork()
    faults = []
    for i in range(100):
        key = keys[(i * (7 if child else 11)) % len(keys)]
        try:
            if fault := fault_in(key, store.get(key)):
                faults.append(fault)
        except moonpool.MoonpoolError as error:
            if child:
                faults.append(f"parent: {error!r}")
    if not child:
        os._exit(1 if faults else 0)
    _, status = os.waitpid(child, 0)
    if status:
        faults.append(f"child ended with {status}")
    store.close()
    print(json.dumps(faults), flush=True)  # noqa: T201


def cli(options: dict[str, Any]) -> None:
    """Run command lines, each in a fork of this process, which has imported all they need."""
    for name in ("moonpool.cli.app", "moonpool.master.daemon", "moonpool.node.daemon"):
        importlib.import_module(name)
    results = []
    for words, env in options["cases"]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.environ.update(env)
                sys.argv = ["moonpool", *words]
                run_command()
            code = waited(child, 15.0)
            err.seek(0)
            results.append((code, err.read().decode(errors="replace")))
    print(json.dumps(results), flush=True)  # noqa: T201


def run_command() -> NoReturn:
    """Be the moonpool command that sys.argv says."""
    code: Any = 70
    try:
        moonpool.cli.main()
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:  # noqa: BLE001 - what Python does at the end of a program
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def waited(child: int, within_s: float) -> int:
    """Return the exit code of a child, -1 if it went on running and was stopped."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return -1


def main() -> None:
    """Run the mode that the command line names."""
    mode, options = sys.argv[1], json.loads(sys.argv[2])
    if mode == "storm":
        Storm(options).run()
        return
    {"put_loop": put_loop, "hold": hold, "local": local, "fork": fork, "cli": cli}[mode](options)


if __name__ == "__main__":
    main()
