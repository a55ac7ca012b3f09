"""A graph holds tensors and numbers; calls with other arguments are judged in it all the same."""

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import contracts
from contracts import ContractError, aligned, contract, values

Row = Float32[Tensor, "n"]


class Layout(enum.Enum):
    ROWS = 1
    COLUMNS = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Output(collections.OrderedDict[str, Any]):
    """As libraries of models make them: filled when it is made, and never updated."""

    def update(self, *_: Any, **more: Any) -> None:
        raise TypeError


class Pair(NamedTuple):
    first: int
    second: int


@dataclasses.dataclass
class Config:
    dim: int = 8


class Doubler:
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x


class Model(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.config = Config(dim)

    @contract(aligned(4))
    def forward(self, x: Float32[Tensor, "n {self.config.dim}"]) -> Tensor:
        return 2 * x


def verdicts(f: Callable[..., Any], *args: Any) -> list[list[str]]:
    """The rules that a call breaks, outside a graph and in one."""
    torch._dynamo.reset()
    found = []
    for g in (f, torch.compile(f, fullgraph=True, backend="eager")):
        try:
            g(*args)
        except ContractError as error:
            found.append([violation.message for violation in error.violations])
        else:
            found.append([])
    return found


def judged(f: Callable[..., Any], *args: Any) -> bool:
    outside, inside = verdicts(f, *args)
    assert outside == inside
    return not inside


def example(annotation: Any) -> Callable[..., Any]:
    """A rule on addresses, which the graph judges when it runs, beside one more argument."""

    def f(x: Row, y: Any) -> Tensor:
        return 2 * x

    f.__annotations__["y"] = annotation
    return contract(aligned(4))(f)


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (torch.dtype, torch.float16, "float16"),
        (torch.device, torch.device("cpu"), "cpu"),
        (torch.memory_format, torch.channels_last, 1),
        (torch.Size, torch.Size([2]), (2,)),
        (Layout, Layout.ROWS, 1),
        (Literal["sum", "mean"], "mean", "median"),
        (Literal[Layout.ROWS], Layout.ROWS, Layout.COLUMNS),
        (Access, Access.READ | Access.WRITE, 3),
        (Access, Access(0), 0),
        (Output, Output(a=torch.zeros(3)), {"a": 1}),
        (Iterable[int], range(3), 3),
        (Pair, Pair(1, 2), (1, 2)),
        (Config, Config(), None),
        (slice, slice(1), 1),
        (range, range(2), [0, 1]),
        (set[int], {1}, [1]),
        (bytes, b"a", "a"),
        (type[int], bool, str),
        (Callable[..., Tensor], Doubler(), 3),
        (Callable[..., Tensor], torch.relu, 3),
        (Callable[..., Tensor], torch.nn.Linear(2, 2), 3),
        (list[torch.dtype], [torch.int8], [8]),
        (Mapping[str, Row], collections.OrderedDict(a=torch.zeros(3)), {"a": 1}),
        (Sequence[Row], (torch.zeros(3),), (torch.zeros(4),)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["static", "debug"])
def test_every_kind_of_argument(annotation: Any, right: Any, wrong: Any, mode: str) -> None:
    with contracts.mode(mode):
        assert judged(example(annotation), torch.zeros(3), right)
        assert not judged(example(annotation), torch.zeros(3), wrong)


def test_attributes_that_axes_read() -> None:
    assert judged(Model(8), torch.zeros(3, 8))
    assert not judged(Model(8), torch.zeros(3, 7))

    @contract(aligned(4), values("x >= 0"))
    def f(x: Float32[Tensor, "n {config.dim}"], config: Config) -> Tensor:
        return 2 * x

    for mode in ("static", "debug"):
        with contracts.mode(mode):
            assert judged(f, torch.zeros(3, 8), Config(8))
            assert not judged(f, torch.zeros(3, 8), Config(7))
            assert judged(f, -torch.ones(3, 8), Config(8)) is (mode == "static")


def test_two_classes_of_one_name() -> None:
    def fresh() -> type:
        class Local: ...

        return Local

    one, other = fresh(), fresh()
    f, g = example(one), example(other)
    assert judged(f, torch.zeros(3), one())
    assert judged(g, torch.zeros(3), other())
    assert not judged(f, torch.zeros(3), other())


@pytest.mark.parametrize("mode", ["static", "debug", "async"])
@pytest.mark.parametrize("rule", [aligned(4), values("x >= 0")], ids=["address", "contents"])
def test_vmap_in_a_graph(rule: Any, mode: str) -> None:
    @contract("n > 1", rule)
    def f(x: Row, y: Row) -> Float32[Tensor, ""]:
        return (x * y).sum()

    def shared(x: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(f, in_dims=(1, None))(x, y)

    def nested(x: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(torch.vmap(f))(x, y)

    with contracts.mode(mode):
        assert judged(shared, torch.zeros(4, 3), torch.zeros(4))
        assert not judged(shared, torch.zeros(4, 3), torch.zeros(3))
        assert judged(nested, torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))
        assert not judged(nested, torch.zeros(2, 3, 1), torch.zeros(2, 3, 1))
