"""Every error travels, and says which neighbour it is not."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re

import pytest

from mpsched import errors
from tests.support.scripts import run_script

NAMES = [name for name in errors.__all__ if name != "MpschedError"]

# A value for each field that an error may have, by the field's type.
_SAMPLES: dict[str, object] = {
    "bool": False,
    "float | None": 1.5,
    "Hashable | None": ("daily", 17),
    "int | None": 17,
    "str": "text",
    "str | None": "SIGKILL",
}


def error_class(name: str) -> type[errors.MpschedError]:
    found = getattr(errors, name)
    assert isinstance(found, type)
    assert issubclass(found, errors.MpschedError)
    return found


def sample(name: str) -> tuple[errors.MpschedError, dict[str, object]]:
    """Return an error with every field set to something unlike its default, and the fields."""
    kind = error_class(name)
    fields: dict[str, object] = {}
    for parameter in inspect.signature(kind.__init__).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            fields[parameter.name] = _SAMPLES[parameter.annotation]
            assert fields[parameter.name] != parameter.default
    error = kind("task 17 'name': what happened", **fields)
    error.add_note("a note")
    return error, fields


def assert_same(again: object, error: errors.MpschedError, fields: dict[str, object]) -> None:
    assert type(again) is type(error)
    assert isinstance(again, errors.MpschedError)
    assert again.args == error.args == ("task 17 'name': what happened",)
    assert str(again) == str(error)
    assert again.__notes__ == ["a note"]
    for name, value in fields.items():
        assert getattr(again, name) == value, name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle_keeps_class_message_fields_and_notes(name: str, protocol: int) -> None:
    """An error is the same after a round trip, twice over, in every protocol."""
    error, fields = sample(name)
    once = pickle.loads(pickle.dumps(error, protocol))
    assert_same(once, error, fields)
    assert_same(pickle.loads(pickle.dumps(once, protocol)), error, fields)


@pytest.mark.parametrize("name", NAMES)
def test_errors_copy_keeps_class_message_fields_and_notes(name: str) -> None:
    """`copy` and `deepcopy` give the same error again."""
    error, fields = sample(name)
    assert_same(copy.copy(error), error, fields)
    assert_same(copy.deepcopy(error), error, fields)


@pytest.mark.parametrize("name", NAMES)
def test_errors_can_be_raised_with_a_message_alone(name: str) -> None:
    """No field is required, so that a subclass or an unpickler can always build it."""
    with pytest.raises(error_class(name), match=r"^alone$"):
        raise error_class(name)("alone")


def test_errors_pickled_arrive_in_a_process_that_has_loaded_nothing() -> None:
    """A fresh interpreter unpickles each error, those that are loaded on demand too."""
    data = [pickle.dumps(sample(name)[0]) for name in NAMES]
    result = run_script(
        f"""
        import pickle
        for data in {data!r}:
            print(type(pickle.loads(data)).__name__)
        """
    )
    assert result.rc == 0, result.err
    assert result.out.split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_errors_docstring_contrasts_a_neighbour(name: str) -> None:
    """Each says what it is unlike, by the name of another error."""
    doc = inspect.getdoc(error_class(name)) or ""
    contrast = re.search(r"[Uu]nlike .*", doc, re.DOTALL)
    assert contrast, f"{name} does not say which error it is unlike"
    named = {word.rpartition(".")[2] for word in re.findall(r"`([\w.]+)`", contrast[0])}
    neighbours = named & ({*errors.__all__, *vars(builtins), "CancelledError"} - {name})
    assert neighbours or "every other error" in contrast[0], f"{name} names no neighbour"


def test_errors_tree_in_the_module_is_the_real_one() -> None:
    """The tree that heads the module lists each error once, with the base that callers know."""
    lines = re.findall(
        r"^ +\+- (\w+) +(?:\((?:\w+\.)?(\w+)\))?", errors.__doc__ or "", re.MULTILINE
    )
    assert sorted(name for name, _base in lines) == sorted(NAMES)
    for name, base in lines:
        names = [kind.__name__ for kind in error_class(name).__mro__]
        direct = [kind.__name__ for kind in error_class(name).__bases__]

        assert direct == (["MpschedError", base] if base else ["MpschedError"]), names


def test_errors_unknown_name_is_an_attribute_error() -> None:
    """The lazy part of the module answers only for its own names."""
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        errors.Nonsense  # noqa: B018
    assert sorted(dir(errors)) == sorted(errors.__all__)
