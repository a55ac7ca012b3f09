"""Arguments that are no tensors: simple types by isinstance, everything else by beartype."""

import collections.abc
import enum
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable

import beartype.door
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract


class Mode(enum.Enum):
    FAST = 1


class User:
    pass


class Child(User):
    pass


@runtime_checkable
class Sized(Protocol):
    def __len__(self) -> int: ...


class Settings(TypedDict):
    width: int


VALUES = [
    None,
    True,
    0,
    3,
    -1.5,
    2j,
    "fast",
    b"x",
    [1, 2],
    ["a"],
    [],
    (1, "a"),
    (1, 2),
    {"a": 1},
    {"width": 1},
    {1, 2},
    Mode.FAST,
    User(),
    Child(),
    User,
    Child,
    len,
    torch.float32,
    torch.device("cpu"),
    torch.Size([2]),
    torch.zeros(2),
    range(3),
]

ANNOTATIONS: list[Any] = [
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    None,
    object,
    int | float,
    int | None,
    float | str | None,
    Literal["fast", "slow"],
    Literal[1, None, True],
    list[int],
    list[str] | None,
    dict[str, int],
    tuple[int, str],
    tuple[int, ...],
    set[int],
    collections.abc.Sequence[int],
    collections.abc.Iterable,
    Callable,
    Callable[[Tensor], Tensor],
    Callable[[Float32[Tensor, "n"]], Float32[Tensor, "n"]] | None,
    type[User],
    type,
    Mode,
    User,
    Sized,
    Settings,
    torch.dtype,
    torch.device,
    torch.Size,
]


def annotated(annotation: Any):
    def f(x): ...

    f.__annotations__ = {"x": annotation}
    return f


def bearable(value: Any, annotation: Any) -> bool:
    """beartype looks at one random item of a container: asked often, it finds a wrong one."""
    return all(beartype.door.is_bearable(value, annotation) for _ in range(30))


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_the_verdict_is_beartypes(annotation: Any) -> None:
    f = contract(annotated(annotation))
    oracle = [bearable(value, annotation) for value in VALUES]
    assert [f.contract.passes(value) for value in VALUES] == oracle
    assert [not f.contract.violations(value) for value in VALUES] == oracle


@pytest.mark.parametrize("annotation", [int, float, bool, str, int | None, User, None])
def test_simple_types_are_tested_inline(annotation: Any) -> None:
    source = contract(annotated(annotation)).contract.source
    assert "bearable" not in source


@pytest.mark.parametrize(
    ("annotation", "given", "text"),
    [
        (int, "3", "x is '3', expected int"),
        (float, 3, "x is 3, expected float"),
        (int | None, 1.5, "x is 1.5, expected int"),
        (Literal["a", "b"], "c", "x is 'c', expected Literal['a', 'b']"),
        (list[int], [1, "2"], "x[1] is '2', expected int"),
        (str, torch.zeros(2), "x is float32[2] cpu, expected str"),
        (User, 3, "x is 3, expected User"),
    ],
)
def test_a_refusal_says_what_came(annotation: Any, given: Any, text: str) -> None:
    with pytest.raises(ContractError) as caught:
        contract(annotated(annotation))(given)
    assert caught.value.violations[0].message == text


@pytest.mark.parametrize("annotation", [3, "3 +", "nowhere", tuple[int, *tuple[str, ...]]], ids=str)
def test_what_cannot_be_judged_is_a_definition_error(annotation: Any) -> None:
    with pytest.raises(ContractDefinitionError, match="'x'"):
        contract(annotated(annotation))


@pytest.mark.parametrize(
    ("annotation", "wrong"),
    [
        (list[int], [*range(50), "x"]),
        (tuple[int, ...], (*range(50), "x")),
        (dict[str, int], dict.fromkeys("abcdefgh", 1) | {"x": "x"}),
        (dict[str, int], dict.fromkeys("abcdefgh", 1) | {1: 1}),
        (list[list[int]], [[1], [1, 2, "x"]]),
        (list[Literal["a"]], ["a"] * 50 + ["b"]),
    ],
    ids=str,
)
def test_every_item_is_judged_every_time(annotation: Any, wrong: Any) -> None:
    f = contract(annotated(annotation))
    assert [f.contract.passes(wrong) for _ in range(30)] == [False] * 30
    assert [f.contract.accepts(wrong) for _ in range(30)] == [False] * 30


def test_keywords_that_are_unpacked_are_a_definition_error() -> None:
    def f(**settings: Unpack[Settings]) -> None: ...

    with pytest.raises(ContractDefinitionError, match="'settings'"):
        contract(f)
