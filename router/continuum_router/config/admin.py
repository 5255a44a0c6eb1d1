"""The `admin` section: who may use `/admin/*` (decisions P4, H1)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from continuum_shared.config.decode import Finding, View
from continuum_shared.config.env_secret import EnvSecrets
from continuum_shared.config.kinds import Reload, SectionModel
from continuum_shared.config.report import Severity

if TYPE_CHECKING:
    from continuum_router.config.root import Config

SHORT_TOKEN = 16
"""Characters below which a token can be guessed."""


class AdminConfig(SectionModel):
    """The administration of a running router."""

    reload: ClassVar[Reload] = Reload.RESTART

    token_env: EnvSecrets = Field(
        (),
        description="Environment variable with the bearer token of `/admin/*`, or a list of them "
        "while it is exchanged. Without one only this host may, and no proxy on it.",
    )


def admin_findings(config: "Config", view: View) -> Iterator[Finding]:
    """Tokens that are not there, or are short enough to be guessed."""
    tokens = config.admin.token_env
    for index, token in enumerate(tokens):
        at = ("admin", "token_env", index) if len(tokens) > 1 else ("admin", "token_env")
        if not view.sure(at):
            continue
        if not token.given:
            yield Finding(
                path=at,
                message=f"the environment variable {token.name} is not set or empty",
                hint="export it before the start, or remove the key",
            )
        elif len(token.reveal()) < SHORT_TOKEN:
            yield Finding(
                path=at,
                message=f"the token in {token.name} is short enough to be guessed",
                hint="such as the output of: openssl rand -hex 32",
                severity=Severity.WARNING,
            )
