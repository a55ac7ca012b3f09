"""String annotations are read where they were written, or refused; never silently unchecked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract

if TYPE_CHECKING:
    from elsewhere import OnlyWhileChecking  # type: ignore[import-not-found]

Rows = Float32[Tensor, "batch width"]
GROUPS = 4


def rows(batch: int = 2, width: int = 3) -> Tensor:
    return torch.ones(batch, width)


def refuses(function, *args: object) -> bool:
    try:
        function(*args)
    except ContractError:
        return True
    return False


@contract
def module_level(x: Rows, y: Float32[Tensor, "batch"] | None = None) -> Rows:
    return x


def test_annotations_are_strings_here() -> None:
    assert module_level.__annotations__["x"] == "Rows"


def test_a_function_of_the_module() -> None:
    assert module_level(rows(), torch.ones(2)).shape == (2, 3)
    assert refuses(module_level, rows().double())
    assert refuses(module_level, rows(), torch.ones(3))


def test_a_local_alias() -> None:
    Local = Float32[Tensor, "batch 3"]

    @contract
    def f(x: Local) -> Local:
        return x

    assert f(rows()).shape == (2, 3)
    assert refuses(f, rows(2, 4))


def test_a_local_alias_of_an_outer_function() -> None:
    Outer = Float32[Tensor, "batch 3"]

    def make():
        Inner = Float32[Tensor, "batch"]

        @contract()
        def f(x: Outer, y: Inner) -> None: ...

        return f

    f = make()
    assert not refuses(f, rows(), torch.ones(2))
    assert refuses(f, rows(2, 4), torch.ones(2))
    assert refuses(f, rows(), torch.ones(3))


def test_the_nearest_alias_wins() -> None:
    Rows = Float32[Tensor, "batch 5"]  # noqa: F841 - the annotation's text finds it

    def make():
        @contract
        def f(x: Rows) -> None: ...

        return f

    assert not refuses(make(), rows(2, 5))
    assert refuses(make(), rows())


def test_an_alias_in_a_class_body() -> None:
    class Model:
        Local = Float32[Tensor, "batch 3"]
        WIDTH = 3

        @contract
        def forward(self, x: Local, y: Float32[Tensor, "{WIDTH}"]) -> Local:
            return x

        @staticmethod
        @contract
        def helper(x: Local) -> Local:
            return x

    assert Model().forward(rows(), torch.ones(3)).shape == (2, 3)
    assert refuses(Model().forward, rows(2, 4), torch.ones(3))
    assert refuses(Model().forward, rows(), torch.ones(4))
    assert refuses(Model.helper, rows(2, 4))


def test_an_alias_that_the_function_closes_over() -> None:
    Closed = Float32[Tensor, "batch 3"]

    def f(x: Closed) -> object:
        return Closed

    def decorate(function):
        return contract(function)

    assert not refuses(decorate(f), rows())
    assert refuses(decorate(f), rows(2, 4))


def test_a_constant_in_braces() -> None:
    heads = 3

    @contract
    def f(x: Float32[Tensor, "{heads} {GROUPS} {heads}*{GROUPS} n {n}*2"], n: int = 5) -> int:
        return heads

    assert not refuses(f, torch.ones(3, 4, 12, 5, 10))
    assert refuses(f, torch.ones(3, 4, 13, 5, 10))
    assert refuses(f, torch.ones(4, 4, 12, 5, 10))
    assert refuses(f, torch.ones(3, 4, 12, 5, 11))


def test_nested_strings() -> None:
    @contract
    def f(x: list["Rows"], y: "Rows | None" = None) -> None: ...

    assert not refuses(f, [rows()], rows())
    assert refuses(f, [rows(), rows(3)])
    assert refuses(f, [rows()], rows(3))


def test_a_name_that_only_type_checkers_see_is_a_definition_error() -> None:
    with pytest.raises(ContractDefinitionError, match=r"'x'.*OnlyWhileChecking"):

        @contract
        def f(x: OnlyWhileChecking, y: Rows) -> None: ...


def test_a_name_that_exists_only_later_is_a_definition_error() -> None:
    with pytest.raises(ContractDefinitionError, match="Later"):

        @contract
        def f(x: list[Later]) -> None: ...

    Later = Rows


def test_a_broken_annotation_names_its_argument() -> None:
    with pytest.raises(ContractDefinitionError, match="'y'"):

        @contract
        def f(x: Rows, y: Float32["Tensor", 3]) -> None: ...


def test_the_return_annotation_is_read_too() -> None:
    with pytest.raises(ContractDefinitionError, match="OnlyWhileChecking"):

        @contract
        def f(x: Rows) -> OnlyWhileChecking: ...
