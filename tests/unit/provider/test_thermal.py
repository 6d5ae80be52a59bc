"""How hot a machine says that it runs."""

import pytest

from provider.thermal import Thermal, Zone, mac_thermal, nvidia_thermal, read_thermal, worst, zone_thermal

TRIPS = (("passive", 95_000), ("active", 40_000), ("hot", 100_000), ("critical", 105_000))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("com.apple.system.thermalpressurelevel 0\n", "nominal"),
        ("com.apple.system.thermalpressurelevel 1\n", "fair"),
        ("com.apple.system.thermalpressurelevel 2\n", "serious"),
        ("com.apple.system.thermalpressurelevel 3\n", "critical"),
        ("com.apple.system.thermalpressurelevel 9\n", "critical"),
        ("notifyutil: command not found", "nominal"),
        ("", "nominal"),
    ],
)
def test_a_mac_tells_its_thermal_pressure(text: str, state: Thermal) -> None:
    assert mac_thermal(text) == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Not Active, Not Active\n", "nominal"),
        ("Not Active, Active\n", "fair"),
        ("Active, Active\nNot Active, Not Active\n", "serious"),
        ("[N/A], [N/A]\n", "nominal"),
        ("", "nominal"),
    ],
)
def test_a_gpu_tells_whether_heat_slows_it_down(text: str, state: Thermal) -> None:
    assert nvidia_thermal(text) == state


@pytest.mark.parametrize(
    ("temperature", "state"),
    [(60_000, "nominal"), (95_000, "fair"), (101_000, "serious"), (120_000, "critical")],
)
def test_linux_tells_which_trips_have_been_reached(temperature: int, state: Thermal) -> None:
    assert zone_thermal([Zone(30_000, TRIPS), Zone(temperature, TRIPS)]) == state


def test_a_trip_that_is_not_set_is_never_reached() -> None:
    assert zone_thermal([Zone(60_000, (("passive", 0), ("critical", -274_000)))]) == "nominal"
    assert zone_thermal([]) == worst([]) == "nominal"


def test_this_machine_has_a_state() -> None:
    assert read_thermal("host") in ("nominal", "fair", "serious", "critical")
