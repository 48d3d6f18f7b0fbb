"""What is said to a Kubernetes API server about a Lease (coordination.k8s.io/v1), and back.

The record is an annotation; ``spec`` says the same to people and tools, as far as it has fields for
it. The object's ``resourceVersion`` is the record's version. It is never deleted here.
"""

from __future__ import annotations

import copy
import json
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moonpool.config_ha import ElectionStore
from moonpool.errors import ConfigError
from moonpool.ha.backend import BackendError, pack, unpack
from moonpool.ha.election import Record, Seen

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ANNOTATION = "moonpool.io/leader"
ANSWER_BYTES_MAX = 1 << 20
TRANSITIONS_MAX = (1 << 31) - 1


def base_url() -> str:
    """Return the API server of the cluster that this process runs in. Raises ConfigError."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise ConfigError("ha: kubernetes:// works inside of a cluster only")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def account() -> Path:
    """Return the folder of this process' token and of the authority that it trusts."""
    return Path(os.environ.get("KUBERNETES_SERVICE_ACCOUNT_DIR") or _ACCOUNT)


def leases_path(store: ElectionStore) -> str:
    """Return the path of the namespace's leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{store.namespace}/leases"


def trusted(account: Path) -> ssl.SSLContext:
    """Return who is believed to be the API server: who the account's authority vouches for."""
    authority = account / "ca.crt"
    return ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)


def headers(account: Path) -> dict[str, str]:
    """Return the headers of a request. The token is read anew: Kubernetes changes it."""
    token = account / "token"
    said = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.is_file() else {}
    return {"Accept": "application/json", "Content-Type": "application/json", **said}


def lease_of(store: ElectionStore, record: Record, version: str, known: Any, now: datetime) -> Any:
    """Return the Lease that says this record.

    known: the Lease as last seen, whose other labels and annotations are kept; or None.
    """
    lease = copy.deepcopy(known) if known is not None else {}
    lease |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    metadata = lease.setdefault("metadata", {})
    metadata |= {"name": store.name, "namespace": store.namespace}
    if version:
        metadata["resourceVersion"] = version
    notes = metadata.get("annotations")
    metadata["annotations"] = (notes if isinstance(notes, dict) else {}) | {
        ANNOTATION: pack(record)
    }
    spec = lease.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if record.beat == 0:
        spec["acquireTime"] = stamp
        before = spec.get("leaseTransitions")
        spec["leaseTransitions"] = (before if type(before) is int else 0) % TRANSITIONS_MAX + 1
    spec |= {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, round(record.lease_s)),
        "renewTime": stamp,
    }
    lease["spec"] = spec
    return lease


def parse(raw: bytes) -> Any:
    """Return the Lease in an answer; raise BackendError."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise BackendError("the API server answered with no Lease")
    return found


def seen_in(lease: Any) -> Seen:
    """Return the record in a Lease; one without is free. Raises BackendError."""
    version = lease["metadata"].get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise BackendError("the API server answered with a Lease without resourceVersion")
    notes = lease["metadata"].get("annotations")
    text = notes.get(ANNOTATION) if isinstance(notes, dict) else None
    return Seen(version, unpack(text) if isinstance(text, str) else None)
