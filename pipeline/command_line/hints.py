"""Reads the type hints of settings classes: which fields are sections or lists, and all keys.

A section is a field whose value is another settings class, such as `model` in `model.preset`.
"""

import dataclasses
import re
import types
import typing
from functools import cache
from typing import Any, Literal

_SCALARS = (bool, int, float, str, Any)


@cache
def hints_of(settings_class: Any) -> dict[str, Any]:
    """Returns the types of a settings class's fields by their names.

    Raises:
        TypeError: A field has a type that no flag and no file could set.
    """
    hints = typing.get_type_hints(settings_class)
    for name, hint in hints.items():
        if not _can_be_given(hint):
            scalars = "bool, int, float, str, Any or Literal"
            raise TypeError(
                f"{settings_class.__name__}.{name}: found the type {hint}, expected {scalars}, a"
                " list of one of them, either of these or None, a dict of str to one of them, a"
                " settings class or a list of a settings class"
            )
    return hints


def _can_be_given(hint: Any) -> bool:
    """Returns whether flags and files can set a field of a type."""
    kinds = [kind for kind in alternatives(hint) if kind is not types.NoneType]
    if len(kinds) != 1:
        return False
    kind = kinds[0]
    is_optional = kind is not hint
    if _is_scalar(kind) or _is_scalar(item_of(kind)):
        return True
    if is_mapping(kind):
        of_key, of_value = typing.get_args(kind)
        return of_key is str and _is_scalar(of_value) and not is_optional
    return section_of(item_of(kind) or kind) is not None and not is_optional


def _is_scalar(hint: Any) -> bool:
    """Returns whether a value of a type is a single word, or of any type."""
    return hint in _SCALARS or typing.get_origin(hint) is Literal


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the types that a union joins: `int` and `NoneType` for `int | None`.

    A type that is not a union is returned as the only one.
    """
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def kind_of(hint: Any) -> Any:
    """Returns the first type of a field that is not None: `int` for `int | None`."""
    return next(kind for kind in alternatives(hint) if kind is not types.NoneType)


def section_of(hint: Any) -> Any:
    """Returns the settings class of a field that is a section, or None for any other field."""
    return hint if dataclasses.is_dataclass(hint) else None


def item_of(hint: Any) -> Any:
    """Returns the type of a list's items: `str` for `list[str]` and for `list[str] | None`.

    The result is None if the field is not a list.
    """
    kind = kind_of(hint)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else None


def is_mapping(hint: Any) -> bool:
    """Returns whether a field is a `dict`. The user may then give any keys below it."""
    return typing.get_origin(hint) is dict


def choices_of(hint: Any) -> list[str]:
    """Returns the values that a field may have, as a user writes them.

    The result is empty if the field takes any value of its type.
    """
    kinds = [kind for kind in alternatives(hint) if typing.get_origin(kind) is Literal]
    return [str(choice) for kind in kinds for choice in typing.get_args(kind)]


def is_needed(field: "dataclasses.Field[Any]") -> bool:
    """Returns whether a field has no default, so that it has to be given."""
    return field.default is field.default_factory is dataclasses.MISSING


def find_hint(settings_class: Any, key: str) -> Any:
    """Returns the type of the field that a dotted key names, or None if there is no such field.

    A key below a mapping always has a type: that of the mapping's values.

    Args:
        settings_class: The settings class in which the key begins.
        key: The dotted key, such as "phases[0].peak_lr".
    """
    name, _, rest = re.sub(r"\[\d+\]", "", key).partition(".")
    hint = hints_of(settings_class).get(name)
    if not rest or hint is None:
        return hint
    if is_mapping(hint):
        return typing.get_args(hint)[1]
    inner = section_of(item_of(hint) or hint)
    return find_hint(inner, rest) if inner else None


def known_keys(settings_class: Any, prefix: str = "") -> list[str]:
    """Returns every dotted key that a user can give for a settings class, in the fields' order.

    A section has no key of its own, only keys of its fields, such as `model.preset`. A list of
    sections has both: its own key, and keys of its items' fields, such as `phases` and
    `phases.steps`.

    Args:
        settings_class: The class.
        prefix: What precedes each key, such as "model." for the class of the section `model`.
    """
    keys: list[str] = []
    for name, hint in hints_of(settings_class).items():
        inner = section_of(item_of(hint) or hint)
        keys += [] if section_of(hint) else [f"{prefix}{name}"]
        keys += known_keys(inner, f"{prefix}{name}.") if inner else []
    return keys


def describe_type(hint: Any) -> str:
    """Returns a type in words for a message: "a whole number or null" for `int | None`."""
    kind = kind_of(hint)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    description = words.get(kind, "a value")
    if choices := choices_of(kind):
        description = f"one of {', '.join(choices)}"
    elif item := item_of(kind):
        example = "[{...}, {...}]" if section_of(item) else "[a, b]"
        description = f"a list, such as {example}"
    elif is_mapping(kind) or section_of(kind):
        description = "keys and values"
    return f"{description} or null" if types.NoneType in alternatives(hint) else description
