"""From facts to findings: what fails, what only warns, and that each says how to fix it."""

from dataclasses import replace
from pathlib import Path

import pytest

from provider.config import ProviderConfig, read_config
from provider.doctor import (
    DEFAULT_PORTS,
    Facts,
    ModelFacts,
    diagnose,
    judge_coordinator,
    judge_head,
    judge_mlx,
    judge_model,
    judge_platform,
    judge_port,
)
from provider.findings import Finding, Status, is_failure
from provider.fit_findings import FIT_CHECK
from provider.fitness import Candidate, MachineFacts
from provider.hardware import Hardware, SystemMemory
from provider.memory_findings import MemoryFacts
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.inspection import inspect_model
from provider.mtp.policy import Declaration, Mode, Off, Reason
from provider.mtp.verdict import Verdict as MtpVerdict
from provider.mtp.verdict import judge
from provider.probes import (
    CoordinatorOutcome,
    DirectoryFacts,
    MlxOutcome,
    PortState,
    PostgresOutcome,
    Verdict,
)
from tests.fixtures.checkpoints import qwen_config, write_model
from tests.fixtures.heads import headed_model

GIB = 2**30
MACHINE = Hardware(
    system="Linux",
    machine="x86_64",
    python="3.12.1",
    chip="AMD EPYC",
    cores=8,
    physical_bytes=32 * GIB,
    available_bytes=24 * GIB,
    memory_kind="host",
)
MLX = MlxOutcome("cpu: AMD EPYC", True, None)
BUNDLED = ModelFacts(BUNDLED_MODEL_ID, inspect_model(BUNDLED_MODEL_DIR), None)
MEMORY = SystemMemory(physical_bytes=32 * GIB, available_bytes=24 * GIB, pressure=None, read_at_s=0.0)
FITTING = MachineFacts(
    physical_bytes=32 * GIB,
    available_bytes=24 * GIB,
    reserve_bytes=4 * GIB,
    advertised=None,
    models=(Candidate(id=BUNDLED_MODEL_ID, size_bytes=3 * 2**20),),
    target=BUNDLED_MODEL_ID,
)
URL = "ws://127.0.0.1:8080/ws/provider"


@pytest.fixture
def config(tmp_path: Path) -> ProviderConfig:
    return read_config({}, file=tmp_path / "none.toml", data_dir=tmp_path, env={})


@pytest.fixture
def facts(config: ProviderConfig, tmp_path: Path) -> Facts:
    """Of a machine with nothing wrong."""
    return Facts(
        config=config,
        hardware=MACHINE,
        mlx=MLX,
        memory=MemoryFacts(memory=MEMORY, kind="host", cap_bytes=28 * GIB, machines=(FITTING,)),
        models=(BUNDLED,),
        ports=dict.fromkeys(DEFAULT_PORTS, PortState.FREE),
        ports_asked_for=False,
        data_dir=DirectoryFacts(tmp_path, True, 100 * GIB),
        postgres=PostgresOutcome(False, "postgres (PostgreSQL) 18.6", None),
        coordinators=(CoordinatorOutcome(URL, Verdict.ACCEPTED),),
        token_given=True,
    )


