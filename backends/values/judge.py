"""A call's tensors and numbers -> the launches that judge it, or torch, where no kernel can."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from contracts.contents.condition import Condition, shared_out
from contracts.contents.evaluate import check_readable
from contracts.contents.numbers import Uncomputed
from contracts.contents.plainly import plainly
from contracts.contents.promotion import raised
from contracts.contents.settle import settled, uncomputed
from contracts.contents.watch import Judge
from contracts.tensors import PLAIN_TYPES

from . import kernel
from .plan import Plan, groups_of, plan
from .shaped import fits_int32
from .text import Inexpressible

KEPT_PLANS = 256


class KernelJudge:
    """Judges the conditions of one contract, or those of them that apply to a call."""

    def __init__(
        self, conditions: tuple[Condition, ...], launch: Callable[..., None], by_torch: Judge
    ) -> None:
        self._conditions = conditions
        self._names = tuple(dict.fromkeys(name for each in conditions for name in each.tensors))
        self._put_on_stream, self._by_torch = launch, by_torch
        self._plans: dict[Any, list[Plan] | None] = {}
        """None where torch is to judge."""

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[Any],
        call: Any,
        memory: dict[Any, Any] | None = None,
    ) -> None:
        if memory is not None:
            aligned = tuple([x.data_ptr() % kernel.ALIGNMENT == 0 for x in tensors])
            plans = memory.get(aligned)
            if plans is not None:
                self._launch(plans, tensors, numbers, call)
                return
        given = tensors
        device = tensors[0].device
        direct = loadable(device)
        if not all(x.dtype in direct and type(x) in PLAIN_TYPES and not x.is_neg() for x in given):
            with plainly():
                tensors = [plain(*pair, direct) for pair in zip(self._names, given, strict=True)]
        key = (
            *[
                (x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % kernel.ALIGNMENT == 0)
                for x in tensors
            ],
            *map(_sort, numbers),
        )
        plans = self._plans.get(key, ())
        if plans == ():
            with plainly():
                plans = self._plan(key, tensors, numbers)
        if plans is None:
            self._by_torch(given, numbers, call, None)
            return
        if memory is not None and all(map(operator.is_, given, tensors)):
            memory[aligned] = plans
        self._launch(plans, tensors, known(numbers), call)

    def _launch(
        self,
        plans: Sequence[Plan],
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[Any],
        call: Any,
    ) -> None:
        index = tensors[0].get_device()
        if index >= 0 and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self._launch(plans, tensors, numbers, call)
            return
        for each in plans:
            if each.programs:
                self._put_on_stream(each, index, tensors, numbers, call)

    def _plan(
        self, key: Any, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]
    ) -> list[Plan] | None:
        if len(self._plans) >= KEPT_PLANS:
            self._plans.clear()
        left = [settled(*each) for each in shared_out(self._conditions, numbers)]
        if any(uncomputed(*each) for each in shared_out(left, numbers)):
            self._plans[key] = None
            return None
        numbers = known(numbers)
        try:
            plans = [plan(group, tensors, numbers) for group in groups_of(left)]
        except Inexpressible:
            plans = None
        self._plans[key] = plans
        return plans


def known(numbers: Sequence[Any]) -> list[Any]:
    """The numbers, with something in the place of those that nothing asks for."""
    return [0 if isinstance(number, Uncomputed) else number for number in numbers]


def _sort(number: Any) -> tuple[Any, ...]:
    """What plans depend on of a number: whether it is zero, for `and`, `or` and divisors."""
    if isinstance(number, Uncomputed):
        return (Uncomputed,)
    return type(number), fits_int32(number), bool(number)


def plain(name: str, x: torch.Tensor, direct: frozenset[torch.dtype]) -> torch.Tensor:
    """A tensor that a kernel reads rightly at its address. Raises Unjudgeable."""
    check_readable(name, x)
    x = x.detach().resolve_neg()
    return x if x.dtype in direct else raised(x)


@cache
def loadable(device: torch.device) -> frozenset[torch.dtype]:
    """The dtypes that a kernel loads as they are. FP8 has to be known to the device; to Triton's
    interpreter it is not, which takes its NaN for a number."""
    dtypes = frozenset(kernel.POINTEES)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        return dtypes
    return dtypes - {torch.float8_e4m3fn, torch.float8_e5m2}
