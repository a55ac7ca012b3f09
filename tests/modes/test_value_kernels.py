"""The generated kernel finds what torch finds: which elements break a condition, how many, and the
first of them. On a machine without a GPU, Triton's interpreter runs the kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from backends.values import KernelObserver, mailbox
from backends.values.layout import lay_out
from backends.values.plan import parted
from contracts import ContractError
from contracts.contents.condition import Condition, Unjudgeable, condition, parse
from contracts.contents.offence import Offence, find

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
N = 5000
"""More than a block, and no multiple of one."""


@dataclass(frozen=True)
class Call:
    """Stands for a call: what an observer hands back."""

    name: str = "a call"
    thread: int = 0

    def error(self, found: Any) -> ContractError:
        return ContractError(self.name, [])


@pytest.fixture(scope="module")
def observer() -> KernelObserver:
    return KernelObserver()


def read(text: str, tensors: dict[str, torch.Tensor]) -> Condition:
    return condition(text, parse(text), tensors)


def watched(
    observer: KernelObserver,
    conditions: Sequence[Condition],
    tensors: dict[str, torch.Tensor],
    env: dict[str, Any],
) -> list[Offence | None]:
    """What the kernel finds, by condition."""
    names = dict.fromkeys(name for each in conditions for name in each.tensors)
    numbers = [number for each in conditions for number in each.numbers_of(env)]
    judge = observer.judge_of(tuple(conditions))
    judge([tensors[name] for name in names], numbers, Call())
    observer.wait()
    found = [pair for _, pairs in observer.collect() for pair in pairs]
    return [dict(found).get(position) for position in range(len(conditions))]


def ints(*shape: int, low: int = 0, high: int = 100, dtype: torch.dtype = torch.int32) -> Any:
    return torch.randint(low, high, shape, device=DEVICE).to(dtype)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def with_nans(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    y[torch.rand(y.shape, device=y.device) < 0.01] = float("nan")
    y[torch.rand(y.shape, device=y.device) < 0.01] = float("inf")
    return y.to(x.dtype)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "chain": ("0 <= x < n", lambda: {"x": ints(N, low=-1, high=60)}, {"n": 50}),
    "whole blocks": ("x < n", lambda: {"x": ints(8192)}, {"n": 99}),
    "wide numbers": ("x < n", lambda: {"x": ints(N)}, {"n": 2**40}),
    "wide constants": ("x + 2**40 > 5 and x != 7", lambda: {"x": ints(N)}, {}),
    "int64": ("x <= n", lambda: {"x": ints(N, dtype=torch.int64) << 40}, {"n": 98 << 40}),
    "uint8": ("x - 200 < n", lambda: {"x": ints(N, high=256, dtype=torch.uint8)}, {"n": 50}),
    "bool": ("x", lambda: {"x": ints(N, high=50).bool()}, {}),
    "not bool": ("not x or y < 90", lambda: {"x": ints(N).bool(), "y": ints(N)}, {}),
    "in": ("x in (1, 2, n)", lambda: {"x": ints(N, high=5)}, {"n": 3}),
    "not in": ("x not in (1, n)", lambda: {"x": ints(N)}, {"n": 3}),
    "floor division": ("x // 3 >= n", lambda: {"x": ints(N, low=-50, high=50)}, {"n": -16}),
    "modulo": ("x % 7 != n", lambda: {"x": ints(N, low=-50, high=50)}, {"n": 6}),
    "negative divisor": ("x // -7 <= 6 and x % -7 > -6", lambda: {"x": ints(N, low=-50)}, {}),
    "ceiling": ("cdiv(x, 8) < n", lambda: {"x": ints(N)}, {"n": 12}),
    "true division": ("x / 8 < 12.25", lambda: {"x": ints(N)}, {}),
    "power": ("x ** 3 < 900000", lambda: {"x": ints(N)}, {}),
    "negation": ("-x > -n", lambda: {"x": ints(N)}, {"n": 98}),
    "minimum": ("min(x, y, n) < 50", lambda: {"x": ints(N), "y": ints(N)}, {"n": 60}),
    "maximum": ("max(x, y) > 1", lambda: {"x": ints(N), "y": ints(N)}, {}),
    "abs": ("abs(x) < 3", lambda: {"x": floats(N)}, {}),
    "float number": ("x < limit", lambda: {"x": floats(N)}, {"limit": 2.3}),
    "float rounds": ("x <= 0.1", lambda: {"x": torch.full((9,), 0.1, device=DEVICE)}, {}),
    "float modulo": ("x % 0.5 < 0.49", lambda: {"x": floats(N)}, {}),
    "float64": ("x < n and x < 1.7", lambda: {"x": floats(N, dtype=torch.float64)}, {"n": 2.5}),
    "finite": ("isfinite(x)", lambda: {"x": with_nans(floats(N))}, {}),
    "nan": ("not isnan(x)", lambda: {"x": with_nans(floats(N))}, {}),
    "nan in minimum": ("min(x, 1) <= 1", lambda: {"x": with_nans(floats(N))}, {}),
    "bfloat16": ("x > -2", lambda: {"x": floats(N, dtype=torch.bfloat16)}, {}),
    "fp8": ("abs(x) <= 2.5", lambda: {"x": floats(N, dtype=torch.float8_e4m3fn)}, {}),
    "fp8 nan": ("isfinite(x)", lambda: {"x": with_nans(floats(N, dtype=torch.float8_e4m3fn))}, {}),
    "fp8 e5m2": ("x < 2", lambda: {"x": floats(N, dtype=torch.float8_e5m2)}, {}),
    "fnuz": ("x < 2", lambda: {"x": floats(N, dtype=torch.float8_e4m3fnuz)}, {}),
    "mixed kinds": ("x < y", lambda: {"x": ints(N, high=3), "y": floats(N) + 3}, {}),
    "0-d": ("x > 0", lambda: {"x": torch.tensor(-2.5, device=DEVICE)}, {}),
    "broadcast": ("x <= y", lambda: {"x": ints(70, 80), "y": ints(80) + 60}, {}),
    "broadcast both": ("x + y < 190", lambda: {"x": ints(70, 1), "y": ints(1, 80)}, {}),
    "0-d with more": ("x < y", lambda: {"x": ints(N), "y": torch.tensor(97, device=DEVICE)}, {}),
    "strided": ("x < 98", lambda: {"x": ints(N, 2)[:, 1]}, {}),
    "slice of rows": ("x < 98", lambda: {"x": ints(70, 99)[:, 3:80]}, {}),
    "transposed": ("x < 98", lambda: {"x": ints(70, 80).T}, {}),
    "expanded": ("x < 98", lambda: {"x": ints(70, 1).expand(70, 80)}, {}),
    "odd start": ("x < 98", lambda: {"x": ints(N)[1:]}, {}),
    "three axes": ("x < y", lambda: {"x": ints(9, 10, 11)[::2], "y": ints(10, 1) + 50}, {}),
    "sorted": ("sorted(x)", lambda: {"x": ints(70, 3)}, {}),
    "sorted row": ("sorted(x)", lambda: {"x": ints(N).sort().values.where(ints(N) > 0, 0)}, {}),
    "sorted whole blocks": (
        "sorted(x)",
        lambda: {"x": ints(4, 1024, high=4).cumsum(-1) % 5000},
        {},
    ),
    "sorted strided": ("sorted(x)", lambda: {"x": ints(3, 70).T}, {}),
    "sorted nan": ("sorted(x)", lambda: {"x": with_nans(floats(4, 300).sort().values)}, {}),
    "sorted and more": ("sorted(x) and x < y", lambda: {"x": ints(7, 3), "y": ints(3)}, {}),
    "unique": ("unique(x)", lambda: {"x": ints(70, 6)}, {}),
    "unique, all of it": ("unique(x)", lambda: {"x": torch.randperm(N, device=DEVICE)}, {}),
    "unique or unused": ("unique(x) or x < 50", lambda: {"x": ints(70, 9)}, {}),
    "empty": ("x > 0", lambda: {"x": ints(0)}, {}),
    "empty rows": ("sorted(x)", lambda: {"x": ints(5, 0)}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_finds_what_torch_finds(observer: KernelObserver, case: str) -> None:
    text, make, env = CASES[case]
    torch.manual_seed(3)
    tensors = make()
    wanted = find(read(text, tensors), tensors, read(text, tensors).numbers_of(env))
    (found,) = watched(observer, [read(text, tensors)], tensors, env)
    if wanted is None or found is None:
        assert found == wanted
        return
    assert (found.count, found.index, found.shapes) == (wanted.count, wanted.index, wanted.shapes)
    torch.testing.assert_close(found.values, wanted.values, rtol=0, atol=0, equal_nan=True)


def test_most_cases_have_something_to_find() -> None:
    torch.manual_seed(3)
    broken = 0
    for text, make, env in CASES.values():
        tensors = make()
        each = read(text, tensors)
        broken += find(each, tensors, each.numbers_of(env)) is not None
    assert broken > 40


def test_several_conditions_are_judged_by_one_launch(
    observer: KernelObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"x": ints(N), "y": floats(7, 9)}
    conditions = [read(text, tensors) for text in ("x < 99", "x >= 0", "isfinite(y) and y < n")]
    launches = []
    launch = KernelObserver.launch
    monkeypatch.setattr(
        KernelObserver, "launch", lambda *args: (launches.append(1), launch(*args))[1]
    )
    found = watched(observer, conditions, tensors, {"n": 0})
    assert len(launches) == 1
    assert [offence is not None for offence in found] == [True, False, True]
    assert found[2] is not None
    assert found[2].count == int((tensors["y"] >= 0).sum())


def test_conditions_with_too_long_a_record_are_parted(observer: KernelObserver) -> None:
    tensors = {f"x{i}": ints(3) for i in range(20)}
    conditions = [
        read(f"{' + '.join(tensors)} < n", tensors),
        *(read(f"{x} < n", tensors) for x in tensors),
    ]
    assert len(parted(conditions)) > 1
    found = watched(observer, conditions, tensors, {"n": -1})
    assert all(offence is not None and offence.count == 3 for offence in found)


def by_kernel(text: str, tensors: dict[str, torch.Tensor], env: dict[str, Any]) -> bool:
    """Whether a kernel judges such a call, and not torch."""
    observer = KernelObserver()
    launches: list[Any] = []
    observer.launch = lambda *given: launches.append(given)  # type: ignore[method-assign]
    rule = read(text, tensors)
    numbers = list(rule.numbers_of(env))
    observer.judge_of((rule,))([tensors[name] for name in rule.tensors], numbers, Call())
    return bool(launches)


EXPRESSIBLE: dict[str, tuple[str, bool]] = {
    "a range": ("0 <= x < n", True),
    "integers divided by numbers": ("x // n >= 0 and x % 7 < n and cdiv(x, n) < 9", True),
    "true division": ("x / 3 < y / 2.5", True),
    "integers divided by elements": ("x // z == 0 or x / z > 1 or x % z == 1", False),
    "an integer that may be zero": ("x % (z + 1) == 0", False),
    "a number that is zero": ("x // zero == 0", False),
    "behind a guard": ("zero == 0 or x // zero == 0", True),
    "floats divided by elements": ("y / y == 1", True),
    "floats rounded down": ("y // 2 == 1", False),
    "the remainder of floats": ("x % 2.5 < 1", False),
    "mixed": ("x < limit and y < limit and d < limit and min(x, y, d, limit) < 9", True),
    "a long sum": (" + ".join(["x"] * 30) + " < n", True),
    "a longer one": (" + ".join(["x"] * 90) + " < n", False),
    "a power of powers": ("((x ** 8) ** 8) ** 8 < n", False),
    "many conditions": (" and ".join(["x < n"] * 90), True),
    "more of them": (" and ".join(["x < n"] * 300), False),
    "sorted": ("sorted(y)", True),
}


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_what_no_kernel_says_exactly_is_left_to_torch(case: str) -> None:
    text, expected = EXPRESSIBLE[case]
    tensors = {"x": ints(8), "z": ints(8, low=1), "y": floats(8), "d": floats(8).double()}
    assert by_kernel(text, tensors, {"n": 3, "zero": 0, "limit": 0.1}) is expected


def test_a_repeated_nan_is_left_to_torch() -> None:
    for x, expected in ((floats(4, 1), False), (ints(4, 1), True)):
        assert by_kernel("sorted(x)", {"x": x.expand(4, 3)}, {}) is expected


def test_a_rule_on_more_tensors_than_a_record_holds_is_left_to_torch(
    observer: KernelObserver,
) -> None:
    tensors = {f"x{i}": ints(3) for i in range(70)}
    rule = read(" and ".join(f"{name} < 0" for name in tensors), tensors)
    (found,) = watched(observer, [rule], tensors, {})
    assert found == find(rule, tensors, ())


def test_twenty_rules_are_one_launch_and_one_finding(observer: KernelObserver) -> None:
    tensors = {"x": ints(9)}
    rules = tuple(read(f"x < {-i}", tensors) for i in range(20))
    assert len(parted(rules)) == 1
    observer.judge_of(rules)([tensors["x"]], [], Call())
    observer.wait()
    ((_, found),) = observer.collect()
    assert [position for position, _ in found] == list(range(20))


def test_a_kernel_leaves_no_trace_for_the_next_call(observer: KernelObserver) -> None:
    bad, good = {"x": ints(N)}, {"x": ints(N, high=5)}
    each = read("x < 50", bad)
    assert watched(observer, [each], bad, {})[0] is not None
    assert watched(observer, [each], good, {}) == [None]
    again = watched(observer, [each], bad, {})[0]
    assert again == find(each, bad, ())


def test_records_are_read_oldest_first_and_once(observer: KernelObserver) -> None:
    judge = observer.judge_of((read("x < 0", {"x": ints(1)}),))
    for name in "abc":
        judge([ints(4)], [], Call(name))
    observer.wait()
    assert [call.name for call, _ in observer.collect()] == ["a", "b", "c"]
    assert list(observer.collect()) == []


def test_what_is_not_read_to_the_end_asks_to_be_read_again() -> None:
    box = mailbox.Mailbox(pinned=False)
    for name in "abc":
        mark, record, attention = box.address(name, captured=False)
        record[0] = mark
        attention[0] = 1
    assert next(box.collect()).sender == "a"
    assert [letter.sender for letter in box.collect()] == ["b", "c"]
    assert list(box.collect()) == []


def test_a_call_whose_slot_was_taken_is_still_reported() -> None:
    box = mailbox.Mailbox(pinned=False)
    mark, record, attention = box.address("first", captured=False)
    record[0] = mark
    attention[0] = 1
    for _ in range(mailbox.SLOTS):
        box.address("later", captured=False)
    (letter,) = box.collect()
    assert letter.sender is None


def test_calls_of_one_layout_may_begin_anywhere(observer: KernelObserver) -> None:
    """Addresses are no part of a layout: aligned, then not, then aligned, by one memory."""
    buffer = ints(4 + 64)
    judge = observer.judge_of((read("x < limit", {"x": buffer}),))
    memory: dict[Any, Any] = {}
    for start in (0, 1, 4, 1, 0):
        x = buffer[start : start + 64]
        x.fill_(0)
        x[7] = 100 + start
        judge([x], [100], Call(), memory)
        observer.wait()
        ((_, [(_, offence)]),) = observer.collect()
        assert (offence.count, offence.index, offence.values) == (1, 7, (100 + start,))
    assert len(memory) == 2


def test_each_tensors_alignment_counts_where_one_layout_needs_two_kernels() -> None:
    """A kernel for aligned tensors would fault on a GPU: which it is depends on its own alone."""

    class Launches(KernelObserver):
        made: ClassVar[list[tuple[bool, bool]]] = []

        def launch(self, plan: Any, index: int, given: Any, numbers: Any, call: Any) -> None:
            own = {i for positions in plan.group.tensors for i in positions}
            aligned = all(given[i].data_ptr() % 16 == 0 for i in own)
            self.made.append((plan.structure.aligned, aligned))

    buffers = {name: ints(4 + 64) for name in "abcd"}
    texts = [*(f"a <= b + {i}" for i in range(15)), "c <= d"]
    judge = Launches().judge_of(tuple(read(text, buffers) for text in texts))
    memory: dict[Any, Any] = {}
    for starts in [(1, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1)]:
        pairs = zip(buffers.values(), starts, strict=True)
        judge([x[start : start + 64] for x, start in pairs], [], Call(), memory)
    assert len(Launches.made) == 10
    assert all(claimed == actual for claimed, actual in Launches.made)


def test_two_tensors_unique_in_one_rule_keep_their_own_masks(observer: KernelObserver) -> None:
    tensors = {"a": torch.tensor([-1, -1, 6, 7]), "b": torch.tensor([1, 2, 3, 4])}
    tensors = {name: x.int().to(DEVICE) for name, x in tensors.items()}
    rule = read("a == a and (unique(b) or b > 90) and (unique(a) or a < 0)", tensors)
    assert watched(observer, [rule], tensors, {}) == [None]


def test_tensors_that_no_address_describes_are_refused(observer: KernelObserver) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    judge = observer.judge_of((read("x < 0", {"x": ints(1)}),))
    with pytest.raises(Unjudgeable, match="TwoTensor, whose elements lie in other tensors"):
        judge([TwoTensor(ints(3), ints(3))], [], Call())


def test_lazy_views_are_resolved(observer: KernelObserver) -> None:
    lazy = torch.randn(50, dtype=torch.complex64, device=DEVICE).conj().imag
    assert lazy.is_neg()
    (found,) = watched(observer, [read("x < 0.5", {"x": lazy})], {"x": lazy}, {})
    assert found is not None
    assert found.count == int((lazy >= 0.5).sum())


def test_shapes_that_do_not_broadcast_cannot_be_judged(observer: KernelObserver) -> None:
    tensors = {"x": ints(3), "y": ints(4)}
    with pytest.raises(Unjudgeable, match="3"):
        watched(observer, [read("x < y", tensors)], tensors, {})


@pytest.mark.gpu  # Triton's interpreter runs in one thread only
def test_threads_share_an_observer(observer: KernelObserver) -> None:
    condition_ = read("x < 99", {"x": ints(1)})
    judge = observer.judge_of((condition_,))

    def call(index: int) -> None:
        x = torch.zeros(300, dtype=torch.int32, device=DEVICE)
        x[index] = 99
        judge([x], [], Call(str(index)))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    observer.wait()
    found = {call.name: pairs[0][1].index for call, pairs in observer.collect()}
    assert found == {str(i): i for i in range(16)}


@pytest.mark.parametrize(
    ("shapes", "strides", "keep_last", "sizes"),
    [
        ([(4, 5)], [(5, 1)], False, (20,)),
        ([(4, 5)], [(5, 1)], True, (4, 5)),
        ([(4, 5)], [(9, 1)], False, (4, 5)),
        ([(4, 1, 5)], [(5, 77, 1)], False, (20,)),
        ([(4, 5), (5,)], [(5, 1), (1,)], False, (4, 5)),
        ([(4, 5), ()], [(5, 1), ()], False, (20,)),
        ([()], [()], False, (1,)),
        ([(2, 3, 4), (2, 3, 4)], [(12, 4, 1), (1, 8, 2)], False, (2, 12)),
    ],
)
def test_axes_merge_where_every_tensor_steps_evenly(
    shapes: Any, strides: Any, keep_last: bool, sizes: Any
) -> None:
    layout = lay_out(shapes, strides, keep_last=keep_last)
    assert layout.sizes == sizes
    assert layout.numel == torch.broadcast_shapes(*shapes).numel()