def found(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def test_a_healthy_machine_passes_every_check(facts: Facts) -> None:
    assert {finding.status for finding in diagnose(facts)} == {Status.PASS}


def test_whatever_is_no_pass_names_a_fix_and_a_pass_none(facts: Facts, tmp_path: Path) -> None:
    broken = replace(
        facts,
        config="provider.toml: engine.exakt is not a known key",
        hardware=replace(MACHINE, system="Plan9"),
        memory=MemoryFacts(memory=replace(MEMORY, physical_bytes=None), kind="host", cap_bytes=None),
        mlx=MlxOutcome(None, False, "exit code -11: no message"),
        models=(ModelFacts("org/absent", None, "org/absent is not on this machine"),),
        ports={80: PortState.FORBIDDEN, 8000: PortState.TAKEN},
        data_dir=DirectoryFacts(tmp_path, False, None),
        postgres=PostgresOutcome(True, None, "connection refused"),
        coordinators=(CoordinatorOutcome(URL, Verdict.UNREACHABLE, "refused"),),
    )
    findings = diagnose(broken)

    assert Status.PASS not in {finding.status for finding in findings}
    assert all(finding.fix for finding in findings)
    assert all(finding.fix is None for finding in diagnose(facts))


def test_a_model_that_does_not_fit_fails_beside_healthy_files(facts: Facts) -> None:
    assert facts.memory is not None
    (machine,) = facts.memory.machines
    full = replace(facts.memory, machines=(replace(machine, available_bytes=0),))
    findings = diagnose(replace(facts, memory=full))

    assert found(findings, FIT_CHECK).status is Status.FAIL
    assert found(findings, "model files").status is Status.PASS


def test_without_a_readable_configuration_nothing_is_said_of_memory(facts: Facts) -> None:
    findings = diagnose(replace(facts, config="provider.toml: nonsense", memory=None))

    assert FIT_CHECK not in {finding.name for finding in findings}


@pytest.mark.parametrize(
    ("outcome", "kind", "status"),
    [
        (MLX, "host", Status.PASS),
        (MlxOutcome("gpu: Apple M2", True, None), "unified", Status.PASS),
        (MLX, "discrete", Status.WARN),
        (MlxOutcome("gpu: Apple M2", False, None), "unified", Status.FAIL),
        (MlxOutcome(None, False, "no answer within 120 s"), "host", Status.FAIL),
    ],
)
def test_mlx_has_to_compute_right_and_on_the_gpu_that_is_there(outcome: MlxOutcome, kind: str, status: Status) -> None:
    hardware = replace(MACHINE, memory_kind=kind)

    assert judge_mlx(outcome, hardware).status is status


@pytest.mark.parametrize(
    ("state", "asked_for", "status"),
    [
        (PortState.FREE, False, Status.PASS),
        (PortState.OURS, True, Status.PASS),
        (PortState.TAKEN, False, Status.WARN),
        (PortState.TAKEN, True, Status.FAIL),
        (PortState.FORBIDDEN, True, Status.FAIL),
    ],
)
def test_a_taken_port_fails_only_who_asked_for_it(state: PortState, asked_for: bool, status: Status) -> None:
    assert judge_port(9000, state, asked_for).status is status


def test_a_refused_token_is_told_from_an_unreachable_coordinator() -> None:
    refused = list(judge_coordinator(CoordinatorOutcome(URL, Verdict.BAD_TOKEN), token_given=True))
    absent = list(judge_coordinator(CoordinatorOutcome(URL, Verdict.UNREACHABLE, "x"), token_given=True))

    assert [(one.name, one.status.value) for one in refused] == [
        ("coordinator reachable", "pass"),
        ("token accepted", "fail"),
    ]
    assert [(one.name, one.status.value) for one in absent] == [("coordinator reachable", "fail")]


def test_without_a_token_only_reachability_is_judged() -> None:
    findings = judge_coordinator(CoordinatorOutcome(URL, Verdict.BAD_TOKEN), token_given=False)

    assert [(one.name, one.status.value) for one in findings] == [("coordinator reachable", "pass")]


def test_no_coordinator_means_no_check_of_one(facts: Facts) -> None:
    names = {finding.name for finding in diagnose(replace(facts, coordinators=(), token_given=False))}

    assert names.isdisjoint({"coordinator reachable", "token accepted"})


def test_a_broken_or_foreign_model_fails(tmp_path: Path) -> None:
    foreign = write_model(tmp_path / "foreign", {**qwen_config(), "model_type": "llama"})
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")

    assert judge_model(BUNDLED).status is Status.PASS
    assert "llama" in judge_model(ModelFacts("f", inspect_model(foreign), None)).message
    finding = judge_model(ModelFacts("b", inspect_model(broken), None))
    assert (finding.status, "model.safetensors" in finding.message) == (Status.FAIL, True)


def with_head(directory: Path, killed: bool = False, mode: Mode = "auto") -> ModelFacts:
    found = inspect_model(directory)
    return ModelFacts("m", found, None, judge(directory, found.mtp, killed=killed, mode=mode))


def test_a_head_that_will_draft_passes() -> None:
    finding = judge_head(with_head(BUNDLED_MODEL_DIR))

    assert finding is not None
    assert (finding.status, finding.fix) == (Status.PASS, None)
    assert "drafts up to 2 tokens a round" in finding.message


def test_a_declared_head_that_cannot_draft_warns_with_its_reason_and_a_fix(tmp_path: Path) -> None:
    model = headed_model()
    model.drop("mtp.norm.weight")
    finding = judge_head(with_head(model.write(tmp_path)))

    assert finding is not None
    assert finding.status is Status.WARN
    assert "(inline_artifact_invalid)" in finding.message
    assert "lacks norm.weight" in finding.message
    assert finding.fix is not None


@pytest.mark.parametrize(
    ("killed", "mode", "reason"), [(True, "auto", "kill_switch_disabled"), (False, "off", "config_disabled")]
)
def test_a_head_that_was_switched_off_passes_and_names_the_reason(killed: bool, mode: Mode, reason: str) -> None:
    finding = judge_head(with_head(BUNDLED_MODEL_DIR, killed, mode))

    assert finding is not None
    assert finding.status is Status.PASS
    assert f"({reason})" in finding.message


def test_every_reason_is_said_with_a_fix_unless_it_was_asked_for() -> None:
    for reason in Reason:
        verdict = MtpVerdict(Declaration.DECLARED, Off(reason, "why"))
        finding = judge_head(ModelFacts("m", None, None, verdict))
        assert finding is not None
        assert f"({reason}): why." in finding.message
        assert (finding.status is Status.PASS) == (finding.fix is None)


def test_nothing_is_said_of_a_model_without_a_head(tmp_path: Path) -> None:
    assert judge_head(with_head(write_model(tmp_path))) is None
    assert judge_head(BUNDLED) is None


def test_the_heads_finding_stands_among_the_others(facts: Facts) -> None:
    findings = diagnose(replace(facts, models=(with_head(BUNDLED_MODEL_DIR),)))

    assert found(findings, "prediction head").status is Status.PASS


def test_a_full_disk_warns(facts: Facts, tmp_path: Path) -> None:
    findings = diagnose(replace(facts, data_dir=DirectoryFacts(tmp_path, True, 10 * 2**20)))

    assert found(findings, "data directory").status is Status.WARN


@pytest.mark.parametrize(
    ("system", "machine", "status"),
    [
        ("Darwin", "arm64", Status.PASS),
        ("Linux", "aarch64", Status.PASS),
        ("Darwin", "x86_64", Status.WARN),
        ("Windows", "AMD64", Status.WARN),
    ],
)
def test_platforms_that_are_not_tested_warn(system: str, machine: str, status: Status) -> None:
    assert judge_platform(replace(MACHINE, system=system, machine=machine)).status is status


@pytest.mark.parametrize(
    ("statuses", "strict", "failed"),
    [
        ([Status.PASS], True, False),
        ([Status.PASS, Status.WARN], False, False),
        ([Status.PASS, Status.WARN], True, True),
        ([Status.WARN, Status.FAIL], False, True),
    ],
)
def test_a_warning_fails_only_when_strict(statuses: list[Status], strict: bool, failed: bool) -> None:
    assert is_failure([Finding("x", status, "y") for status in statuses], strict) is failed
