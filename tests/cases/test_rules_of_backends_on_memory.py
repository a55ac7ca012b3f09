"""A backend's own rules on memory hold on the quick path as in the explanation: what one cannot
serve goes to another, call by call, and tensors without memory are excused without being asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from backends import NoBackendError, Op
from contracts import Rule, aligned, contiguous, contract, no_grad, no_overlap, unit_stride

Square = Float32[Tensor, "n n"]


def plain(x: Tensor) -> Tensor:
    return x + 1


def quick(x: Tensor) -> Tensor:
    return x + 2


def op_with(name: str, rule: Rule | str) -> Op:
    @contract(no_grad(), name=name)
    def function(x: Square) -> Square: ...

    op = Op(function, reference=plain)
    op.backend("quick", rules=[rule], priority=1)(quick)
    return op


OPS = {
    "no overlap": op_with("rules_on_overlap", no_overlap("x")),
    "aligned": op_with("rules_on_alignment", aligned(16)),
    "address": op_with("rules_on_addresses", "data_ptr(x) % 16 == 0"),
    "contiguous": op_with("rules_on_density", contiguous("x")),
    "unit stride": op_with("rules_on_strides", unit_stride()),
}

LAYOUTS: dict[str, tuple[Callable[[], Tensor], set[str]]] = {
    "dense": (lambda: torch.zeros(4, 4), set()),
    "swapped": (lambda: torch.zeros(4, 4).T, {"contiguous", "unit stride"}),
    "one row for all": (lambda: torch.zeros(1, 4).expand(4, 4), {"no overlap", "contiguous"}),
    "windows": (lambda: torch.zeros(8).unfold(0, 4, 1)[:4], {"no overlap", "contiguous"}),
    "an element on": (lambda: torch.zeros(17)[1:].view(4, 4), {"aligned", "address"}),
    "one element, odd strides": (lambda: torch.zeros(1).as_strided((1, 1), (5, 7)), set()),
    "nothing": (lambda: torch.zeros(0, 0), set()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_a_layout_that_a_backend_cannot_read_goes_to_another(name: str, layout: str) -> None:
    op, (make, unread) = OPS[name], LAYOUTS[layout]
    served_by = "reference" if name in unread else "quick"
    added = 1 if name in unread else 2
    for _ in range(2):
        op(torch.zeros(4, 4))  # warm, and by the quick one
        assert (op(make()) == added).all()
        assert op.explain(make()).choice == served_by
    if name in unread:
        with pytest.raises(NoBackendError):
            op(make(), backend="quick")
    else:
        op(make(), backend="quick")


@pytest.mark.parametrize("name", OPS)
def test_fake_tensors_are_not_asked_for_an_address(name: str) -> None:
    op = OPS[name]
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("error")
        for backend in (None, "quick"):
            for _ in range(2):
                assert op(torch.zeros(4, 4), backend=backend).shape == (4, 4)
    assert op(torch.zeros(4, 4))[0, 0] == 2
