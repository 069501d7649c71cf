"""Codecs: states and values to bytes (4.4). Public as ``millwheel.codecs``.

>>> msgpack.decode(msgpack.encode({1: [None, True, 2.5, "text", b"bytes"]}))
{1: [None, True, 2.5, 'text', b'bytes']}
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import importlib
import json as _json
import pickle as _pickle
import threading
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgpack as _msgpack
import msgspec as _msgspec

from millwheel.errors import CodecError, shorten
from millwheel.model.extension_types import TUPLE, is_kind, pack_kind, unpack_kind, why_not

_DATACLASS = 1  # the MessagePack extension type that carries a dataclass: [name, {field: value}]

registry: dict[str, type] = {}
_Class = TypeVar("_Class", bound=type)


class Codec(abc.ABC):
    """Converts a state to bytes and back; any object with these two methods will do."""

    @abc.abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encodes a value."""

    @abc.abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decodes a value."""


def register(cls: _Class) -> _Class:
    """Allows a dataclass as a record's value or a state; also as a decorator.

    A dataclass that workers can import is found without it. One that is defined in a script or a
    notebook must be registered, unless it is the type of an ``initial_state()``.

    >>> @register
    ... @dataclasses.dataclass
    ... class Point:
    ...     x: int
    >>> msgpack.decode(msgpack.encode([Point(1)]))
    [Point(x=1)]
    """
    if not (isinstance(cls, type) and (dataclasses.is_dataclass(cls) or _is_named(cls))):
        raise CodecError(f"register() takes a dataclass, not {cls!r}: decorate it with @dataclass first")
    registry[_name(cls)] = cls
    return cls


def registered() -> dict[str, type]:
    """The registered dataclasses by name, to be sent to the workers."""
    return dict(registry)


def _is_named(cls: type) -> bool:
    """Whether it is an enumeration or a named tuple, which are encoded by name."""
    return issubclass(cls, enum.Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def register_tree(cls: type) -> None:
    """Registers a dataclass and those in its fields' types."""
    if not (dataclasses.is_dataclass(cls) or _is_named(cls)) or registry.get(_name(cls)) is cls:
        return
    register(cls)
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # hints may be visible to a type checker only; the fields are still encoded
        return
    pending: list[Any] = list(hints.values())
    while pending:
        hint = pending.pop()
        pending.extend(typing.get_args(hint))
        if isinstance(hint, type):
            register_tree(hint)


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _pack_other(value: Any) -> Any:
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        name = _known_name(cls)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        # A packer cannot be used inside its own call: this one is another.
        return _msgpack.ExtType(_DATACLASS, packer()([name, fields]))
    if isinstance(value, int):
        raise OverflowError(f"the integer {shorten(value, 80)} has more than 64 bits; MessagePack carries 64")
    raise TypeError(
        f"a {cls.__name__} ({shorten(value, 80)}) cannot be encoded in MessagePack: use None, bool, int, "
        "float, str, bytes, list, dict or a dataclass"
    )


def _pack_state(value: Any) -> Any:
    """Encodes types that MessagePack lacks, so that a state keeps its types."""
    cls = type(value)
    if cls is tuple:  # the most common one, mostly as a key of a dict
        return _msgpack.ExtType(TUPLE, _pack_inside(list(value)))
    if dataclasses.is_dataclass(cls):
        name = _known_name(cls)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        return _msgpack.ExtType(_DATACLASS, _pack_inside([name, fields]))
    if cls is int:
        raise OverflowError(f"the integer {shorten(value, 80)} has more than 64 bits; MessagePack carries 64")
    found = pack_kind(value, _pack_inside, _known_name)
    if found is None:
        raise TypeError(f"{why_not(value)}; it is {shorten(value, 80)}")
    return _msgpack.ExtType(*found)


def _pack_inside(value: Any) -> bytes:
    """Encodes a part of a state, with a packer for each depth (not reentrant)."""
    spare = _packers.spare
    pack = spare.pop() if spare else state_packer()
    try:
        return pack(value)
    finally:
        spare.append(pack)


def _known_name(cls: type) -> str:
    name = _name(cls)
    if registry.get(name) is not cls:
        registry[name] = cls  # a notebook may define it again
    return name


def _find(name: str) -> type:
    return registry.get(name) or _import(name)


def _unpack_ext(code: int, data: bytes | memoryview) -> Any:
    if code == TUPLE:
        return tuple(unpack(data))
    if is_kind(code):
        return unpack_kind(code, data, unpack, _find)
    if code != _DATACLASS:
        return _msgpack.ExtType(code, bytes(data))
    name, values = unpack(data)
    cls = _find(name)
    if not dataclasses.is_dataclass(cls):
        raise CodecError(f"{name} is not a dataclass")
    init = {field.name for field in dataclasses.fields(cls) if field.init}
    known = {field.name for field in dataclasses.fields(cls)}
    result: Any = cls(**{field: value for field, value in values.items() if field in init})
    for field in known - init:
        if field in values:
            object.__setattr__(result, field, values[field])
    return result


