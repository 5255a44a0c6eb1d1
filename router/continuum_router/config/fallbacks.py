"""The `fallbacks` section: which models stand in for a model that cannot be served (J11)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import Text

MAX_CHAIN = 8
"""Models in one chain; each may cost `retry.max_attempts` calls."""


def _chains(value: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    for model, chain in value.items():
        if not chain:
            raise BadValue("names no model", "list at least one, or remove the line", at=(model,))
        if len(chain) > MAX_CHAIN:
            raise BadValue(f"names more than {MAX_CHAIN} models", "shorten it", at=(model,))
    return value


Fallbacks = Annotated[dict[Text, tuple[Text, ...]], AfterValidator(_chains)]
"""model → the models to try in its place, in order."""
