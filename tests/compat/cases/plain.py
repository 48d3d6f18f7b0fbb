"""Single calls, for tests that look at a pool from outside."""

from __future__ import annotations

from tests.compat.cases.bed import Api


def case_is_exist(api: Api, key: str) -> int:
    return int(api.s.is_exist(key))


def case_names(api: Api) -> dict[str, list[str]]:
    """Return the names of the module, and of its classes' members."""
    found = {}
    for name in sorted(vars(api.module)):
        if name.startswith("__") or name == "_get_pyclient_from_wrapper":
            continue
        value = getattr(api.module, name)
        listed = getattr(value, "__members__", {})
        names = {*dir(value), *dir(next(iter(listed.values()), value))}
        members = sorted(each for each in names if not each.startswith("_"))
        found[name] = members if isinstance(value, type) else []
    return found


def case_state(api: Api) -> dict[str, object]:
    """Put an object, and return how calls go."""
    return {
        "put": api.s.put("key", b"value"),
        "get": api.s.get("key") == b"value",
        "exists": api.s.is_exist("key"),
        "health": api.s.health_check(),
    }
