"""Every form of an axis string, with inputs that it accepts and inputs that it refuses."""

from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractError, contract

Shape = tuple[int, ...]


def checker(*dims: str, **constants: int):
    """A contract over one float32 tensor for each axis string."""
    names = [f"x{index}" for index in range(len(dims))]
    scope: dict[str, Any] = {
        f"T{name}": Float32[Tensor, dim] for name, dim in zip(names, dims, strict=True)
    }
    scope |= constants
    exec(f"def f({', '.join(f'{name}: T{name}' for name in names)}): ...", scope)
    return contract(scope["f"])


def verdict(f: Any, *shapes: Shape) -> bool:
    """The one verdict of the generated check, of the explaining path and of a call."""
    tensors = [torch.zeros(shape) for shape in shapes]
    accepted = f.contract.passes(*tensors)
    assert accepted == (not f.contract.violations(*tensors))
    try:
        f(*tensors)
        assert accepted
    except ContractError:
        assert not accepted
    return accepted


@pytest.mark.parametrize(
    ("dims", "right", "wrong"),
    [
        ([""], [[()]], [[(1,)], [(0,)]]),
        (["3 4"], [[(3, 4)]], [[(4, 3)], [(3,)], [(3, 4, 1)], [(3, 4, 4)]]),
        (["n"], [[(0,)], [(5,)]], [[()], [(5, 1)]]),
        (["n n"], [[(2, 2)], [(0, 0)]], [[(2, 3)], [(2,)]]),
        (["n m", "m n"], [[(2, 3), (3, 2)]], [[(2, 3), (2, 3)], [(2, 3), (3, 3)]]),
        (["_ n", "_ n"], [[(2, 3), (4, 3)]], [[(2, 3), (2, 4)], [(3,), (2, 3)]]),
        (["_any n"], [[(2, 3)]], [[(3,)]]),
        (["..."], [[()], [(1, 2, 3)]], []),
        (["... n", "n"], [[(3,), (3,)], [(1, 2, 3), (3,)]], [[(), (0,)], [(1, 2, 3), (2,)]]),
        (["n ... m"], [[(1, 2)], [(1, 9, 9, 2)]], [[(1,)], [()]]),
        (["n ... n"], [[(2, 9, 2)], [(2, 2)]], [[(2, 9, 3)]]),
        (["*b n", "*b"], [[(4,), ()], [(2, 3, 4), (2, 3)]], [[(2, 3, 4), (2,)], [(4,), (1,)]]),
        (["*b", "*b"], [[(2, 3), (2, 3)], [(), ()]], [[(2, 3), (3, 2)], [(2,), (2, 1)]]),
        (["n *b m", "*b"], [[(1, 2), ()], [(1, 5, 2), (5,)]], [[(1, 5, 2), (6,)]]),
        (["*_ n"], [[(1, 2)], [(2,)]], [[()]]),
        (["h=4 n"], [[(4, 2)]], [[(3, 2)]]),
        (["h=4", "h=5"], [[(4,), (5,)]], [[(5,), (4,)]]),
        (["#n", "n"], [[(1,), (5,)], [(5,), (5,)], [(1,), (1,)]], [[(4,), (5,)], [(5,), (1,)]]),
        (["#n", "#n"], [[(1,), (5,)], [(5,), (1,)], [(1,), (1,)]], [[(4,), (5,)]]),
        (["#3"], [[(1,)], [(3,)]], [[(2,)]]),
        (["h=#3"], [[(1,)], [(3,)]], [[(2,)]]),
        (["n", "#n+1"], [[(2,), (3,)], [(2,), (1,)]], [[(2,), (2,)]]),
        (["*#b", "*#b"], [[(2, 3), (3,)], [(1, 3), (2, 1)], [(), (2,)]], [[(2,), (3,)]]),
        (["*#b", "*b"], [[(3,), (2, 3)], [(2, 1), (2, 3)]], [[(2, 3), (3,)], [(2, 3), (2, 1)]]),
        (["*#b n", "*b m"], [[(1, 5), (3, 6)]], [[(2, 5), (3, 6)]]),
        (["n m", "n+m n*m n-m"], [[(3, 2), (5, 6, 1)]], [[(3, 2), (5, 6, 2)]]),
        (["n/2", "n"], [[(2,), (4,)], [(0,), (0,)]], [[(2,), (5,)], [(3,), (4,)]]),
        (["(n+m)/2 n m"], [[(2, 1, 3)]], [[(2, 1, 4)], [(2, 1, 2)]]),
        (["n//2", "n"], [[(2,), (4,)], [(2,), (5,)]], [[(3,), (5,)]]),
        (["n%4", "n"], [[(1,), (5,)]], [[(2,), (5,)]]),
        (["n**2", "n"], [[(9,), (3,)]], [[(8,), (3,)]]),
        (["min(n,m)", "n m"], [[(2,), (2, 3)], [(2,), (3, 2)]], [[(3,), (2, 3)]]),
        (["cdiv(n,4)", "n"], [[(2,), (5,)], [(1,), (4,)]], [[(1,), (5,)]]),
        (["6/n", "n"], [[(3,), (2,)]], [[(1,), (4,)], [(0,), (0,)]]),
        (["... n/2", "*b n"], [[(7, 2), (4,)]], [[(7, 2), (5,)], [(), (2,)]]),
        (["n*2", "#n"], [[(6,), (3,)], [(2,), (1,)]], [[(6,), (2,)], [(4,), (1,)]]),
        (["{K} {K}*n", "n"], [[(7, 14), (2,)]], [[(6, 14), (2,)], [(7, 15), (2,)]]),
        (["  n   m  "], [[(1, 2)]], [[(1,)]]),
    ],
    ids=lambda value: " , ".join(value) if value and isinstance(value[0], str) else "",
)
def test_an_axis_string(
    dims: list[str], right: list[list[Shape]], wrong: list[list[Shape]]
) -> None:
    f = checker(*dims, K=7)
    assert [shapes for shapes in right if not verdict(f, *shapes)] == []
    assert [shapes for shapes in wrong if verdict(f, *shapes)] == []


