"""Optional is one thing however it is spelled; a branch of a union that fails binds nothing."""

from __future__ import annotations

import typing
from types import NoneType
from typing import Annotated, Any, NewType, Optional, TypeAlias, TypeVar, Union

import pytest
import torch
from jaxtyping import BFloat16, Float16, Float32, Int32
from torch import Tensor

from contracts import ContractError, contract

Row = Float32[Tensor, "n"]
Alias: TypeAlias = Row
Named = NewType("Named", Row)  # type: ignore[valid-newtype]
Bound = TypeVar("Bound", bound=Row)
Bare = TypeVar("Bare")
Constrained = TypeVar("Constrained", Float32[Tensor, "n"], Int32[Tensor, "n"])

OPTIONALS: list[Any] = [
    Row | None,
    None | Row,
    Optional[Row],
    Union[Row, None],
    Union[None, Row],
    Union[Row, NoneType],
    Annotated[Row | None, "documentation"],
    Annotated[Row, "documentation"] | None,
    Optional[Optional[Row]],
    Union[Row, Annotated[None, "nothing"]],
    Optional[Alias],
    Optional[Named],
    Optional["Row"],
    "Row | None",
    "Optional[Row]",
]


def row(size: int = 3) -> Tensor:
    return torch.zeros(size)


def with_optional(annotation: Any):
    def f(x, y=None): ...

    f.__annotations__ = {"x": Row, "y": annotation}
    return contract(f)


@pytest.mark.parametrize("annotation", OPTIONALS, ids=str)
def test_every_spelling_of_optional(annotation: Any) -> None:
    f = with_optional(annotation)
    f(row())
    f(row(), None)
    f(row(), row())
    for wrong in (row(4), row().double(), 1, "x", [row()]):
        with pytest.raises(ContractError, match="y"):
            f(row(), wrong)


@pytest.mark.parametrize("annotation", [Row, "Row", Annotated[Row, "x"], list[Row], int])
def test_a_default_of_none_makes_an_argument_optional(annotation: Any) -> None:
    f = with_optional(annotation)
    f(row())
    f(row(), None)
    with pytest.raises(ContractError):
        f(row(), "x")


@pytest.mark.parametrize(
    "annotation",
    [Alias, Named, Bound, Annotated[Row, 1, 2], typing.Final[Row], Constrained],
    ids=str,
)
def test_aliases_and_wrappers_mean_what_they_wrap(annotation: Any) -> None:
    f = with_optional(annotation)
    f(row(), row())
    for wrong in (row(4), row().double(), 1):
        with pytest.raises(ContractError):
            f(row(), wrong)


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="Python 3.12 has `type`")
def test_the_type_statement() -> None:
    scope: dict[str, Any] = {"Row": Row}
    exec("type T = Row\ntype U = list[T] | None", scope)
    with_optional(scope["T"])(row(), row())
    with pytest.raises(ContractError):
        with_optional(scope["U"])(row(), [row(4)])


def test_a_type_variable_without_a_bound_is_anything() -> None:
    with_optional(Bare)(row(), object())


def test_a_required_optional_has_no_default() -> None:
    @contract
    def f(x: Row | None, y: Row | None) -> None: ...

    f(None, None)
    f(None, row())
    with pytest.raises(TypeError, match="missing"):
        f(None)  # type: ignore[call-arg]


def test_none_where_it_is_not_allowed() -> None:
    @contract
    def f(x: Row, y: int) -> None: ...

    with pytest.raises(ContractError, match="x is None"):
        f(None, 1)
    with pytest.raises(ContractError, match="y is None"):
        f(row(), None)


def test_a_union_of_shapes() -> None:
    @contract
    def f(x: Float32[Tensor, "n m"] | Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> None: ...

    assert f.contract.check(torch.zeros(3, 4), row()) == {"n": 3, "m": 4}
    assert f.contract.check(row(), row()) == {"n": 3}
    for wrong in (row(4), torch.zeros(4, 3), torch.zeros(3, 4, 5), row().double(), 1):
        with pytest.raises(ContractError):
            f(wrong, row())


def test_a_branch_that_fails_binds_nothing() -> None:
    @contract
    def f(
        x: Float32[Tensor, "n n"] | Float32[Tensor, "m n"],
        y: Float32[Tensor, "k k*2"] | Float32[Tensor, "m k"],
    ) -> None: ...

    assert f.contract.check(torch.zeros(3, 4), torch.zeros(3, 5)) == {"m": 3, "n": 4, "k": 5}
    assert f.contract.check(torch.zeros(4, 4), torch.zeros(3, 6)) == {"n": 4, "k": 3}
    assert not f.contract.accepts(torch.zeros(3, 4), torch.zeros(4, 5))


def test_a_union_says_why_each_branch_failed() -> None:
    @contract
    def f(x: Float32[Tensor, "n n"] | Int32[Tensor, "n"]) -> None: ...

    with pytest.raises(ContractError) as caught:
        f(torch.zeros(3, 4))
    (fault,) = caught.value.violations
    assert fault.rule == "x-type"
    assert "x axis 1 (n) is 4, expected 3" in fault.message
    assert "x is torch.float32, expected torch.int32" in fault.message


def test_a_union_of_tensors_and_values() -> None:
    @contract("n > 1")
    def f(x: Row | float | list[Row] | None, *, y: Float16[Tensor, "n"] | BFloat16[Tensor, "n"]):
        return x

    y = row().half()
    for right in (row(), 1.0, None, [], [row(), row()]):
        assert f(right, y=y) is right
    for wrong in (row(2), "x", [row(), row(2)], (row(),), row().half()):
        with pytest.raises(ContractError):
            f(wrong, y=y)
    with pytest.raises(ContractError, match="n > 1"):
        f(1.0, y=y[:1])
    with pytest.raises(ContractError):
        f(1.0, y=y.float())


def test_unions_do_not_depend_on_the_order_of_arguments() -> None:
    first = Float32[Tensor, "n m"] | Float32[Tensor, "m n"]

    @contract
    def f(x: first, y: Row) -> None: ...

    @contract
    def g(y: Row, x: first) -> None: ...

    for shape in ((3, 4), (4, 3), (4, 4), (3, 3)):
        x = torch.zeros(shape)
        assert f.contract.accepts(x, row()) == g.contract.accepts(row(), x) == (3 in shape)


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="Python 3.12 has `def f[T]`")
def test_type_parameters_of_a_function() -> None:
    scope: dict[str, Any] = {"Row": Row}
    exec("def f[T: Row, U](x: T, y: list[T], z: U) -> T: return x", scope)
    f = contract(scope["f"])
    f(row(), [row()], object())
    with pytest.raises(ContractError):
        f(row(), [row(4)], None)
