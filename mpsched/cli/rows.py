"""A value as JSON, and an outcome as a line.

`encode` runs in the worker, so that its cost is shared and a bad value fails its own row only.
The table of what becomes what is in README.md, "Rows".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence, Set as AbstractSet
from typing import Any, Final

__all__ = ["NotJson", "dumps", "encode", "error_fragment", "row"]

_LIMIT: Final = 4_000  # characters of an error's message in a row

# JSON allows these inside a text, but `str.splitlines` and its like take them for line ends.
_SPLITTERS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class NotJson(Exception):
    """A value has no JSON form; the message names its place and type."""


def encode(value: object) -> bytes:
    """Return `value` as one line of JSON in UTF-8, without a newline.

    Raises:
        NotJson: A part of it has no JSON form. Whatever the user's own classes raise while they
            are looked at ends as this too.
    """
    try:
        # In C, with `_simpler` for what json does not know: right for nearly every value. json does
        # not say where a value was that it refuses, so a failure is looked at again, slowly.
        return _json(value, _ENCODER)
    except Exception:
        pass  # whatever it was, `_plain` meets it again and names its place
    try:
        return _json(_plain(value, "result", set()), _PLAIN)
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("result: nested too deeply for JSON") from None
    except Exception as error:
        raise NotJson(f"result: {type(error).__name__}: {error}") from error


def dumps(value: object) -> bytes:
    """Return a plain value (text, numbers, lists) as JSON in UTF-8."""
    return _json(value, _PLAIN)


def row(
    i: int,
    text: object,
    ok: bool,
    fragment: bytes,
    seconds: float | None,
    attempts: int,
    printed: str | None = None,
) -> bytes:
    """Return one line of output.

    Args:
        i: Position in the input.
        text: The input as given; a list of texts for a batch.
        ok: Which of `result` and `error` the fragment is.
        fragment: JSON, from `encode` or `error_fragment`.
        seconds: Run time of the last attempt; None if it is not known.
        attempts: How often the call was started.
        printed: With `--capture`, what the call wrote.
    """
    parts = [
        b'{"i": %d, "input": ' % i,
        dumps(text),
        b', "ok": true, "result": ' if ok else b', "ok": false, "error": ',
        fragment,
        b', "seconds": ',
        b"null" if seconds is None else repr(round(seconds, 6)).encode("ascii"),
        b', "attempts": %d' % attempts,
    ]
    if printed is not None:
        parts += [b', "printed": ', dumps(printed)]
    parts.append(b"}\n")
    return b"".join(parts)


def error_fragment(kind: str, message: str, traceback: str, why: str) -> bytes:
    """Return the `error` of a row."""
    if len(message) > _LIMIT:
        message = f"{message[:_LIMIT]}... ({len(message):,} characters)"
    return dumps({"type": kind, "message": message, "traceback": traceback, "why": why})


def _json(value: object, encoder: json.JSONEncoder) -> bytes:
    try:
        text = encoder.encode(value)
        if not text.isascii():
            text = text.translate(_SPLITTERS)
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates (bytes that were no UTF-8) have an escape, but no UTF-8.
        return json.dumps(value, allow_nan=False, default=encoder.default).encode("ascii")


def _simpler(value: Any) -> object:
    """Return a simpler form of what json does not know; it may hold such values again."""
    known, leaf = _leaf(value)
    if known:
        return leaf
    if isinstance(value, Mapping):
        return {_key(key, ""): item for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return _sorted(value)
    if (names := _field_names(value)) is not None:
        return {name: getattr(value, name) for name in names}
    raise NotJson(_type_name(value))


def _plain(value: Any, place: str, inside: set[int]) -> object:
    """Return `value` made of what json knows, NaN as None.

    Args:
        value: Anything.
        place: Where it is, for the message: `result.pages[3]`.
        inside: Ids of the containers around it, to find a value that contains itself.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        hint = "write it to a file with --out-dir, or decode it"
        raise NotJson(f"{place}: {type(value).__name__} has no JSON form; {hint}")
    known, leaf = _leaf(value)
    if known:
        return leaf if leaf is None or isinstance(leaf, str) else _plain(leaf, place, inside)
    if id(value) in inside:
        raise NotJson(f"{place}: the value contains itself")
    inside.add(id(value))
    try:
        return _container(value, place, inside)
    finally:
        inside.discard(id(value))


def _container(value: Any, place: str, inside: set[int]) -> object:
    if isinstance(value, Mapping):
        return {
            _key(key, place): _plain(item, _below(place, key), inside)
            for key, item in value.items()
        }
    if isinstance(value, AbstractSet):
        value = _sorted(value)
    elif (names := _field_names(value)) is not None:
        return {name: _plain(getattr(value, name), f"{place}.{name}", inside) for name in names}
    elif not isinstance(value, Sequence) and type(value).__name__ != "deque":
        hint = ""
        if hasattr(value, "__next__"):
            hint = "; return list(...) of it"
        raise NotJson(f"{place}: {_type_name(value)} has no JSON form{hint}")
    return [_plain(item, f"{place}[{n}]", inside) for n, item in enumerate(value)]


def _leaf(value: Any) -> tuple[bool, Any]:
    """Return whether `value` is something with one simpler form, and that form.

    By the modules' names: a type whose module is not imported cannot be the value's type, and
    importing decimal or numpy here would cost every worker its time.
    """
    for kind in type(value).__mro__:
        module, name = kind.__module__, kind.__qualname__
        if module == "datetime":
            if name == "timedelta":
                return True, value.total_seconds()
            if name in {"date", "datetime", "time"}:
                return True, value.isoformat()
        elif module == "enum" and name == "Enum":
            return True, value.value
        elif module in {"decimal", "_decimal"}:
            return True, str(value) if value.is_finite() else None
        elif (module, name) in {("uuid", "UUID"), ("fractions", "Fraction")}:
            return True, str(value)
        elif module == "numpy" and name == "ndarray":
            return True, _array(value)
        elif module == "numpy" and name in {"datetime64", "timedelta64"}:
            return True, None if str(value) == "NaT" else str(value)
        elif module == "numpy" and name == "generic":
            if value.dtype.char == "g":  # a long double is its own simplest form
                return True, float(value)
            simpler = value.item()
            return (False, None) if type(simpler) is type(value) else (True, simpler)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return True, os.fsdecode(path)
    return False, None


def _array(value: Any) -> object:
    """Return an array as nested lists; dates element by element, whose items json does not know."""
    if value.dtype.kind in "mM":
        return value.astype(str).tolist()
    return value.tolist()


def _field_names(value: Any) -> list[str] | None:
    """Return the fields of a dataclass or attrs instance, None if it is neither."""
    if isinstance(value, type):
        return None
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        # ClassVar and InitVar are in the table too; only fields are on the instance for certain.
        import dataclasses

        return [field.name for field in dataclasses.fields(value)]
    attributes = getattr(type(value), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _key(key: Any, place: str) -> str:
    if isinstance(key, str):
        return key
    known, leaf = _leaf(key)
    if known:
        return _key(leaf, place)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    hint = "; use text as keys" if isinstance(key, bytes | tuple) else ""
    raise NotJson(f"{place}: a key of type {_type_name(key)}, {key!r:.60}, has no JSON form{hint}")


def _below(place: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{place}.{key}"
    return f"{place}[{key!r:.60}]"


def _sorted(values: AbstractSet[Any]) -> list[Any]:
    """Return a set's members in an order that does not change from run to run."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__name__, repr(value)))


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# Made once: `json.dumps` with options makes an encoder for each call.
_PLAIN: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_simpler)
