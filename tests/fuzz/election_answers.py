"""What etcd and a Kubernetes API server answer about an election."""

from __future__ import annotations

import base64
import json
import random
from datetime import UTC, datetime
from typing import Any

from moonpool.config_ha import parse_store
from moonpool.ha import etcd_wire, lease_wire
from moonpool.ha.backend import BackendError, pack
from moonpool.ha.election import Record, Seen, Written
from tests.fuzz.http_bodies import body_of
from tests.fuzz.target import REFUSED, TAKEN, Target, require

RECORD = Record("h:1/ab", "h:1", 1_700_000_000, 3.0, 4)
KEPT: dict[str, Any] = json.loads(pack(RECORD))
LEASE = parse_store("kubernetes://space/pool")
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def record_of(chance: random.Random) -> str:
    """Return the text of something like a record."""
    return body_of(chance, KEPT).decode("utf-8", "replace")


class EtcdAnswers(Target):
    """Answers of etcd's gateway to a range and to a transaction."""

    name = "etcd's answers"
    share = 2.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        value = base64.b64encode(record_of(chance).encode()).decode()
        range_ = {"kvs": [{"mod_revision": "7", "value": value}]}
        transaction = {
            "header": {"revision": "8"},
            "succeeded": chance.random() < 0.5,
            "responses": [{"response_range": range_}],
        }
        try:
            found: Seen | Written = etcd_wire.parse_range(etcd_wire.parse(body_of(chance, range_)))
            self._is_sound(found)
            found = etcd_wire.parse_txn(etcd_wire.parse(body_of(chance, transaction)))
        except BackendError as error:
            require("\n" not in str(error), "why not is one line")
            return REFUSED
        self._is_sound(found)
        return TAKEN

    def _is_sound(self, found: Seen | Written) -> None:
        require(isinstance(found.version, str), "a version is text")
        if isinstance(found, Seen) and found.record is not None:
            require(found.record.lease_s > 0, "a lease is some seconds")


class LeaseAnswers(Target):
    """Leases of an API server, and the one that is written after each."""

    name = "a Lease of Kubernetes"
    share = 2.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        notes = {lease_wire.ANNOTATION: record_of(chance), "other": "x"}
        good = {
            "metadata": {"name": "pool", "resourceVersion": "5", "annotations": notes},
            "spec": {"leaseTransitions": 3, "holderIdentity": "x"},
        }
        raw = body_of(chance, good)
        try:
            known = lease_wire.parse(raw)
            record = Record(RECORD.holder, RECORD.address, RECORD.epoch, 3.0, chance.choice((0, 4)))
            found = lease_wire.lease_of(LEASE, record, "5", known, NOW)
            written = lease_wire.seen_in(lease_wire.parse(json.dumps(found).encode()))
            require(written.record == record, "what is written is read again")
            lease_wire.seen_in(known)
        except BackendError:
            return REFUSED
        return TAKEN
