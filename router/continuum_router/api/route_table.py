"""From a request target to a route: what cannot be a path is refused, the rest is looked up.

No layer rewrites a path before it is compared, and what a backend's own server might read as
another path than we do never gets that far: dot segments, encoded slashes and dots, backslashes and
empty segments are refused before any match.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from continuum_router.config.management import is_management
from continuum_router.errors import BadRequest

RouteT = TypeVar("RouteT")

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_AMBIGUOUS = re.compile(
    r"//|\\|%(?:2f|5c|00|0a|0d|25)|(?:/|^)(?:\.|%2e){1,2}(?:;[^/]*)?(?:/|$)", re.IGNORECASE
)
_MAX_TAIL = 256
_TAIL = re.compile(r"[A-Za-z0-9._~:@!$&'()+,;=/-]+")


def plain_path(target: str) -> str:
    """The path of a request target, as it was sent; an absolute-form target loses its origin.

    Raises BadRequest for a path that two readers could understand in two ways.
    """
    origin = _ORIGIN.match(target)
    if origin is not None:
        target = target[origin.end() :] or "/"
    path = target.partition("#")[0].partition("?")[0]
    if _AMBIGUOUS.search(path):
        raise BadRequest(
            "The path is ambiguous: it has a dot segment, an empty segment, a backslash or an "
            "encoded slash.",
            code="ambiguous_path",
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable(Generic[RouteT]):
    """`exact` are paths, `below` prefixes ending in a slash; both lead to routes by method.

    Management paths of engines are in no table and match none (decisions J20).
    """

    exact: Mapping[str, Mapping[str, RouteT]]
    below: Mapping[str, Mapping[str, RouteT]] = field(default_factory=dict)

    def find(self, path: str) -> tuple[str, Mapping[str, RouteT]] | None:
        """The table's entry for a path, with its name: the path itself, or `PREFIX*`."""
        methods = self.exact.get(path)
        if methods is not None:
            return path, methods
        best = ""
        for prefix in self.below:
            if len(prefix) > len(best) and path.startswith(prefix):
                best = prefix
        tail = path[len(best) :]
        if not best or len(tail) > _MAX_TAIL or not _TAIL.fullmatch(tail) or is_management(path):
            return None
        return f"{best}*", self.below[best]
