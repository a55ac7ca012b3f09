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
    from .verdict import Trial

MARKER = "tensor_contract"
FIXTURE = "contract_case"

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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(fn, given=None): run the test for every call generated from fn's contract, "
        f"as {FIXTURE}",
    )
    config.stash[SESSION] = Coverage()
    config.stash[TOKEN] = current.set(config.stash[SESSION])


def pytest_unconfigure(config: pytest.Config) -> None:
    if TOKEN in config.stash:
        current.reset(config.stash[TOKEN])
        del config.stash[TOKEN]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    if FIXTURE not in metafunc.fixturenames:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {MARKER} needs `{FIXTURE}`")
    if "fn" not in marker.kwargs:
        # pytest takes a lone positional function for the one that is to be marked.
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: write {MARKER}(fn=...)")
    from .verdict import subject

    tested = subject(marker.kwargs["fn"], marker.kwargs.get("given"))
    tested.declare()
    trials = list(tested.trials())
    metafunc.parametrize(FIXTURE, trials, ids=[trial.id for trial in trials])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """The verdict comes first, so that a test whose body is `...` tests something."""
    callspec = getattr(pyfuncitem, "callspec", None)
    if pyfuncitem.get_closest_marker(MARKER) is not None and callspec is not None:
        trial: Trial = callspec.params[FIXTURE]
        if failure := _failure(trial):
            pytest.fail(failure, pytrace=False)
    return (yield)


def _failure(trial: Trial) -> str | None:
    try:
        trial.check()
    except AssertionError as failure:
        return str(failure)
    return None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    session = config.stash[SESSION]
    wanted = config.getoption("--contract-coverage")
    if not session.tallies and wanted is None:
        return
    terminalreporter.section("contract coverage")
    for line in session.lines():
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
