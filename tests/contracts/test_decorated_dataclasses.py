"""Dataclasses: `@contract` above `@dataclass` checks what its `__init__` takes."""

import copy
import pickle
import sys
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract, same_dtype

Rows = Float32[Tensor, "batch width"]


def rows(batch: int = 2, width: int = 3) -> Tensor:
    return torch.ones(batch, width)


@contract("width > 1")
@dataclass
class Plain:
    x: Rows
    y: Float32[Tensor, "batch"] | None = None
    many: list[Rows] = field(default_factory=list)
    made: Rows = field(default_factory=rows)
    scale: InitVar[float] = 1.0

    def __post_init__(self, scale: float) -> None:
        self.x = self.x * scale


def test_right_fields_are_accepted() -> None:
    assert Plain(rows(), torch.ones(2), [rows()]).many[0].shape == (2, 3)
    assert Plain(rows(), scale=2.0).x.sum() == 12
    assert Plain(rows(4)).made.shape == (2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((rows().double(),), {}),
        ((rows(), torch.ones(3)), {}),
        ((rows(),), {"many": [rows(), rows(3)]}),
        ((rows(),), {"made": rows(3)}),
        ((rows(),), {"scale": "2"}),
        ((rows(2, 1),), {}),
    ],
    ids=["dtype", "axis", "item", "given instead of made", "InitVar", "rule"],
)
def test_wrong_fields_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="Plain refused this call"):
        Plain(*args, **kwargs)


def test_each_instance_gets_a_default_of_its_own() -> None:
    first, second = Plain(rows()), Plain(rows())
    assert first.many is not second.many
    assert first.made is not second.made


def test_the_contract_is_that_of_init() -> None:
    assert Plain.__init__.contract.check(rows()) == {"batch": 2, "width": 3}
    assert Plain.__name__ == "Plain"
    assert isinstance(Plain(rows()), Plain)


def test_copies_and_pickles() -> None:
    plain = Plain(rows(), torch.ones(2))
    assert torch.equal(copy.deepcopy(plain).x, plain.x)
    assert torch.equal(pickle.loads(pickle.dumps(plain)).x, plain.x)
    with pytest.raises(ContractError):
        replace(plain, y=torch.ones(3), scale=1.0)


@contract
@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    x: Rows
    y: Rows


def test_frozen_with_slots() -> None:
    frozen = Frozen(x=rows(), y=rows())
    assert hash(Frozen(x=frozen.x, y=frozen.y)) is not None
    with pytest.raises(AttributeError):
        frozen.x = rows()  # type: ignore[misc]
    with pytest.raises(ContractError, match="y axis 0"):
        Frozen(x=rows(), y=rows(3))


@contract(same_dtype())
@dataclass
class Child(Plain):
    index: Int32[Tensor, "batch"] = field(default_factory=lambda: torch.zeros(2, dtype=torch.int32))

    def __post_init__(self, scale: float) -> None:
        super().__post_init__(scale)


def test_inherited_fields_are_checked_with_the_childs_contract() -> None:
    with pytest.raises(ContractError, match="same_dtype") as caught:
        Child(rows(), index=torch.zeros(3, dtype=torch.int32))
    assert [fault.rule for fault in caught.value.violations] == ["index-batch", "same_dtype"]
    assert Plain(rows()).x.shape == (2, 3)
    with pytest.raises(ContractError):
        Child(rows().double())


def test_an_ordinary_class_with_its_own_init() -> None:
    @contract("width > 1")
    class Cache:
        def __init__(self, x: Rows, size: int = 4) -> None:
            self.x, self.size = x, size

    assert Cache(rows()).size == 4
    with pytest.raises(ContractError, match="Cache refused"):
        Cache(rows(2, 1))
    with pytest.raises(ContractError):
        Cache(rows(), "4")


def test_a_class_without_an_init_of_its_own_is_a_definition_error() -> None:
    with pytest.raises(ContractDefinitionError, match="above @dataclass"):

        @dataclass
        @contract
        class Below(Plain):
            pass

    with pytest.raises(ContractDefinitionError, match="no __init__"):

        @contract
        class Nothing(NamedTuple):
            x: Rows


def test_string_annotations_mean_what_they_meant_in_the_class_that_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "written_base.py").write_text(
        """
from __future__ import annotations
from dataclasses import InitVar, dataclass, field
from jaxtyping import Float32, Int32
from torch import Tensor
Rows = Float32[Tensor, "batch 3"]

@dataclass
class Base:
    Local = Int32[Tensor, "batch"]
    x: Rows
    index: Local
"""
    )
    (tmp_path / "written_child.py").write_text(
        """
from __future__ import annotations
from dataclasses import InitVar, dataclass
from jaxtyping import Float32
from torch import Tensor
from contracts import contract
from written_base import Base
Rows = Float32[Tensor, "batch 4"]

@contract
@dataclass
class Child(Base):
    y: Rows
    scale: InitVar[float]
"""
    )
    try:
        from written_child import Child  # type: ignore[import-not-found]

        index = torch.zeros(2, dtype=torch.int32)
        assert Child(rows(2, 3), index, rows(2, 4), 1.0).y.shape == (2, 4)
        with pytest.raises(ContractError) as caught:
            Child(rows(2, 4), index.long(), rows(2, 3), "1")
        assert {fault.rule for fault in caught.value.violations} == {
            "x-axis1",
            "index-dtype",
            "y-axis1",
            "scale-type",
        }
    finally:
        for name in ("written_base", "written_child"):
            sys.modules.pop(name, None)
