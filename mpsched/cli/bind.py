"""FUNC's signature: what the first parameter gets, and `--arg` checked before anything runs.

See README.md, "Calling".
"""

from __future__ import annotations

import inspect
import json
import pathlib
import types
import typing
from typing import TYPE_CHECKING, Any, Final

from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Bound", "bind"]

# Annotations by name, for those that cannot be evaluated (a name imported for type checkers only).
_BY_NAME: Final = {
    "str": "text",
    "Path": "path",
    "PathLike": "path",
    "bytes": "bytes",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "dict": "dict",
    "Mapping": "dict",
}


class Bound:
    """A function with the values of `--arg`, known to accept the calls that will be made."""

    def __init__(self, func: Callable[..., Any], text: str, form: str) -> None:
        self._text = text
        self._form = form
        self._func = func
        self._signature = _signature(func)
        self.fixed: dict[str, object] = {}
        self.first = "text"
        """What the first parameter is annotated with: text, path, int, float, dict or bytes."""
        self.paths: frozenset[str] = frozenset()
        """The parameters annotated `Path`."""

    def describe(self) -> str:
        """Return the function with its signature, as in `text(path: str, lang='eng')`."""
        if self._signature is None:
            return f"{self._text}(...)"
        shown = self._signature.replace(return_annotation=inspect.Signature.empty)
        return f"{self._text.rpartition(':')[2]}{shown}"

    def take(self, args: Sequence[tuple[str, str]]) -> None:
        """Convert the values of `--arg`, and check that the calls to come can be bound.

        Raises:
            Usage: A name that FUNC has not, a value of the wrong type, a parameter without value.
        """
        parameters = {} if self._signature is None else self._signature.parameters
        self.paths = frozenset(
            name for name, parameter in parameters.items() if "path" in _kinds(parameter)
        )
        inputs = self._input_parameters(parameters)
        if inputs and (kinds := _kinds(inputs[0], inside_list=self._form == "batch")):
            self.first = next((kind for kind in kinds if kind not in {"none", "bool"}), "text")
        for name, value in args:
            if name in self.fixed:
                raise Usage(f"--arg {name} is given twice")
            if any(name == parameter.name for parameter in inputs):
                raise Usage(f"--arg {name}: this parameter of {self.describe()} gets the input")
            self.fixed[name] = self._converted(name, value, parameters)
        if self._form != "kwargs":
            self._check(inputs)

    def check_kwargs(self, line: str) -> None:
        """Check that one line of `--kwargs` can be bound.

        Raises:
            Usage: It is not a JSON object, or FUNC does not take these keywords.
        """
        try:
            values = json.loads(line)
        except ValueError as error:
            raise Usage(f"--kwargs: the first line is not JSON ({error}): {line:.100}") from None
        if not isinstance(values, dict):
            raise Usage(f"--kwargs: the first line is not a JSON object: {line:.100}")
        if self._signature is None:
            return
        try:
            self._signature.bind(**{**self.fixed, **values})
        except TypeError as error:
            raise Usage(f"{self.describe()}: {error}; the first line is {line:.100}") from None

    def _input_parameters(
        self, parameters: typing.Mapping[str, inspect.Parameter]
    ) -> list[inspect.Parameter]:
        """Return the parameters that get the input: one, three with `--block`, none by `--kwargs`."""
        if self._form == "kwargs":
            return []
        positional = [
            parameter
            for parameter in parameters.values()
            if parameter.kind
            in {
                inspect.Parameter.POSITIONAL_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.VAR_POSITIONAL,
            }
        ]
        return positional[: 3 if self._form == "block" else 1]

    def _converted(
        self, name: str, value: str, parameters: typing.Mapping[str, inspect.Parameter]
    ) -> object:
        parameter = parameters.get(name)
        takes_any = self._signature is None or any(
            other.kind is inspect.Parameter.VAR_KEYWORD for other in parameters.values()
        )
        if parameter is None or parameter.kind in {
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        }:
            if not takes_any:
                raise Usage(f"--arg {name}: {self.describe()} has no parameter {name!r}")
            return _parsed(value)
        kinds = _kinds(parameter)
        if not kinds:
            return _parsed(value)
        try:
            return _as_kind(value, kinds)
        except ValueError:
            wanted = " or ".join(kind for kind in kinds if kind != "none")
            raise Usage(f"--arg {name}: {value!r} is not {wanted}; see {self.describe()}") from None

    def _check(self, inputs: Sequence[inspect.Parameter]) -> None:
        if self._signature is None:
            return
        count = 3 if self._form == "block" else 1
        given = "path, start, stop" if self._form == "block" else "the input"
        if len(inputs) < count and not any(p.kind is p.VAR_POSITIONAL for p in inputs):
            raise Usage(f"{self.describe()} is called with {given}; it takes {len(inputs)} of them")
        try:
            self._signature.bind(*([None] * count), **self.fixed)
        except TypeError as error:
            raise Usage(f"{self.describe()}: {error}; give it with --arg NAME=VALUE") from None


