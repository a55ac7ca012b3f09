"""The pytest plugin: generated cases as test items, and a report of which rules were seen broken.

Imports nothing but pytest until a test asks for a contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Token
from typing import TYPE_CHECKING, Any

import pytest

from .coverage import Coverage, current

if TYPE_CHECKING:
    from .parity import ParityTrial
    from .verdict import Trial

CONTRACT, CONTRACT_CASE = "tensor_contract", "contract_case"
PARITY, PARITY_CASE = "tensor_parity", "parity_case"

SESSION = pytest.StashKey[Coverage]()
TOKEN = pytest.StashKey[Token[Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contracts", "tensor contracts")
    group.addoption(
        "--contract-coverage",
        type=float,
        metavar="PERCENT",
        help="fail when fewer of the rules and facts of the tested contracts were seen broken",
    )
    group.addoption(
        "--contract-backend",
        metavar="NAME",
        help="compare only this backend of each operation with its reference",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{CONTRACT}(fn, given=None): run the test for every call generated from fn's contract, "
        f"as {CONTRACT_CASE}",
    )
    config.addinivalue_line(
        "markers",
        f"{PARITY}(op): run the test for every case of an operation on each of its backends, "
        f"as {PARITY_CASE}",
    )
    config.stash[SESSION] = Coverage()
    config.stash[TOKEN] = current.set(config.stash[SESSION])


def pytest_unconfigure(config: pytest.Config) -> None:
    if TOKEN in config.stash:
        current.reset(config.stash[TOKEN])
        del config.stash[TOKEN]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (marker := _marker(metafunc, CONTRACT, CONTRACT_CASE, "fn")) is not None:
        from .subjects import subject
        from .verdict import trials

        tested = subject(marker.kwargs["fn"], marker.kwargs.get("given"))
        tested.declare()
        cases = list(trials(tested))
        metafunc.parametrize(CONTRACT_CASE, cases, ids=[case.id for case in cases])
    if (marker := _marker(metafunc, PARITY, PARITY_CASE, "op")) is not None:
        from .parity import op_cases

        backend = metafunc.config.getoption("--contract-backend")
        compared = list(op_cases(marker.kwargs["op"]).trials(backend))
        metafunc.parametrize(PARITY_CASE, compared, ids=[case.id for case in compared])


def _marker(metafunc: pytest.Metafunc, name: str, fixture: str, subject: str) -> pytest.Mark | None:
    marker = metafunc.definition.get_closest_marker(name)
    where = metafunc.definition.nodeid
    if marker is None:
        return None
    if subject not in marker.kwargs:
        # pytest takes a lone positional function for the one that is to be marked.
        raise pytest.UsageError(f"{where}: write pytest.mark.{name}({subject}=...)")
    if fixture not in metafunc.fixturenames:
        raise pytest.UsageError(f"{where}: a test marked {name} takes `{fixture}`")
    return marker


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """The verdict comes first, so that a test whose body is `...` tests something."""
    callspec = getattr(pyfuncitem, "callspec", None)
    params = callspec.params if callspec is not None else {}
    if pyfuncitem.get_closest_marker(CONTRACT) is not None and CONTRACT_CASE in params:
        _verdict(params[CONTRACT_CASE])
    if pyfuncitem.get_closest_marker(PARITY) is not None and PARITY_CASE in params:
        case: ParityTrial = params[PARITY_CASE]
        if reasons := case.refusals():
            pytest.skip("; ".join(reasons))
        _verdict(case)
    return (yield)


def _verdict(trial: Trial | ParityTrial) -> None:
    failure = None
    try:
        trial.check()
    except AssertionError as error:
        failure = str(error)
    if failure is not None:
        pytest.fail(failure, pytrace=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    session = config.stash[SESSION]
    wanted = config.getoption("--contract-coverage")
    ran = any(tally.calls for tally in session.tallies.values())
    if config.option.collectonly or (not ran and wanted is None):
        return
    terminalreporter.section("contract coverage")
    for line in session.lines(idle=wanted is not None):
        terminalreporter.line(line)
    missed = wanted is not None and _misses(session, wanted)
    colour = {"red": True} if missed else {"green": True}
    needed = f", {wanted:g} % needed" if wanted is not None else ""
    what = f"{session.percent:.1f} % exercised" if session.tallies else "no contract was tested"
    terminalreporter.line(f"{what}{needed}", **colour)


def _misses(session: Coverage, wanted: float) -> bool:
    return not session.tallies or session.percent < wanted


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    workeroutput = getattr(config, "workeroutput", None)
    if workeroutput is not None:  # a worker of pytest-xdist: the controller reports
        workeroutput["contract_coverage"] = config.stash[SESSION].to_data()
        return
    wanted = config.getoption("--contract-coverage")
    if wanted is None or config.option.collectonly:
        return
    if session.exitstatus == pytest.ExitCode.OK and _misses(config.stash[SESSION], wanted):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[SESSION].merge(getattr(node, "workeroutput", {}).get("contract_coverage", {}))
