"""An axis name lives for one call: nothing leaks into inner, later, failed or parallel calls."""

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from contracts import ContractError, contract

Row = Float32[Tensor, "n"]


def row(size: int) -> Tensor:
    return torch.ones(size)


class Model(nn.Module):
    @contract
    def forward(self, x: Row) -> int:
        return x.shape[0]


@contract
def main(x: Row, model: nn.Module) -> tuple[int, int]:
    return model(x), model(torch.cat([x, x]))


@contract
def down(x: Row) -> list[int]:
    return [len(x), *(down(x[1:]) if len(x) > 1 else [])]


@contract
def fails(x: Row, *, error: bool = True) -> int:
    if error:
        raise ZeroDivisionError(f"of {x.shape[0]}")
    return x.shape[0]


def test_a_checked_forward_within_a_checked_function() -> None:
    model = Model()
    assert [main(row(4), model), main(row(6), model)] == [(4, 8), (6, 12)]


def test_recursion() -> None:
    assert down(row(5)) == [5, 4, 3, 2, 1]


def test_an_exception_inside_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError, match="of 3"):
        fails(row(3))
    assert fails(row(5), error=False) == 5


def test_exceptions_inside_are_passed_on_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fails(row(3))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_refusal_leaves_nothing_behind() -> None:
    @contract
    def f(x: Row, y: Row) -> int:
        return x.shape[0]

    for size in (3, 4):
        with pytest.raises(ContractError):
            f(row(size), row(size + 1))
        assert f(row(size), row(size)) == size


def test_a_refusal_has_no_second_traceback() -> None:
    with pytest.raises(ContractError) as caught:
        main("x", Model())
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_contract_error_of_an_inner_call_is_not_taken_for_the_outers() -> None:
    with pytest.raises(ContractError, match=r"^Model.forward refused"):
        contract(lambda model: model(torch.ones(3).double()))(Model())
