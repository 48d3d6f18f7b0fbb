"""Plain objects with checked fields, as the Mooncake API's binding makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from moonpool.compat.casting import Caster, CastError, items_of, refusal


class Record:
    """Fields with casters and defaults; no other attribute can be set.

    Lists are handed out as copies, as the binding does.
    """

    __slots__ = ("_fields",)
    CASTS: ClassVar[dict[str, Caster]] = {}

    def __init__(self) -> None:
        self._fields = self.defaults()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        for name, cast in cls.CASTS.items():
            setattr(cls, name, _field(name, cast))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _field(name: str, cast: Caster) -> property:
    def get(record: Record) -> Any:
        value = record._fields[name]
        return list(value) if type(value) is list else value

    def put(record: Record, value: Any) -> None:
        try:
            record._fields[name] = cast(value)
        except CastError:
            raise TypeError(refusal(name, ())) from None

    return property(get, put)


def instance_of(kind: type) -> Caster:
    """Return a caster for the objects of one class."""

    def cast(value: Any) -> Any:
        if not isinstance(value, kind):
            raise CastError
        return value

    return cast


def optional(one: Caster) -> Caster:
    """Return a caster that takes None too."""

    def cast(value: Any) -> Any:
        return None if value is None else one(value)

    return cast


def list_of_records(kind: type) -> Caster:
    """Return a caster for lists of one class's objects."""
    one = instance_of(kind)

    def cast(value: Any) -> list[Any]:
        return [one(each) for each in items_of(value)]

    return cast
