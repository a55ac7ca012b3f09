"""Checks share nothing: threads with different sizes, a quarter of their calls illegal."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractError, contract, no_overlap, same_device

THREADS, CALLS = 16, 60
Row = Float32[Tensor, "n"]


@contract("n % 2 == 0", "m == n + 1", same_device(), no_overlap("out"))
def work(
    x: Row,
    items: list[Row],
    y: Row | Float32[Tensor, "n m"],
    *,
    out: Float32[Tensor, "m"] | None = None,
    scale: float = 1.0,
) -> int:
    return x.shape[0]


def run(thread: int, barrier: Barrier) -> list[str]:
    size = 2 * (thread + 1)
    x, y, out = torch.ones(size), torch.ones(size, size + 1), torch.ones(size + 1)
    faults = [
        lambda: work(x, [x, x[:-1]], y, out=out),
        lambda: work(x[:-1], [], x[:-1]),
        lambda: work(x, [], y, out=y[0]),
        lambda: work(x, [x], y.T, out=out),
    ]
    barrier.wait()
    problems = []
    for call in range(CALLS):
        if call % 4 == 3:
            try:
                faults[call // 4 % 4]()
                problems.append(f"thread {thread}: illegal call {call} accepted")
            except ContractError as error:
                if str(size) not in str(error) and str(size - 1) not in str(error):
                    problems.append(f"thread {thread}: somebody else's sizes in {error}")
        elif work(x, [x] * (call % 3), y, out=out) != size:
            problems.append(f"thread {thread}: wrong result of call {call}")
        elif work.contract.check(x, [], y) != {"n": size, "m": size + 1}:
            problems.append(f"thread {thread}: wrong sizes in call {call}")
    return problems


def test_sixteen_threads() -> None:
    barrier = Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(run, range(THREADS), [barrier] * THREADS))
    assert [problem for result in results for problem in result] == []
