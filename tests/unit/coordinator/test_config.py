from pathlib import Path

import pytest

from coordinator.config import Bounds, settings
from coordinator.errors import BadConfiguration

KEY, TOKEN = "dbk_" + "a" * 32, "dbk_" + "b" * 43


def test_flags_beat_environment_beats_defaults() -> None:
    environment = {"DARKBLOOM_DATA_DIR": "/env", "DARKBLOOM_DATABASE_URL": "postgresql://env"}
    assert settings({}).data_dir == Path("~/.local/share/darkbloom").expanduser()
    assert settings({}).database_url is None
    assert settings(environment).data_dir == Path("/env")
    assert settings(environment).database_url == "postgresql://env"
    told = settings(environment, data_dir=Path("/flag"), database_url="postgresql://flag")
    assert (told.data_dir, told.database_url) == (Path("/flag"), "postgresql://flag")


def test_the_secrets_of_up_come_in_pairs_and_in_form() -> None:
    environment = {"DARKBLOOM_UP_API_KEY": KEY, "DARKBLOOM_UP_PROVIDER_TOKEN": TOKEN}
    up = settings(environment).up
    assert up is not None
    assert (up.api_key, up.provider_token) == (KEY, TOKEN)
    assert settings({}).up is None


@pytest.mark.parametrize("bad", ["", "dbk_short", "sk_" + "a" * 40, KEY + " "])
def test_a_bad_secret_stops_the_start_and_names_the_key(bad: str) -> None:
    environment = {"DARKBLOOM_UP_API_KEY": KEY, "DARKBLOOM_UP_PROVIDER_TOKEN": bad}
    with pytest.raises(BadConfiguration, match="DARKBLOOM_UP_PROVIDER_TOKEN must be dbk_"):
        settings(environment)
    with pytest.raises(BadConfiguration, match="DARKBLOOM_UP_PROVIDER_TOKEN"):
        settings({"DARKBLOOM_UP_API_KEY": KEY})


def test_the_wait_for_a_provider_can_be_set() -> None:
    assert settings({}).timings.resume_within_s == 45
    assert settings({"DARKBLOOM_RESUME_WITHIN_S": "2.5"}).timings.resume_within_s == 2.5


@pytest.mark.parametrize("bad", ["0", "-1", "nan", "inf", "soon", "3601"])
def test_a_bad_wait_stops_the_start_and_names_the_key(bad: str) -> None:
    with pytest.raises(BadConfiguration, match=r"DARKBLOOM_RESUME_WITHIN_S=.*between 0 and 3600"):
        settings({"DARKBLOOM_RESUME_WITHIN_S": bad})


def test_what_a_coordinator_takes_can_be_set() -> None:
    assert (settings({}).bounds, settings({}).most_waiting) == (Bounds(of_a_token=5000, in_all=20_000), 1000)
    told = settings(
        {
            "DARKBLOOM_MOST_PROVIDERS": "40000",
            "DARKBLOOM_MOST_PROVIDERS_PER_TOKEN": "7",
            "DARKBLOOM_MOST_WAITING": "1",
        }
    )
    assert (told.bounds, told.most_waiting) == (Bounds(of_a_token=7, in_all=40_000), 1)


@pytest.mark.parametrize("bad", ["0", "-1", "1.5", "many", "1000001", "9" * 5000, "٣"])
@pytest.mark.parametrize("name", ["MOST_PROVIDERS", "MOST_PROVIDERS_PER_TOKEN", "MOST_WAITING"])
def test_a_bad_number_stops_the_start_and_names_the_key(name: str, bad: str) -> None:
    with pytest.raises(BadConfiguration, match=rf"DARKBLOOM_{name}=.*between 1 and 1000000") as error:
        settings({f"DARKBLOOM_{name}": bad})
    assert len(str(error.value)) < 200


def test_no_secret_shows_in_a_representation() -> None:
    environment = {
        "DARKBLOOM_UP_API_KEY": KEY,
        "DARKBLOOM_UP_PROVIDER_TOKEN": TOKEN,
        "DARKBLOOM_DATABASE_URL": "postgresql://u:hidden@h/d",
    }
    shown = repr(settings(environment))
    assert not any(secret in shown for secret in (KEY, TOKEN, "hidden"))