@pytest.mark.parametrize("order", [("head_dim/2", "n head_dim"), ("n head_dim", "head_dim/2")])
def test_the_order_of_arguments_does_not_matter(order: tuple[str, str]) -> None:
    f = checker(*order)
    shapes = {"head_dim/2": (4,), "n head_dim": (3, 8)}
    assert verdict(f, *(shapes[dim] for dim in order))
    shapes["n head_dim"] = (3, 9)
    assert not verdict(f, *(shapes[dim] for dim in order))
    fault = f.contract.violations(*(torch.zeros(shapes[dim]) for dim in order))[0]
    assert "9 is not divisible by 2" in fault.message


def test_an_axis_that_is_an_argument() -> None:
    @contract
    def f(x: Float32[Tensor, "n n+1"], n: int, y: Float32[Tensor, "{n}*2"] | None = None): ...

    assert f.contract.accepts(torch.zeros(3, 4), 3, torch.zeros(6))
    assert not f.contract.accepts(torch.zeros(4, 5), 3)
    assert not f.contract.accepts(torch.zeros(3, 4), 3, torch.zeros(7))
    assert not f.contract.accepts(torch.zeros(3, 4), "3")
    assert f.contract.check(torch.zeros(3, 4), 3) == {"n": 3}
    with pytest.raises(ContractError, match=r"x axis 0 \(n\) is 4, expected 3: n is 3"):
        f(torch.zeros(4, 5), 3)


def test_sizes_of_all_axes() -> None:
    f = checker("*b n #m", "... k=3 _ n/2")
    sizes = f.contract.check(torch.zeros(2, 5, 4, 1), torch.zeros(9, 3, 8, 2))
    assert sizes == {"b": (2, 5), "n": 4, "m": 1}
    assert f.contract.axes == ("b", "n", "m")


@pytest.mark.parametrize(
    "dims",
    [
        "a+",
        "a,b",
        "4 *4",
        "*a *b",
        "... *a",
        "... ...",
        "##a",
        "**a",
        "?a",
        "a?",
        "?*a",
        "class",
        "a None",
        "a b+class",
        "a=",
        "=4",
        "*a+1",
        "-a",
        "a a.b",
        "a {unknown}",
        "a {a+1}",
        "a foo(a)",
        "a a>2",
        "a size(a,0)",
        "a 'b'",
        "a len(a)",
        "a a-",
        "a lambda:1",
        "a a[0]",
    ],
)
def test_what_cannot_be_honoured_is_refused_where_it_is_written(dims: str) -> None:
    """By jaxtyping as it reads the string, or by the decorator; never by a call."""
    try:
        annotation = Float32[Tensor, dims]
    except (ValueError, SyntaxError):
        return
    scope: dict[str, Any] = {"T": annotation}
    exec("def f(x: T): ...", scope)
    with pytest.raises(TypeError, match="'x'"):
        contract(scope["f"])


def test_names_are_normalised_as_python_normalises_arguments() -> None:
    f = checker("\N{MICRO SIGN} k", "\N{GREEK SMALL LETTER MU} \N{MICRO SIGN}")
    assert verdict(f, (3, 4), (3, 3))
    assert not verdict(f, (3, 4), (5, 5))
    assert f.contract.axes == ("\N{GREEK SMALL LETTER MU}", "k")


def test_an_argument_whose_name_python_normalises_is_the_axis() -> None:
    @contract
    def f(x: Float32[Tensor, "\N{LATIN SMALL LIGATURE FI}"], ﬁ: int) -> None: ...

    assert f.contract.accepts(torch.zeros(3), 3)
    assert not f.contract.accepts(torch.zeros(3), 4)
