"""What the types of a settings class say: sections, lists, choices, and every key there is."""

import dataclasses
import re
import types
import typing
from functools import cache
from typing import Any, Literal

hints_of = cache(typing.get_type_hints)
"""The types of a settings class's fields by their names."""


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the only one."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def kind_of(hint: Any) -> Any:
    """The type of a field's value where it is not null."""
    return next(kind for kind in alternatives(hint) if kind is not types.NoneType)


def section_of(hint: Any) -> Any:
    """The settings class that a field nests, None where it is a plain value or a list."""
    return next((kind for kind in alternatives(hint) if dataclasses.is_dataclass(kind)), None)


def item_of(hint: Any) -> Any:
    """What a field's list consists of, None where it is no list."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is list else None


def is_mapping(hint: Any) -> bool:
    """Whether a field holds keys and values that no class names."""
    return typing.get_origin(hint) is dict


def choices_of(hint: Any) -> list[str]:
    """The values that a field may have, as they are written; none where any of its type will do."""
    kinds = [kind for kind in alternatives(hint) if typing.get_origin(kind) is Literal]
    return [str(choice) for kind in kinds for choice in typing.get_args(kind)]


def is_needed(field: "dataclasses.Field[Any]") -> bool:
    """Whether the field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def find_hint(settings_class: Any, key: str) -> Any:
    """The type of the field that a dotted key such as phases[0].peak_lr names, or None."""
    name, _, rest = re.sub(r"\[\d+\]", "", key).partition(".")
    hint = hints_of(settings_class).get(name)
    if not rest or hint is None:
        return hint
    if is_mapping(hint):
        return typing.get_args(hint)[1]
    inner = section_of(item_of(hint) or hint)
    return find_hint(inner, rest) if inner else None


def known_keys(settings_class: Any, prefix: str = "") -> list[str]:
    """Every key that stands for a value: those of sections and of items of lists after a dot."""
    keys: list[str] = []
    for name, hint in hints_of(settings_class).items():
        inner = section_of(item_of(hint) or hint)
        keys += [] if section_of(hint) else [f"{prefix}{name}"]
        keys += known_keys(inner, f"{prefix}{name}.") if inner else []
    return keys


def describe_type(hint: Any) -> str:
    """A type in words."""
    kind = kind_of(hint)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    said = words.get(kind, "a value")
    if choices := choices_of(kind):
        said = f"one of {', '.join(choices)}"
    elif item := item_of(kind):
        said = "a list, such as [{...}, {...}]" if section_of(item) else "a list, such as [a, b]"
    elif is_mapping(kind) or section_of(kind):
        said = "keys and values"
    return f"{said} or null" if types.NoneType in alternatives(hint) else said
