"""The version that the commands print is the one that the distribution was built with."""

import re
from importlib.metadata import version

from continuum_shared.version import __version__


def test_version_is_the_distributions():
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert version("continuum-router") == __version__
