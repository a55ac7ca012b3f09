"""What a user of the pytest plugin sees: ids, failures, skips, the summary and the exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401

# pytester forgets what is first imported inside of it; a second copy of these would be another's.
import backends
from contracts.testing import parity, verdict

pytest_plugins = ("pytester",)
LOADED = (backends, parity, verdict)

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ("-p", "contracts.testing.plugin", "-p", "no:cacheprovider")

FUNCTION = """
import pytest, torch
from jaxtyping import Float32
from torch import Tensor
from contracts import ContractError, contract

@contract("head_dim % 2 == 0")
def rotate(x: Float32[Tensor, "seq_len head_dim"]): ...
"""

OPERATION = """
import pytest, torch
from jaxtyping import Float32
from torch import Tensor
from backends import Op
from contracts import contract

@contract("n < 100")
def halve_rows(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    '''Half of x.'''

def half(x: Tensor) -> Tensor:
    return x / 2

def not_half(x: Tensor) -> Tensor:
    return x / 2.001

halve_rows = Op(halve_rows, reference=half)
halve_rows.backend("right")(half)
halve_rows.backend("wrong", rules=["n > 3"])(not_half)
halve_rows.backend("elsewhere", needs="sm >= 1000")(not_half)
"""

CASES = """
import torch
from contracts.testing import Tolerance

class Inputs:
    def __init__(self, x):
        self.arguments = {"x": x}

class Case:
    def __init__(self, n):
        self.name, self.n = f"n{n}", n
    def build(self, device):
        return Inputs(torch.arange(1.0, self.n + 1))

CASES = (Case(2), Case(5))
TOLERANCES = {"wrong": Tolerance(relative=1e-6)}
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run pytest on some test code, in this process, with the plugin."""

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(*PLUGIN, *arguments)

    return run


def test_a_test_without_a_body_runs_dozens_of_calls(run) -> None:
    result = run(
        FUNCTION
        + """
@pytest.mark.tensor_contract(fn=rotate)
def test_rotate(contract_case): ...
""",
        "-v",
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 24
    assert set(outcomes) == {"passed"}
    result.stdout.fnmatch_lines(
        [
            "*::test_rotate?legal: head_dim=0? PASSED*",
            "*::test_rotate?head_dim%2==0 broken: head_dim=3? PASSED*",
            "*contract coverage*",
            "rotate: * calls, 1 of 1 rules seen to fire, 3 of 3 facts seen to fire",
            "100.0 % exercised",
        ]
    )


def test_the_case_is_there_for_the_body(run) -> None:
    result = run(
        FUNCTION
        + """
@pytest.mark.tensor_contract(fn=rotate)
def test_rotate(contract_case):
    if contract_case.legal:
        assert contract_case.breaks is None
        rotate(**contract_case.arguments)
    else:
        with pytest.raises(ContractError) as refusal:
            rotate(**contract_case.arguments)
        assert [fault.rule for fault in refusal.value.violations] == [contract_case.breaks]
    exec(contract_case.source.replace("rotate(", "rotate.contract.violations("), {"rotate": rotate})
"""
    )
    assert set(result.parseoutcomes()) == {"passed"}


def test_a_defect_of_the_contract_fails(run) -> None:
    result = run(
        FUNCTION
        + """
@contract("n % 4 == 0", "n % 2 == 0")
def even(x: Float32[Tensor, "n"]): ...

@pytest.mark.tensor_contract(fn=even)
def test_even(contract_case): ...
""",
        "--contract-coverage=100",
    )
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "*test_even[[]defect: n%2==0[]]*",
            "n%2==0 is never broken alone: whatever breaks it breaks n%4==0 too",
            "  never exercised: n%2==0",
        ]
    )


def test_a_failure_shows_the_call_as_code(run) -> None:
    result = run(
        FUNCTION
        + """
def unchecked(x): ...
unchecked.contract = rotate.contract

@pytest.mark.tensor_contract(fn=unchecked)
def test_unchecked(contract_case): ...
"""
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "rotate, x-dtype broken: x as bfloat16",
            "the call has to break x-dtype alone, but",
            "  calling it raises nothing",
            "x = torch.zeros((4, 6), dtype=torch.bfloat16)",
        ]
    )
    result.stdout.no_fnmatch_line("*verdict.py*")


def test_a_suite_that_leaves_a_rule_unexercised_can_fail(run) -> None:
    source = (
        FUNCTION
        + """
@pytest.mark.tensor_contract(fn=rotate)
def test_rotate(contract_case): ...
"""
    )
    assert run(source, "--contract-coverage=100").ret == pytest.ExitCode.OK
    partial = run(source, "--contract-coverage=100", "-k", "not head_dim")
    assert partial.ret == pytest.ExitCode.TESTS_FAILED
    partial.stdout.fnmatch_lines(["  never exercised: head_dim%2==0", "75.0 % exercised, 100 %*"])
    assert run(source, "--contract-coverage=75", "-k", "not head_dim").ret == pytest.ExitCode.OK


def test_coverage_that_nothing_could_reach_fails(run) -> None:
    result = run("def test_nothing(): ...", "--contract-coverage=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no contract was tested, 1 % needed"])


def test_assertions_inside_tests_count_too(run) -> None:
    result = run(
        FUNCTION
        + """
from contracts.testing import assert_contract

def test_rotate():
    assert_contract(rotate)
""",
        "--contract-coverage=100",
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["rotate: * calls, 1 of 1 rules seen to fire, 3 of 3 facts *"])


def test_a_suite_without_contracts_is_left_alone(run) -> None:
    result = run(
        """
import pytest

@pytest.mark.gpu
@pytest.mark.contract
def test_of_somebody_else(): ...
"""
    )
    assert result.parseoutcomes()["passed"] == 1
    result.stdout.no_fnmatch_line("*contract coverage*")


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        ("tensor_contract(rotate, None)", "*write pytest.mark.tensor_contract(fn=...)*"),
        ("tensor_contract(fn=rotate)", "*a test marked tensor_contract takes `contract_case`*"),
    ],
)
def test_a_marker_used_wrongly_says_how(run, decorator: str, message: str) -> None:
    result = run(FUNCTION + f"\n@pytest.mark.{decorator}\ndef test_rotate(): ...\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])


def operation(pytester: pytest.Pytester, tests: str) -> None:
    package = pytester.mkpydir("halving")
    (package / "op.py").write_text(OPERATION)
    (package / "cases.py").write_text(CASES)
    pytester.syspathinsert()
    pytester.makepyfile("import pytest\nfrom halving.op import halve_rows\n" + tests)


CONFORMANCE = """
from contracts.testing import conformance
TestHalve = conformance(halve_rows)
"""


@pytest.fixture
def run_operation(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    def run(tests: str, *arguments: str) -> pytest.RunResult:
        for name in ("halving", "halving.op", "halving.cases"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        operation(pytester, tests)
        return pytester.runpytest_inprocess(*PLUGIN, "-rs", *arguments)

    return run


def test_an_operation_is_tested_in_one_line(run_operation) -> None:
    result = run_operation(CONFORMANCE, "-v")
    result.stdout.fnmatch_lines(
        [
            "*::TestHalve::test_contract[[]n<100 broken: n=100[]] PASSED*",
            "*::TestHalve::test_parity[[]right: n5[]] PASSED*",
            "*::TestHalve::test_parity[[]wrong: n2[]] SKIPPED*",
            "*::TestHalve::test_parity[[]wrong: n5[]] FAILED*",
            "*::TestHalve::test_parity[[]elsewhere: n2[]] SKIPPED*",
            "  the result is off by *, * allowed",
            "SKIPPED*: n > 3 does not hold*",
            "SKIPPED*: needs sm>=1000*",
        ],
        consecutive=False,
    )


def test_one_backend_can_be_picked(run_operation) -> None:
    result = run_operation(CONFORMANCE, "--contract-backend=right", "-k", "parity")
    assert result.parseoutcomes()["passed"] == 2
    assert "failed" not in result.parseoutcomes()


def test_a_backend_that_an_operation_does_not_have_is_skipped_with_those_it_has(
    run_operation,
) -> None:
    result = run_operation(CONFORMANCE, "--contract-backend=fast", "-k", "parity")
    assert set(result.parseoutcomes()) >= {"skipped"}
    result.stdout.fnmatch_lines(["SKIPPED*halve_rows has no backend fast: *right*reference*"])


def test_assert_parity_fails_where_nothing_ran(run_operation) -> None:
    result = run_operation(
        """
from contracts.testing import assert_parity

def test_right():
    assert_parity(halve_rows, backend="right")

def test_wrong():
    with pytest.raises(AssertionError, match="1 of 1 cases are wrong"):
        assert_parity(halve_rows, backend="wrong")

def test_elsewhere():
    with pytest.raises(AssertionError, match="nothing of halve_rows ran(.|\\\\s)*needs sm>=1000"):
        assert_parity(halve_rows, backend="elsewhere")
"""
    )
    assert result.parseoutcomes()["passed"] == 3


def test_loading_the_plugin_imports_no_torch() -> None:
    program = "import contracts.testing.plugin, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
