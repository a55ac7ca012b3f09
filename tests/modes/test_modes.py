"""Modes: by environment, by block, by contract; one for each thread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import contracts
from contracts import ContractError, contract, values

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import torch, contracts
from contracts import contract, values
from jaxtyping import Float32
from torch import Tensor

def plain(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x

decorated = contract(values("x > 0"))(plain)

class Layer:
    @contract
    def forward(self, x: Float32[Tensor, "n"]): ...

good, short, low = torch.ones(3), torch.ones(2), torch.zeros(3)
outcome = [contracts.current_mode(), decorated is plain, len(decorated.contract.rules)]
for call in (good, short), (low, good):
    try:
        decorated(*call)
        outcome.append("accepted")
    except contracts.ContractError:
        outcome.append("refused")
print(outcome)
"""


def in_mode(mode: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CONTRACTS_MODE"}
    if mode is not None:
        environment["CONTRACTS_MODE"] = mode
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        (None, ["static", False, 1, "refused", "accepted"]),
        ("", ["static", False, 1, "refused", "accepted"]),
        ("debug", ["debug", False, 1, "refused", "refused"]),
        ("async", ["async", False, 1, "refused", "accepted"]),
        ("off", ["off", True, 1, "accepted", "accepted"]),
    ],
)
def test_the_environment_sets_the_default_when_the_package_is_imported(
    mode: str | None, outcome: list[object]
) -> None:
    assert in_mode(mode).stdout.strip() == str(outcome)


def test_an_unknown_mode_in_the_environment_is_an_error() -> None:
    run = in_mode("fast")
    assert run.returncode != 0
    assert "CONTRACTS_MODE: 'fast' is not a mode" in run.stderr


@contract(values("x > 0"))
def double(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x


def verdict(x: Tensor, y: Tensor) -> str:
    try:
        double(x, y)
    except ContractError:
        return "refused"
    return "accepted"


GOOD, SHORT, LOW = torch.ones(3), torch.ones(2), torch.zeros(3)


@pytest.mark.parametrize(
    ("mode", "shape", "contents"),
    [
        ("static", "refused", "accepted"),
        ("debug", "refused", "refused"),
        ("async", "refused", "accepted"),
        ("off", "accepted", "accepted"),
    ],
)
def test_what_each_mode_judges(mode: str, shape: str, contents: str) -> None:
    with contracts.mode(mode):
        assert verdict(GOOD, GOOD) == "accepted"
        assert verdict(GOOD, SHORT) == shape
        assert verdict(LOW, GOOD) == contents
    with pytest.raises(ContractError) if mode == "async" else contracts.mode("static"):
        contracts.synchronize()


def test_blocks_nest_and_end_with_exceptions() -> None:
    with contracts.mode("off"):
        with pytest.raises(KeyError), contracts.mode("debug"):
            assert contracts.current_mode() == "debug"
            raise KeyError
        assert contracts.current_mode() == "off"
    assert contracts.current_mode() == "static"


def test_blocks_of_tasks_may_end_in_any_order() -> None:
    def block(name: str) -> Iterator[None]:
        with contracts.mode(name):
            yield

    first, second = block("off"), block("debug")
    next(first)
    next(second)
    assert next(first, None) is None
    assert contracts.current_mode() == "debug"
    assert next(second, None) is None
    assert contracts.current_mode() == "static"


def test_one_block_may_be_entered_again() -> None:
    off = contracts.mode("off")
    with off, contracts.mode("debug"), off:
        assert contracts.current_mode() == "off"
    assert contracts.current_mode() == "static"


def test_a_mode_decorates_a_function() -> None:
    @contracts.mode("debug")
    def inside() -> str:
        """Says it."""
        return contracts.current_mode()

    assert (inside(), contracts.current_mode(), inside.__doc__) == ("debug", "static", "Says it.")


async def coroutine() -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
def test_a_mode_does_not_decorate_what_runs_after_the_call(function: Any) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}, whose body runs after the call"):
        contracts.mode("debug")(function)


def test_off_leaves_alone_what_can_carry_no_contract() -> None:
    class Scale:
        def by(self, x: Float32[Tensor, "n"]) -> Tensor:
            return 2 * x

    declared = contract("n > 3", mode="off")
    method = declared(Scale().by)
    assert method(GOOD).tolist() == [2, 2, 2]
    guarded = method.contract.guard(torch.neg)
    assert guarded(GOOD).tolist() == [-1, -1, -1]
    assert guarded.contract is method.contract
    assert not hasattr(torch.neg, "contract")


def test_debug_does_not_judge_a_coroutine_as_the_result() -> None:
    class Twice:
        async def __call__(self, x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return 2 * x

    with contracts.mode("debug"):
        assert asyncio.run(contract("n > 1")(Twice())(GOOD)).tolist() == [2, 2, 2]


def test_an_unknown_mode_is_an_error() -> None:
    known = pytest.raises(ValueError, match="'fast' is not a mode; the modes are static, debug")
    with known, contracts.mode("fast"):
        raise AssertionError
    with pytest.raises(ValueError, match="contract: 'fast'"):
        contract(mode="fast")


@pytest.mark.parametrize("thread", ["static", "debug", "off"])
@pytest.mark.parametrize(
    ("own", "shape", "contents"),
    [
        ("static", "refused", "accepted"),
        ("debug", "refused", "refused"),
        ("off", "accepted", "accepted"),
    ],
)
def test_a_contract_s_own_mode_is_the_mode_of_all_its_calls(
    thread: str, own: str, shape: str, contents: str
) -> None:
    @contract(values("x > 0"), mode=own)
    def mine(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> None: ...

    with contracts.mode(thread):
        for y, wanted in (SHORT, shape), (GOOD, "accepted"):
            try:
                mine(GOOD, y)
                assert wanted == "accepted"
            except ContractError:
                assert wanted == "refused"
        try:
            mine(LOW, GOOD)
            assert contents == "accepted"
        except ContractError:
            assert contents == "refused"


def test_off_for_one_contract_returns_the_function_itself() -> None:
    def plain(x: Float32[Tensor, "n"]) -> None: ...

    decorated = contract(mode="off")(plain)
    assert decorated is plain
    assert decorated.contract.axes == ("n",)


def test_a_mode_belongs_to_its_thread() -> None:
    seen: dict[str, str] = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(10)
        seen["default"] = contracts.current_mode()
        with contracts.mode("debug"):
            seen["own"] = verdict(LOW, GOOD)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with contracts.mode("off"):
        inside.set()
        done.wait(10)
        assert verdict(GOOD, SHORT) == "accepted"
    thread.join()
    assert seen == {"default": "static", "own": "refused"}


def test_tasks_of_one_thread_share_its_mode() -> None:
    """As the documentation says: a block that awaits lends its mode to what runs meanwhile."""
    seen = []

    async def lender() -> None:
        with contracts.mode("debug"):
            await asyncio.sleep(0.01)

    async def borrower() -> None:
        await asyncio.sleep(0.001)
        seen.append(contracts.current_mode())

    async def main() -> None:
        await asyncio.gather(lender(), borrower())

    asyncio.run(main())
    assert seen == ["debug"]
    assert contracts.current_mode() == "static"
