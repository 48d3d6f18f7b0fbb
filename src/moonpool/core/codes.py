"""The result codes that the master gives per item, as plain numbers."""

from __future__ import annotations

from moonpool import errors

OK = 0
NO_SPACE = errors.NoSpaceError.code
INVALID = errors.InvalidArgumentError.code
ILLEGAL_CLIENT = errors.IllegalClientError.code
INVALID_WRITE = errors.InvalidWriteError.code
NOT_READY = errors.NotReadyError.code
NOT_FOUND = errors.NotFoundError.code
EXISTS = errors.AlreadyExistsError.code
NO_REPLICA = errors.ReplicaNotFoundError.code
LEASED = errors.LeasedError.code
TENANT_QUOTA = errors.TenantQuotaError.code
NO_TENANT = errors.TenantNotRegisteredError.code
PIN_QUOTA = errors.PinQuotaError.code
