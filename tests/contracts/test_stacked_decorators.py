"""Under and over jaxtyping and beartype, by hand and by their import hooks."""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import beartype
import pytest
import torch
from beartype.claw import beartype_package
from jaxtyping import Float32, install_import_hook, jaxtyped
from torch import Tensor

from contracts import ContractError, contract

Row = Float32[Tensor, "n"]
typed = jaxtyped(typechecker=beartype.beartype)


@typed
@contract("n > 1")
def below(x: Row, y: Row | None = None) -> Row:
    """Doubles."""
    return 2 * x


@contract("n > 1")
@typed
def above(x: Row, y: Row | None = None) -> Row:
    """Doubles."""
    return 2 * x


@contract("n > 1")
@beartype.beartype
def above_beartype(x: Row, y: Row | None = None) -> Row:
    """Doubles."""
    return 2 * x


@pytest.mark.parametrize("function", [below, above, above_beartype])
def test_stacked_by_hand(function: Callable[..., Tensor]) -> None:
    assert function(torch.ones(3), torch.ones(3)).tolist() == [2.0] * 3
    assert inspect.signature(function) == inspect.signature(inspect.unwrap(function))
    assert function.__doc__ == "Doubles."
    with pytest.raises(ContractError, match="n > 1"):
        function(torch.ones(1))


@pytest.mark.parametrize("function", [above, above_beartype])
@pytest.mark.parametrize("wrong", [(torch.ones(3), torch.ones(2)), (torch.ones(3).double(),)])
def test_the_outermost_judges_first(
    function: Callable[..., Tensor], wrong: tuple[Tensor, ...]
) -> None:
    with pytest.raises(ContractError):
        function(*wrong)
    with pytest.raises(Exception, match="below|type-check") as caught:
        below(*wrong)
    assert not isinstance(caught.value, ContractError)


PROGRAM = """
from __future__ import annotations
import dataclasses
from jaxtyping import Float32
from torch import Tensor
from contracts import contract

Row = Float32[Tensor, "n"]

@contract("n > 1")
def function(x: Row, y: Row | None = None) -> Row:
    return 2 * x

def plain(x: Row, y: Row) -> Row:
    return x

class Model:
    @contract("n > 1")
    def method(self, x: Row, y: Row | None = None) -> Row:
        return 2 * x

    @staticmethod
    @contract("n > 1")
    def static(x: Row, y: Row | None = None) -> Row:
        return 2 * x

    @classmethod
    @contract("n > 1")
    def of_class(cls, x: Row, y: Row | None = None) -> Row:
        return 2 * x

@contract("n > 1")
@dataclasses.dataclass
class Data:
    x: Row
    y: Row | None = None
"""

Package = Callable[[str], ModuleType]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes a package with the program under a name of its own and imports it."""
    made = []
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str) -> ModuleType:
        made.append(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "program.py").write_text(PROGRAM)
        return importlib.import_module(f"{name}.program")

    yield make
    for name in made:
        for module in (name, f"{name}.program"):
            sys.modules.pop(module, None)


def check(program: ModuleType, *, hooked: bool) -> None:
    model = program.Model()
    for call in (program.function, model.method, program.Model.static, program.Model.of_class):
        assert call(torch.ones(3), torch.ones(3)).tolist() == [2.0] * 3
        with pytest.raises(ContractError, match="n > 1"):
            call(torch.ones(1))
        with pytest.raises(Exception, match=r"expected|[Tt]ype-check|violates"):
            call(torch.ones(3), torch.ones(2))
    data = program.Data(torch.ones(3))
    assert dataclasses.asdict(data).keys() == {"x", "y"}
    with pytest.raises(ContractError, match="n > 1"):
        program.Data(torch.ones(1))
    if hooked:
        with pytest.raises(Exception, match=r"[Tt]ype-check|violates"):
            program.plain(torch.ones(3).double(), torch.ones(3))
    else:
        program.plain(torch.ones(3).double(), torch.ones(3))


def test_without_a_hook(package: Package) -> None:
    check(package("hook_none"), hooked=False)


def test_under_the_import_hook_of_jaxtyping(package: Package) -> None:
    with install_import_hook("hook_jaxtyping", "beartype.beartype"):
        program = package("hook_jaxtyping")
    check(program, hooked=True)


def test_under_the_import_hook_of_beartype(package: Package) -> None:
    beartype_package("hook_beartype")  # that package alone: not what torch imports meanwhile
    check(package("hook_beartype"), hooked=True)
