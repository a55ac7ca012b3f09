"""Containers of tensors are checked item by item, every item, the same way every time."""

from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypedDict

import pytest
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract

Feature = Float32[Tensor, "B C N"]


def feature(n: int = 3) -> Tensor:
    return torch.zeros(2, 4, n)


def annotated(annotation: Any):
    def f(x: Float32[Tensor, "B C"], feats: annotation, y: Float32[Tensor, "N"] | None = None): ...

    return f


ANNOTATIONS = [
    list[Feature],
    tuple[Feature, ...],
    tuple[Feature, Feature],
    dict[str, Feature],
    Sequence[Feature],
    Mapping[str, Feature],
    MutableMapping[str, Feature],
    list[Feature | Int32[Tensor, "B"]],
    Sequence[Feature] | None,
]


def pack(annotation: Any, *items: Tensor) -> Any:
    text = str(annotation)
    if "apping" in text or "dict" in text:
        return dict(zip("abc", items, strict=False))
    return tuple(items) if text.startswith("tuple") else list(items)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_every_item_is_checked_every_time(annotation: Any) -> None:
    f = contract(annotated(annotation))
    x, n = torch.zeros(2, 4), torch.zeros(3)
    right = pack(annotation, feature(), feature())
    for wrong in ((3, 4), (4, 3)):
        calls = [pack(annotation, *map(feature, wrong)) for _ in range(20)]
        assert [f.contract.accepts(x, call, n) for call in calls] == [False] * 20
        assert [f.contract.passes(x, call, n) for call in calls] == [False] * 20
    assert all(f.contract.passes(x, right, n) for _ in range(20))
    assert not f.contract.accepts(x, right, torch.zeros(4))
    assert not f.contract.accepts(torch.zeros(2, 5), right)
    assert not f.contract.accepts(x, pack(annotation, feature(), feature().double()))
    assert not f.contract.accepts(x, pack(annotation, feature(), "x"))
    assert not f.contract.accepts(x, feature())
    assert not f.contract.accepts(x, 3)


def test_the_first_wrong_item_is_named_as_the_caller_writes_it() -> None:
    f = contract(annotated(dict[str, list[Feature]]))
    with pytest.raises(ContractError) as caught:
        f(torch.zeros(2, 4), {"left": [feature()], "right": [feature(), feature(4)]})
    fault = caught.value.violations[0]
    assert fault.argument == "feats['right'][1]"
    assert fault.axis == 2
    assert fault.origin == "N is 3, from feats['left'][0] axis 2"
    assert fault.rule == "feats[][]-N"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Sequence[Feature], UserList([feature()])),
        (Sequence[Feature], (feature(),)),
        (Mapping[str, Feature], OrderedDict(a=feature())),
        (Mapping[str, Feature], UserDict(a=feature())),
        (list[Feature], []),
        (dict[str, Feature], {}),
        (tuple[Feature, ...], ()),
        (list[Any], [1, feature(7)]),
        (list[tuple[int, Feature]], [(1, feature()), (2, feature())]),
        (dict[str, tuple[Feature, float | None]], {"a": (feature(), None)}),
        (list[Feature | None], [None, feature(), None]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_right_containers(annotation: Any, value: Any) -> None:
    f = contract(annotated(annotation))
    f(torch.zeros(2, 4), value)
    assert f.contract.passes(torch.zeros(2, 4), value, None)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[Feature], (feature(),)),
        (tuple[Feature, ...], [feature()]),
        (tuple[Feature, Feature], (feature(),)),
        (tuple[Feature, Feature], (feature(),) * 3),
        (Sequence[Feature], {"a": feature()}),
        (Sequence[Feature], iter([feature()])),
        (Mapping[str, Feature], [feature()]),
        (dict[str, Feature], {1: feature()}),
        (dict[int, Feature], {"a": feature()}),
        (list[tuple[int, Feature]], [("1", feature())]),
        (list[Feature], [None]),
        (Sequence[Feature], "xy"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_containers(annotation: Any, value: Any) -> None:
    f = contract(annotated(annotation))
    with pytest.raises(ContractError, match="feats"):
        f(torch.zeros(2, 4), value)
    assert not f.contract.passes(torch.zeros(2, 4), value, None)


class Fields(TypedDict):
    x: Feature


class Pair(NamedTuple):
    x: Feature


@pytest.mark.parametrize(
    "annotation",
    [
        set[Tensor],
        frozenset[Tensor],
        deque[Feature],
        Iterable[Feature],
        dict[Feature, int],
        OrderedDict[str, Feature],
        tuple[Feature, *tuple[Feature, ...]],
        Fields,
        list[Fields],
    ],
    ids=str,
)
def test_what_cannot_be_checked_item_by_item_is_a_definition_error(annotation: Any) -> None:
    with pytest.raises(ContractDefinitionError, match="'feats'"):
        contract(annotated(annotation))


def test_a_named_tuple_is_judged_by_its_class() -> None:
    f = contract(annotated(Pair))
    f(torch.zeros(2, 4), Pair(feature()))
    with pytest.raises(ContractError):
        f(torch.zeros(2, 4), (feature(),))


def test_variadic_arguments() -> None:
    @contract("n > 1", "len(xs) < 4")
    def f(*xs: Float32[Tensor, "n"], scale: float = 1.0, **more: Float32[Tensor, "n"] | int): ...

    x = torch.zeros(3)
    f()
    f(x, x, a=x, b=1)
    for args, kwargs in [
        ((x, x[:2]), {}),
        ((x,), {"a": x[:2]}),
        ((x,), {"a": "1"}),
        ((x, 1), {}),
        ((x[:1],), {}),
        ((x,) * 4, {}),
        ((), {"a": x[:1]}),
    ]:
        with pytest.raises(ContractError):
            f(*args, **kwargs)
    with pytest.raises(ContractError, match=r"xs\[1\] axis 0 \(n\) is 2, expected 3"):
        f(x, x[:2])
    with pytest.raises(ContractError, match=r"more\['a'\]"):
        f(x, a=x[:2])


def test_axes_of_an_empty_container_are_unbound() -> None:
    @contract("n > 1")
    def f(xs: list[Float32[Tensor, "n"]], y: Float32[Tensor, "m"]): ...

    assert f.contract.check([], torch.zeros(2)) == {"m": 2}
    assert f.contract.check([torch.zeros(2)], torch.zeros(2)) == {"n": 2, "m": 2}
    assert not f.contract.accepts([torch.zeros(1)], torch.zeros(2))


def test_computed_axes_inside_containers() -> None:
    @contract
    def f(xs: list[Float32[Tensor, "n n/2"]], y: dict[str, Float32[Tensor, "m*2 ..."]], m: int): ...

    f([torch.zeros(4, 2)] * 2, {"a": torch.zeros(6), "b": torch.zeros(6, 1)}, 3)
    with pytest.raises(ContractError, match=r"xs\[1\]"):
        f([torch.zeros(4, 2), torch.zeros(4, 1)], {}, 3)
    with pytest.raises(ContractError, match=r"y\['b'\] axis 0"):
        f([], {"a": torch.zeros(6), "b": torch.zeros(5)}, 3)
