"""Two configurations → what changed, and what each change needs of a running router (H4, H14)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from continuum_router.config.root import Config
from continuum_shared.config.kinds import Kind, Reload, SectionModel, with_unit
from continuum_shared.config.model_walk import field_at, kind_of, reload_class
from continuum_shared.config.report import Path

_Difference = tuple["Sign", Path, str, str]


class Sign(StrEnum):
    CHANGED = "~"
    ADDED = "+"
    REMOVED = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. Items of lists are named by their identity (a backend by its name), so that
    a list that was only reordered has no difference. A secret shows as `***` on both sides."""

    sign: Sign
    path: Path
    before: str
    after: str
    reload: Reload


def compare(old: Config, new: Config) -> tuple[Change, ...]:
    """Every difference, in the order of the sections; added or removed items count as one each."""
    return tuple(
        Change(sign=sign, path=path, before=before, after=after, reload=reload_class(Config, path))
        for sign, path, before, after in _section(old, new, ())
    )


def keep_running(running: Config, wanted: Config) -> Config:
    """`wanted`, but with the running values of every key that only a restart changes (H4)."""
    kept = _kept(running, wanted, ())
    assert isinstance(kept, Config)
    return kept


def _kept(running: SectionModel, wanted: SectionModel, path: Path) -> SectionModel:
    update: dict[str, object] = {}
    for name in type(running).model_fields:
        old, new, here = getattr(running, name), getattr(wanted, name), (*path, name)
        if isinstance(old, SectionModel) and isinstance(new, SectionModel):
            update[name] = _kept(old, new, here)
        elif reload_class(Config, here) is Reload.HOT:
            update[name] = new
        else:
            update[name] = old
    return wanted.model_copy(update=update)


def _section(old: SectionModel, new: SectionModel, path: Path) -> Iterator[_Difference]:
    for name in type(old).model_fields:
        yield from _value(getattr(old, name), getattr(new, name), (*path, name))


def _value(old: object, new: object, path: Path) -> Iterator[_Difference]:
    if isinstance(old, SectionModel) and isinstance(new, SectionModel):
        yield from _section(old, new, path)
    elif isinstance(old, tuple) and isinstance(new, tuple) and _has_sections(old + new):
        yield from _mapping(_by_identity(old), _by_identity(new), path)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _mapping(old, new, path)
    elif old != new:
        unit = kind_of(field_at(Config, path))
        yield Sign.CHANGED, path, _shown(old, unit), _shown(new, unit)


def _mapping(
    old: Mapping[str, object], new: Mapping[str, object], path: Path
) -> Iterator[_Difference]:
    for key in dict.fromkeys((*old, *new)):
        if key not in new:
            yield Sign.REMOVED, (*path, key), "", ""
        elif key not in old:
            yield Sign.ADDED, (*path, key), "", ""
        else:
            yield from _value(old[key], new[key], (*path, key))


def _has_sections(items: tuple[object, ...]) -> bool:
    return any(isinstance(item, SectionModel) for item in items)


def _by_identity(items: tuple[object, ...]) -> Mapping[str, object]:
    return {str(getattr(item, getattr(type(item), "identity", ""), "")): item for item in items}


def _shown(value: object, unit: Kind | None = None) -> str:
    if unit is not None and isinstance(value, float | int):
        return with_unit(value, unit)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return "null" if value is None else str(value)
