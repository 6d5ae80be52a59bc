"""The official SDKs in two major versions, and clients that users run, against both servers."""

import json
from pathlib import Path

import anthropic
import openai
import pytest

from tests.integration import sdk_features
from tests.integration.client import Api
from tests.integration.side_packages import run_beside, side_packages
from tests.soak import SOAK

OLDER_SDKS = ("openai==2.54.0", "anthropic==1.17.0", "distro", "docstring-parser")
PROGRAM = str(Path(sdk_features.__file__))


@pytest.mark.parametrize("server", ["local", "fleet"])
def test_the_current_sdks_drive_every_feature(apis: dict[str, Api], server: str) -> None:
    assert (openai.__version__.split(".")[0], anthropic.__version__.split(".")[0]) == ("3", "2")
    sdk_features.drive(apis[server].url, apis[server].key)


@pytest.mark.skipif(not SOAK, reason="installs and drives two more SDKs: DARKBLOOM_SOAK=1")
def test_the_sdks_of_a_major_version_before_drive_every_feature(apis: dict[str, Api]) -> None:
    directory = side_packages(*OLDER_SDKS)
    servers = [argument for api in apis.values() for argument in (api.url, api.key)]
    versions = json.loads(run_beside(directory, PROGRAM, *servers))
    assert {name: version.split(".")[0] for name, version in versions.items()} == {"openai": "2", "anthropic": "1"}
