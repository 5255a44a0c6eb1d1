"""Following a path through section models: which model is there, which kind, how it reloads."""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from continuum_shared.config.kinds import Kind, Reload, Secret, SectionModel
from continuum_shared.config.report import Path

Section = type[SectionModel]


def strip_optional(annotation: Any) -> Any:
    """`X | None` and `Annotated[X, …]` → X."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in {Union, types.UnionType}:
            rest = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(rest) != 1:
                return annotation
            annotation = rest[0]
        else:
            return annotation


def type_at(model: Section, path: Path) -> Any:
    """The annotation of what a path names, without Optional; None when the path leads nowhere.

    An item of a list may be named by number or by its identity.
    """
    here: Any = model
    for part in path:
        here = strip_optional(here)
        if is_section(here):
            field = here.model_fields.get(part) if isinstance(part, str) else None
            if field is None:
                return None
            here = field.annotation
        elif get_origin(here) is tuple:
            here = get_args(here)[0]
        elif get_origin(here) in {dict, Mapping} and isinstance(part, str):
            here = get_args(here)[1]
        else:
            return None
    return strip_optional(here)


def section_at(model: Section, path: Path) -> Section | None:
    """The section model that a path names, or None."""
    found = type_at(model, path)
    return found if is_section(found) else None


def field_at(model: Section, path: Path) -> FieldInfo | None:
    """The field that a path's last part names, or None (items of lists have no field)."""
    owner = section_at(model, path[:-1]) if path else None
    if owner is None or not isinstance(path[-1], str):
        return None
    return owner.model_fields.get(path[-1])


def kind_of(field: FieldInfo | None) -> Kind | None:
    """Duration or byte size, when the field is one."""
    if field is None:
        return None
    marks = (mark for mark in field.metadata if isinstance(mark, Kind))
    return next(marks, None)


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, SectionModel)


def is_note(model: Section, path: Path) -> bool:
    """True when a path lies in an `x_` key of a section, which is ignored (decisions H5)."""
    return any(
        isinstance(part, str) and part.startswith("x_") and section_at(model, path[:at]) is not None
        for at, part in enumerate(path)
    )


def reload_class(model: Section, path: Path) -> Reload:
    """What changing the key at a path needs; the innermost statement about it wins."""
    found = model.reload
    for length in range(1, len(path) + 1):
        section = section_at(model, path[:length])
        field = field_at(model, path[:length])
        if section is not None:
            found = section.reload
        extra = field.json_schema_extra if field is not None else None
        if isinstance(extra, dict) and "reload" in extra:
            found = Reload(str(extra["reload"]))
    return found


def places_of(model: Section, key: str, path: str = "") -> Iterator[str]:
    """Where a key exists anywhere in a model, as `section.key` or `list[].key`."""
    for name, field in model.model_fields.items():
        kind = strip_optional(field.annotation)
        many = get_origin(kind) is tuple
        inner = strip_optional(get_args(kind)[0]) if many else kind
        here = f"{path}.{name}" if path else name
        if name == key:
            yield here
        if is_section(inner) and inner is not model:
            yield from places_of(inner, key, f"{here}[]" if many else here)


def secret_paths(value: object, path: Path = ()) -> Iterator[Path]:
    """Where the secrets of an instance stand in its file."""
    if isinstance(value, Secret):
        yield path
    elif isinstance(value, SectionModel):
        for name in type(value).model_fields:
            yield from secret_paths(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from secret_paths(item, (*path, index))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from secret_paths(item, (*path, key))