def bind(func: Callable[..., Any], text: str, form: str, args: Sequence[tuple[str, str]]) -> Bound:
    """Return FUNC with the values of `--arg`, checked.

    Args:
        func: What FUNC names.
        text: FUNC as the user wrote it.
        form: How the inputs are passed: text, batch, block or kwargs.
        args: Names and texts of `--arg`.

    Raises:
        Usage: The calls to come cannot be bound.
    """
    bound = Bound(func, text, form)
    bound.take(args)
    return bound


def _signature(func: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature, annotations evaluated if they can be; None for some C functions."""
    try:
        return inspect.signature(func, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):
        pass  # an annotation for type checkers only; `_kinds` goes by its name
    except ValueError:
        return None
    try:
        return inspect.signature(func)
    except (ValueError, TypeError):
        return None


def _kinds(parameter: inspect.Parameter, *, inside_list: bool = False) -> list[str]:
    """Return what the annotation names that is known here, in its order; empty if nothing is."""
    if parameter.annotation is inspect.Parameter.empty:
        return []
    return _kinds_of(parameter.annotation, inside_list)


def _kinds_of(annotation: Any, inside_list: bool) -> list[str]:
    if isinstance(annotation, str):
        return _kinds_by_name(annotation, inside_list)
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kinds_of(arguments[0], inside_list)
    if origin is typing.Union or origin is types.UnionType:
        return [kind for argument in arguments for kind in _kinds_of(argument, inside_list)]
    if inside_list:
        element = arguments[0] if arguments and origin is not dict else None
        return [] if element is None else _kinds_of(element, inside_list=False)
    if annotation is type(None):
        return ["none"]
    plain = origin or annotation
    if not isinstance(plain, type):
        return []
    if issubclass(plain, pathlib.PurePath):
        return ["path"]
    known = _BY_NAME.get(plain.__name__)
    return [known] if known is not None else []


def _kinds_by_name(annotation: str, inside_list: bool) -> list[str]:
    kinds = []
    for part in annotation.split("|"):
        name = part.strip().strip("'\"")
        if inside_list:
            name = name.partition("[")[2].rstrip("]")
        name = name.partition("[")[0].rpartition(".")[2]
        kinds.append("none" if name == "None" else _BY_NAME.get(name, ""))
    return [kind for kind in kinds if kind]


def _parsed(value: str) -> object:
    """Return what the text is in JSON, else the text."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")  # `NaN` may be somebody's name

    try:
        return json.loads(value, parse_constant=refuse)
    except ValueError:
        return value


def _as_kind(value: str, kinds: Sequence[str]) -> object:
    """Return the text as the first of `kinds` that it can be.

    Raises:
        ValueError: It can be none of them.
    """
    parsed = _parsed(value)
    if "none" in kinds and parsed is None:
        return None
    for kind in kinds:
        if kind == "text":
            return value
        if kind == "path":
            return pathlib.Path(value)
        if kind == "bytes":
            return value.encode("utf-8", "surrogateescape")
        if kind == "bool" and isinstance(parsed, bool):
            return parsed
        if kind == "int" and isinstance(parsed, int) and not isinstance(parsed, bool):
            return parsed
        if kind == "dict" and isinstance(parsed, dict):
            return parsed
        if kind == "float":
            return float(value)
    raise ValueError(value)
