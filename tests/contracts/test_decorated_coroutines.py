"""Coroutine functions and generators: a wrong call is refused when it is made, before anything
is awaited or drawn."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractError, contract

Row = Float32[Tensor, "n"]


@contract("n > 1")
async def fetch(x: Row) -> Row:
    await asyncio.sleep(0)
    return 2 * x


@contract("n > 1")
def slices(x: Row) -> Generator[Tensor, int, str]:
    sent = yield x[:1]
    yield x[:sent]
    return "done"


@contract("n > 1")
async def stream(x: Row) -> AsyncIterator[Tensor]:
    for item in x:
        yield item


class Server:
    @contract("n > 1")
    async def fetch(self, x: Row) -> Row:
        return await fetch(x)

    @contract("n > 1")
    def slices(self, x: Row) -> Iterator[Tensor]:
        yield from x


def test_a_right_coroutine_is_awaited() -> None:
    assert asyncio.run(fetch(torch.ones(3))).tolist() == [2.0] * 3
    assert asyncio.run(Server().fetch(torch.ones(3))).tolist() == [2.0] * 3


@pytest.mark.parametrize("function", [fetch, stream, slices, Server().fetch, Server().slices])
def test_a_wrong_call_is_refused_at_once(function) -> None:
    with pytest.raises(ContractError, match="n > 1"):
        function(torch.ones(1))
    with pytest.raises(ContractError, match="float32"):
        function(torch.ones(3).double())


@pytest.mark.parametrize("function", [fetch, Server.fetch, Server().fetch, contract(fetch)])
def test_a_coroutine_function_says_so(function) -> None:
    assert inspect.iscoroutinefunction(function)
    assert asyncio.iscoroutinefunction(function)


def test_other_functions_do_not() -> None:
    assert not inspect.iscoroutinefunction(slices)
    assert not inspect.iscoroutinefunction(stream)
    assert not inspect.iscoroutinefunction(contract(lambda x: x))


def test_many_coroutines_at_once() -> None:
    async def gather() -> list[int]:
        results = await asyncio.gather(*(fetch(torch.ones(n)) for n in range(2, 30)))
        return [len(result) for result in results]

    assert asyncio.run(gather()) == list(range(2, 30))


def test_a_generator_can_be_sent_to_and_returns() -> None:
    generator = slices(torch.arange(3.0))
    assert isinstance(generator, Generator)
    assert next(generator).tolist() == [0.0]
    assert generator.send(2).tolist() == [0.0, 1.0]
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "done"


def test_an_async_generator_can_be_iterated() -> None:
    async def collect() -> list[float]:
        return [float(item) async for item in stream(torch.arange(3.0))]

    assert isinstance(stream(torch.ones(2)), AsyncGenerator)
    assert asyncio.run(collect()) == [0.0, 1.0, 2.0]


def test_decorated_twice() -> None:
    again = contract("n % 2 == 0")(slices)
    assert len(list(zip(again(torch.ones(2)), range(1), strict=False))) == 1
    with pytest.raises(ContractError):
        again(torch.ones(3))
