"""Methods of every kind keep their binding; `self` and `cls` are passed on and never checked."""

import inspect
import pickle
from abc import ABC, abstractmethod
from typing import Any, Self

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract

Row = Float32[Tensor, "n"]


def row(size: int = 3) -> Tensor:
    return torch.ones(size)


class Base:
    width = 3

    def __init__(self, dim: int = 3) -> None:
        self.dim = dim

    @contract("n > 1")
    def method(self, x: Row, y: Row | None = None) -> tuple[Any, ...]:
        """A method."""
        return self, x.shape[0]

    @staticmethod
    @contract("n > 1")
    def static_below(x: Row) -> int:
        return x.shape[0]

    @contract("n > 1")
    @staticmethod
    def static_above(x: Row) -> int:
        return x.shape[0]

    @classmethod
    @contract("n > 1")
    def class_below(cls, x: Row) -> tuple[Any, ...]:
        return cls, x.shape[0]

    @contract("n > 1")
    @classmethod
    def class_above(cls, x: Row) -> tuple[Any, ...]:
        return cls, x.shape[0]

    @contract("n > 1")
    def typed_self(self: Self, x: Row) -> tuple[Any, ...]:
        return self, x.shape[0]

    @contract
    def sized(self, x: Float32[Tensor, "{self.dim}"]) -> int:
        return x.shape[0]

    @classmethod
    @contract
    def class_sized(cls, x: Float32[Tensor, "{cls.width}"]) -> int:
        return x.shape[0]

    @property
    @contract
    def doubled(self) -> int:
        return 2 * self.dim

    @contract
    def __matmul__(self, other: Row) -> int:
        return other.shape[0]


class Child(Base):
    @contract("n % 2 == 0")
    def method(self, x: Row, y: Row | None = None) -> tuple[Any, ...]:
        return super().method(x, y)


NAMES = ["method", "static_below", "static_above", "class_below", "class_above", "typed_self"]


@pytest.mark.parametrize("name", NAMES)
def test_called_through_an_instance(name: str) -> None:
    base = Base()
    result = getattr(base, name)(row())
    assert result in (3, (base, 3), (Base, 3))
    assert getattr(base, name)(x=row()) == result
    with pytest.raises(ContractError, match="n > 1"):
        getattr(base, name)(row(1))
    with pytest.raises(ContractError, match="float32"):
        getattr(base, name)(row().double())
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        getattr(base, name)()


@pytest.mark.parametrize("name", NAMES[1:5])
def test_called_through_the_class(name: str) -> None:
    assert getattr(Child, name)(row()) in (3, (Child, 3))
    with pytest.raises(ContractError):
        getattr(Child, name)(row(1))


def test_called_unbound() -> None:
    base = Base()
    assert Base.method(base, row()) == (base, 3)
    with pytest.raises(ContractError):
        Base.method(base, row(1))


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_of_a_bound_method_takes_what_the_method_takes(name: str) -> None:
    its = getattr(Base(), name).contract
    assert its.check(row()) == {"n": 3}
    assert its.accepts(x=row())
    assert [fault.rule for fault in its.violations(row(1))] == ["n>1"]
    assert "self" not in [argument.name for argument in its.declaration.arguments]


def test_signatures_of_bound_methods() -> None:
    def twin(x: Row, y: Row | None = None) -> tuple[Any, ...]: ...

    assert inspect.signature(Base().method) == inspect.signature(twin)
    assert inspect.signature(Base.static_above).parameters.keys() == {"x"}
    assert inspect.signature(Base.class_above).parameters.keys() == {"x"}
    assert inspect.ismethod(Base().method)
    assert inspect.isfunction(Base.method)
    assert inspect.isfunction(Base.static_below)


def test_an_override_adds_its_own_contract() -> None:
    child = Child()
    assert child.method(row(4)) == (child, 4)
    with pytest.raises(ContractError, match="n % 2 == 0"):
        child.method(row(3))
    assert Base().method(row(3))[1] == 3


def test_sizes_from_self_and_cls() -> None:
    assert Base(4).sized(row(4)) == 4
    assert Base.class_sized(row(3)) == 3
    with pytest.raises(ContractError, match=r"x axis 0 \(self.dim\) is 3, expected 4"):
        Base(4).sized(row(3))
    with pytest.raises(ContractError, match="expected 3"):
        Child.class_sized(row(4))


def test_an_attribute_that_is_missing_is_named() -> None:
    base = Base()
    del base.dim
    with pytest.raises(ContractError, match="dim"):
        base.sized(row(4))


def test_properties_and_operators() -> None:
    assert Base(4).doubled == 8
    assert Base() @ row() == 3
    with pytest.raises(ContractError):
        Base() @ row().double()


def test_abstract_methods_stay_abstract() -> None:
    class Shape(ABC):
        @abstractmethod
        @contract
        def area(self, x: Row) -> int: ...

    with pytest.raises(TypeError, match="abstract"):
        Shape()  # type: ignore[abstract]


def test_bound_methods_pickle() -> None:
    method = pickle.loads(pickle.dumps(Child(5).method))
    assert method.__self__.dim == 5
    with pytest.raises(ContractError):
        method(row(1))


def test_self_that_is_a_tensor_is_an_argument_of_a_function() -> None:
    @contract("n > 1")
    def relu(self: Row) -> Row:
        return self.relu()

    assert relu(row()).tolist() == [1.0] * 3
    with pytest.raises(ContractError, match="self is"):
        relu(row().double())


def test_an_axis_may_not_be_called_like_the_receiver() -> None:
    with pytest.raises(ContractDefinitionError, match="'self'"):

        class Wrong:
            @contract
            def method(self, x: Float32[Tensor, "self"]) -> None: ...
