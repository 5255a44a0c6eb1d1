"""The `salt_echo` section that both daemons have (decisions C24, P7).

The same secret and the same scope on both sides; the router issues with the first of its secrets,
the listener believes all of its own.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from continuum_shared.cache_salt import SaltScope
from continuum_shared.config.decode import Finding, View
from continuum_shared.config.env_secret import EnvSecrets
from continuum_shared.config.kinds import SectionModel, choice
from continuum_shared.config.report import Path, Severity

SHORT_SECRET = 16
"""Characters below which a secret can be guessed from one salt."""
_HINT = "such as the output of: openssl rand -hex 32"


class SaltEchoConfig(SectionModel):
    """The router signs the prefix key into `cache_salt`; the listener reads it back."""

    enabled: bool = Field(False, description="Needs a secret, the same on router and listener.")
    secret_env: EnvSecrets = Field(
        (),
        description="Environment variable with the secret, or a list of them while it is "
        "exchanged: the router issues with the first, the listener believes all.",
    )
    scope: Annotated[SaltScope, choice(SaltScope)] = Field(
        SaltScope.BACKEND,
        description="`backend`: a salt is good on one backend. `fleet`: on all of them, so that "
        "engines that share an external KV store go on sharing it. The same on both sides.",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets in order; none while it is off."""
        return tuple(each.reveal() for each in self.secret_env) if self.enabled else ()


def salt_echo_findings(section: SaltEchoConfig, path: Path, view: View) -> Iterator[Finding]:
    """What is wrong with the section at `path`."""
    if not section.enabled:
        return
    where = (*path, "secret_env")
    if not section.secret_env and view.sure(where):
        yield Finding(
            path=(*path, "enabled"),
            message="salt echo needs a secret",
            hint="name an environment variable in secret_env",
        )
    several = len(section.secret_env) > 1
    for index, secret in enumerate(section.secret_env):
        at = (*where, index) if several else where
        if not secret.given:
            yield Finding(
                path=at,
                message=f"the environment variable {secret.name} is not set or empty",
                hint="export it before the start",
            )
        elif len(secret.reveal()) < SHORT_SECRET:
            yield Finding(
                path=at,
                message=f"the secret in {secret.name} is short enough to be guessed",
                hint=_HINT,
                severity=Severity.WARNING,
            )