def _import(name: str) -> type:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CodecError(
            f"the dataclass {name} is unknown here ({error}): decorate it with @millwheel.register"
        ) from error
    if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or _is_named(found))):
        raise CodecError(f"{name} is not a dataclass")
    registry[name] = found
    return found


def _hashable_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in pairs}


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def packer() -> Callable[[Any], bytes]:
    """A packing function of one's own; cheaper per call than a shared one."""
    pack: Callable[[Any], bytes] = _msgpack.Packer(default=_pack_other, unicode_errors="surrogatepass").pack
    return pack


def state_packer() -> Callable[[Any], bytes]:
    """A packing function for states: a type is kept exactly, or refused."""
    pack: Callable[[Any], bytes] = _msgpack.Packer(
        default=_pack_state, strict_types=True, unicode_errors="surrogatepass"
    ).pack
    return pack


class _Packers(threading.local):
    """A packer for each thread: one that calls back into Python is not reentrant."""

    def __init__(self) -> None:
        self.pack = packer()
        self.pack_state = state_packer()
        self.spare: list[Callable[[Any], bytes]] = []


_packers = _Packers()


def pack(value: Any) -> bytes:
    """The MessagePack bytes of a value."""
    return _packers.pack(value)


_pack_plain = _msgspec.msgpack.Encoder().encode


def pack_plain(value: Any) -> bytes:
    """Encodes the engine's own values, in a third of the time of `pack`.

    That is numbers, texts, bytes, lists and dicts. It would lose the class of a user's dataclass."""
    try:
        return _pack_plain(value)
    except Exception:  # mostly a lone surrogate in a text
        return pack(value)


def pack_each(values: Iterable[Any]) -> list[bytes]:
    """Encodes each of some texts and numbers, as `pack` does."""
    values = list(values)
    if set(map(type, values)) <= {str, int, float, bool, type(None)}:
        try:
            return list(map(_pack_plain, values))
        except Exception:  # a lone surrogate, or more than 64 bits
            pass
    return list(map(pack, values))


_unpack = _msgspec.msgpack.Decoder(ext_hook=_unpack_ext).decode
_unpack_slowly: Callable[..., Any] = functools.partial(
    _msgpack.unpackb, ext_hook=_unpack_ext, strict_map_key=False, unicode_errors="surrogatepass"
)


def unpack(data: bytes | memoryview) -> Any:
    """The value of MessagePack bytes."""
    try:
        return _unpack(data)
    except Exception:  # a lone surrogate in a text; or it is damaged, and the next call raises
        pass
    try:
        return _unpack_slowly(data)
    except TypeError:
        # A dict with tuples as keys is decoded with lists as keys, which do not hash.
        return _unpack_slowly(data, object_pairs_hook=_hashable_keys)


class _MsgpackCodec(Codec):
    """MessagePack, with dataclasses."""

    def encode(self, value: Any) -> bytes:
        return _packers.pack_state(value)

    def decode(self, data: bytes) -> Any:
        return unpack(data)

    def __reduce__(self) -> str:
        return "msgpack"

    def __repr__(self) -> str:
        return "millwheel.codecs.msgpack"


class _JsonCodec(Codec):
    """JSON text: readable by anything, with ``str`` for the keys of every dict."""

    def encode(self, value: Any) -> bytes:
        return _json.dumps(value, separators=(",", ":"), allow_nan=True).encode("utf-8", "surrogatepass")

    def decode(self, data: bytes) -> Any:
        return _json.loads(data.decode("utf-8", "surrogatepass"))

    def __reduce__(self) -> str:
        return "json"

    def __repr__(self) -> str:
        return "millwheel.codecs.json"


class _RawCodec(Codec):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the raw codec takes bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def __reduce__(self) -> str:
        return "raw"

    def __repr__(self) -> str:
        return "millwheel.codecs.raw"


class _PickleCodec(Codec):
    """Python's pickle: any object, readable by this code only."""

    def encode(self, value: Any) -> bytes:
        return _pickle.dumps(value, protocol=_pickle.HIGHEST_PROTOCOL)

    def decode(self, data: bytes) -> Any:
        return _pickle.loads(data)

    def __reduce__(self) -> str:
        return "pickle"

    def __repr__(self) -> str:
        return "millwheel.codecs.pickle"


class _ProtobufCodec(Codec):
    """A Protocol Buffers message, in one order: equal states are equal bytes."""

    def __init__(self, message: type) -> None:
        self._message = message

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"expected a {self._message.__name__}, not {type(value).__name__}")
        return typing.cast(bytes, value.SerializeToString(deterministic=True))  # type: ignore[attr-defined]

    def decode(self, data: bytes) -> Any:
        return self._message.FromString(data)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        return protobuf, (self._message,)

    def __repr__(self) -> str:
        return f"millwheel.codecs.protobuf({self._message.__name__})"


msgpack: Codec = _MsgpackCodec()
json: Codec = _JsonCodec()
raw: Codec = _RawCodec()
pickle: Codec = _PickleCodec()


def protobuf(message: type) -> Codec:
    """A codec for one Protocol Buffers message class."""
    if not hasattr(message, "FromString"):
        raise CodecError(f"protobuf() takes a generated message class, not {message!r}")
    return _ProtobufCodec(message)
