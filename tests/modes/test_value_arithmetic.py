"""What is computed of elements and numbers: the same in `debug`, in `async` by torch, and by the
kernel, and Python's own answer."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from backends.values import KernelObserver
from contracts.contents.condition import Unjudgeable, condition, parse
from contracts.contents.offence import find
from contracts.contents.promotion import rounded
from contracts.contents.torch_observer import TorchObserver

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
WAYS = ("debug", "torch", "kernel")
OBSERVERS = {"torch": TorchObserver(), "kernel": KernelObserver()}

Answer = tuple[int, int, tuple[Any, ...]] | None
"""How many elements break it, the index of the first, and what tensors hold there."""


def judged(way: str, text: str, tensors: dict[str, torch.Tensor], env: dict[str, Any]) -> Answer:
    tensors = {name: x.to(DEVICE) for name, x in tensors.items()}
    rule = condition(text, parse(text), tensors)
    numbers = rule.numbers_of(env)
    if way == "debug":
        offence = find(rule, tensors, numbers)
    else:
        observer = OBSERVERS[way]
        observer.judge_of((rule,))([tensors[name] for name in rule.tensors], numbers, None, None)
        observer.wait()
        found = [pair for _, pairs in observer.collect() for pair in pairs]
        offence = found[0][1] if found else None
    return None if offence is None else (offence.count, offence.index, offence.values)


def i32(*elements: int) -> torch.Tensor:
    return torch.tensor(elements, dtype=torch.int32)


def i64(*elements: int) -> torch.Tensor:
    return torch.tensor(elements, dtype=torch.int64)


def f32(*elements: float) -> torch.Tensor:
    return torch.tensor(elements, dtype=torch.float32)


def f64(*elements: float) -> torch.Tensor:
    return torch.tensor(elements, dtype=torch.float64)


INF, NAN = math.inf, math.nan
CASES: dict[str, tuple[str, dict[str, torch.Tensor], dict[str, Any], list[int]]] = {
    # rule, tensors, numbers, the indices of the elements that break it
    "truths add up": ("(x > 0) + (y > 0) < 2", {"x": i32(1, 1), "y": i32(1, 0)}, {}, [0]),
    "truths have a difference": ("(x > 0) - (y > 0) == 0", {"x": i32(1), "y": i32(1)}, {}, []),
    "a truth has a negative": ("-(x > 0) < 0", {"x": i32(1, 0)}, {}, [1]),
    "a truth times a number": ("(x > 0) * 3 == 3", {"x": i32(1)}, {}, []),
    "a truth's magnitude": ("abs(x > 0) == 1", {"x": i32(1)}, {}, []),
    "a truth divided": ("cdiv(x > 0, 2) == 1 and (x > 0) // 2 == 0", {"x": i32(1)}, {}, []),
    "the remainder of a truth": ("(x > 0) % 2 == 1", {"x": i32(1)}, {}, []),
    "the least of truths": ("min(x > 0, y > 0) + 1 == 2", {"x": i32(1), "y": i32(1)}, {}, []),
    "a bool tensor subtracted": ("x - y == 1", {"x": i32(1), "y": i32(0).bool()}, {}, []),
    "True as a number": ("x - True >= 0", {"x": i32(1)}, {}, []),
    "a bool argument": ("x - flag >= 0", {"x": i32(1, 0)}, {"flag": True}, [1]),
    "isfinite of integers": ("isfinite(x > 0) and not isnan(x)", {"x": i32(0)}, {}, []),
    "int32 meets a float exactly": ("x <= 2147483646.5", {"x": i32(2**31 - 1)}, {}, [0]),
    "int32 meets a float argument": ("x < n", {"x": i32(100000001)}, {"n": 1e8}, [0]),
    "int32 meets float32 exactly": ("x <= y", {"x": i32(2**24 + 1), "y": f32(2**24)}, {}, [0]),
    "true division of integers": ("x / 1 <= 16777216", {"x": i32(2**24 + 1)}, {}, [0]),
    "int64 up to 2**53": ("x / 1 < 9007199254740992", {"x": i64(2**53 - 1, 2**53)}, {}, [1]),
    "float32 meets a float as float32": ("x <= n", {"x": f32(0.1)}, {"n": 0.1}, []),
    "float64 meets it as float64": ("x <= n", {"x": f64(0.1, 0.1000000001)}, {"n": 0.1}, [1]),
    "both in one rule": ("x <= n and y <= n", {"x": f32(0.1), "y": f64(0.1)}, {"n": 0.1}, []),
    "a constant beside both": ("x <= 0.1 and y <= 0.1", {"x": f32(0.1), "y": f64(0.1)}, {}, []),
    "maximum with a constant": ("max(x, 0.1) <= 0.1", {"x": f64(0)}, {}, []),
    "minimum with a constant": ("min(x, 0.1) > 0.1000000001", {"x": f64(1)}, {}, [0]),
    "a constant beyond float32": ("min(x, 1e300) < 1e300", {"x": f32(5, INF)}, {}, [1]),
    "finite by its own dtype": ("isfinite(x) and y > 0", {"x": f32(INF, 1), "y": f64(1)}, {}, [0]),
    "two numbers first": ("min(n, 2, x) < 2", {"x": i32(1, 5)}, {"n": 3}, [1]),
    "a number, an element, a number": ("max(1, x, n) < 4", {"x": i32(1, 5)}, {"n": 3}, [1]),
    "signed and big numbers": ("min(-1, 3000000000, x) < 0", {"x": i32(1)}, {}, []),
    "numbers beside one another": ("0 < n < x <= 5", {"x": i32(4, 3, 6)}, {"n": 3}, [1, 2]),
    "a number among elements": ("n in (x, 1)", {"x": i32(3, 4)}, {"n": 3}, [1]),
    "a number among none": ("n not in (x, 3)", {"x": i32(3, 4)}, {"n": 3}, [0, 1]),
    "an integer and its float": (
        "x / 1 <= n + 1.0 and x <= n + 1",
        {"x": i64(2**60 + 2)},
        {"n": 2**60},
        [0],
    ),
    "fractions of numbers": ("x < n / 2 and x < 1/3", {"x": f32(0.3, 0.4)}, {"n": 1}, [1]),
    "NaN is among nothing": ("x in ()", {"x": f32(NAN, 1)}, {}, [0, 1]),
    "nothing has NaN": ("x not in ()", {"x": f32(NAN, 1)}, {}, []),
    "NaN repeated is not sorted": ("sorted(x)", {"x": f32(NAN).expand(4)}, {}, [1, 2, 3]),
    "repeated is sorted": ("sorted(x)", {"x": f32(1).expand(4)}, {}, []),
    "rows of one": ("sorted(x) or y > 0", {"x": f32(NAN, 1)[:, None], "y": f32(0, 0)}, {}, []),
    "unique columns": ("unique(x)", {"x": i64(1, 2, 3, 1, 5, 6, 7, 8, 9).view(3, 3).T}, {}, [1]),
    "unique of a permutation": (
        "unique(x) or x < 0",
        {"x": i64(-1, 2, 3, -1, 5, 6).view(2, 3).T},
        {},
        [],
    ),
    "unique of rows": ("unique(x) == (y > 0)", {"x": i32(1).expand(2, 2), "y": i32(1)}, {}, [1, 3]),
    "a divisor that is guarded": ("y == 0 or x % y == 0", {"x": i32(1, 4), "y": i32(0, 2)}, {}, []),
    "a divisor that is not": ("x % y == 0", {"x": i32(1, 4), "y": i32(0, 2)}, {}, [0]),
    "true division by zero": ("x / y < 5", {"x": i32(-1, 4), "y": i32(0, 2)}, {}, [0]),
    "ceiling by zero": ("y > 0 and cdiv(x, y) < 5", {"x": i32(1, 4), "y": i32(0, 2)}, {}, [0]),
    "guards within a chain": ("0 < y <= x // y", {"x": i32(9, 4), "y": i32(0, 2)}, {}, [0]),
    "not what is guarded": ("not (y != 0 and x % y != 0)", {"x": i32(1), "y": i32(0)}, {}, []),
    "floats divide by zero": ("x / y > 5", {"x": f32(1, -1), "y": f32(0, 0)}, {}, [1]),
    "a number guards": ("n == 0 or x % n == 0", {"x": i32(1, 4)}, {"n": 0}, []),
    "a number that does not": ("n == 0 or x % n == 0", {"x": i32(1, 4)}, {"n": 2}, [0]),
    "numbers that are guarded": ("n == 0 or x < m // n", {"x": i32(4)}, {"n": 0, "m": 5}, []),
    "a number decides early": ("n == 3 and x < m // n", {"x": i32(4)}, {"n": 0, "m": 5}, [0]),
    "a number decides late": ("x < 3 and n", {"x": i32(4, 1)}, {"n": True}, [0]),
    "elements guard numbers": ("x < 3 or x < m // n", {"x": i32(2, 4)}, {"n": 0, "m": 5}, [1]),
    "a divisor of zero that is reached": ("x > 3 or x % n == 0", {"x": i32(2, 4)}, {"n": 0}, [0]),
    "a negated number": ("not n or x > 1", {"x": i32(1)}, {"n": 0}, []),
    "float rounds down": ("x // 0.1 == 9", {"x": f32(1)}, {}, []),
    "float remainder": ("0 <= x % 0.1 < 0.1", {"x": f32(0.3, 1, 7)}, {}, []),
    "remainder by infinity": ("x % n == 1 and -x // n == -1", {"x": f32(1)}, {"n": INF}, []),
    "division of float32": ("x / x == 1 and 1 / x * x <= 1", {"x": f32(3, 5, 7)}, {}, []),
    "negative zero": ("1 / -x < 0", {"x": f32(0)}, {}, []),
    "the least int64": ("x // -1 == x and x % -1 == 0", {"x": i64(-(2**63))}, {}, []),
    "a power of sums": ("(x + 1) ** 3 == 27", {"x": i32(2, 3)}, {}, [1]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_every_way_finds_the_elements_that_break_a_rule(case: str, way: str) -> None:
    text, tensors, env, broken = CASES[case]
    found = judged(way, text, tensors, env)
    assert (found and found[:2]) == ((len(broken), broken[0]) if broken else None)


class Done:
    """Stands for an event of a device that has none."""

    def __init__(self, device: Any) -> None: ...

    def record(self) -> None: ...

    def query(self) -> bool:
        return True


def test_torch_finds_the_same_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on any device but a CPU: one record for all conditions of a call."""
    monkeypatch.setattr(torch, "Event", Done)
    for text, tensors, env, _ in CASES.values():
        texts = [text, f"({text}) or 1 < 2", f"not ({text})"]
        rules = tuple(condition(each, parse(each), tensors) for each in texts)
        numbers = [rule.numbers_of(env) for rule in rules]
        wanted = [find(rule, tensors, own) for rule, own in zip(rules, numbers, strict=True)]
        observer = TorchObserver()
        observer._judge_later(rules, tensors, [n for own in numbers for n in own], "a call")
        found = list(observer.collect())
        same = [(i, offence) for i, offence in enumerate(wanted) if offence is not None]
        assert repr(found) == repr([("a call", same)] if same else [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_torchs_default_dtype_decides_nothing(dtype: torch.dtype, way: str) -> None:
    torch.set_default_dtype(dtype)
    try:
        assert judged(way, "x < 100000.0", {"x": i64(100100)}, {}) is not None
        assert judged(way, "x / 8 <= 12.5", {"x": i64(101)}, {}) is not None
        assert judged(way, "x <= n", {"x": i64(1001)}, {"n": 1000.0}) is not None
        assert judged(way, "max(x, 0.5) <= 1000", {"x": i64(1001)}, {}) is not None
        assert judged(way, "x <= 0.1", {"x": f32(0.1)}, {}) is None
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_are_rounded_once() -> None:
    r = random.Random(0)
    numbers = [
        r.choice([-1, 1]) * (2 ** r.randint(50, 62) + r.randint(0, 2**42)) for _ in range(99)
    ]
    numbers += [2**60 + 2**36, 2**60 + 2**36 + 1, 2**60 + 2**36 - 1, -(2**63), 2**63 - 1, 0, -1]
    numbers += [-(2**60) - 2**36, -(2**60) - 2**36 - 1, -(2**60) - 2**36 + 1]
    singles = torch.tensor(numbers, dtype=torch.int64).to(torch.float32)
    assert [rounded(number, torch.float32) for number in numbers] == singles.tolist()
    floats = [0.1, 1e300, -1e300, 1e-46, 3.4028236e38, NAN, -0.0]
    singles = torch.tensor(floats, dtype=torch.float64).to(torch.float32)
    assert str([rounded(number, torch.float32) for number in floats]) == str(singles.tolist())


UNJUDGEABLE: dict[str, tuple[str, torch.Tensor, Any, str]] = {
    "an argument beyond int64": ("x < n", i64(5), 2**63, "n is outside int64"),
    "beside floats": ("x < n", f32(5), -(2**70), "n is outside int64"),
    "computed": ("x < n * n", i64(5), 2**40, "n * n is outside int64"),
    "a power": ("x < 7 ** n", i64(5), 7**8, "a power is too large"),
    "a tuple": ("x < n", i64(5), (1, 2), "n is of type tuple, no number"),
    "a complex number": ("x == n", i64(5), 1j, "n is of type complex, no number"),
    "a tensor": ("x == n", i64(5), i64(1), "n is of type Tensor, no number"),
    "a tensor that is compared": ("n > 0 and x > 0", i64(5), i64(1, 2), "ambiguous"),
    "uint64": ("x >= 0", torch.tensor([2**64 - 1], dtype=torch.uint64), 0, "x is uint64"),
    "complex": ("x > 0", torch.zeros(1, dtype=torch.complex64), 0, "x is complex"),
    "FP4": ("x > 0", torch.zeros(4).byte().view(torch.float4_e2m1fn_x2), 0, "float4_e2m1fn_x2"),
    "int4": ("x > 0", torch.zeros(4).byte().view(torch.int4), 0, "x is int4"),
    "bits": ("x > 0", torch.zeros(4).byte().view(torch.bits8), 0, "x is bits8"),
    "a divisor": ("x % (5 // n) == 0", i64(5), 0, "it divides by zero"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", UNJUDGEABLE)
def test_what_cannot_be_judged_is_said_by_name(case: str, way: str) -> None:
    text, x, n, said = UNJUDGEABLE[case]
    with pytest.raises(Unjudgeable) as caught:
        judged(way, text, {"x": x}, {"n": n})
    assert said in str(caught.value)


# --- against Python itself, element by element

NAMES = ("x", "y")
FUNCTIONS = {
    "min": min,
    "max": max,
    "abs": abs,
    "cdiv": lambda a, b: -(-a // b),
    "isfinite": math.isfinite,
}
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64)


def a_number(r: random.Random, depth: int) -> str:
    if depth == 0 or r.random() < 0.3:
        return r.choice([*NAMES * 3, "n", "m", "1", "-1", "0", "2.5", "True"])
    a, b = a_number(r, depth - 1), a_number(r, depth - 1)
    plain = [f"({a} {operator} {b})" for operator in "+-*"]
    divisor = r.choice([*NAMES, "n", "2", "-3"])
    whole = [f"({a} {operator} {divisor})" for operator in ("//", "%", "/")]
    return r.choice([*plain, *whole, f"min({a}, {b})", f"max(n, {a}, {b})", f"abs({a})", f"-{a}"])


def a_rule(r: random.Random, depth: int) -> str:
    if depth == 0 or r.random() < 0.4:
        comparison = f"{r.choice(NAMES)} {r.choice(['<', '<=', '>', '==', '!='])} {a_number(r, 2)}"
        return comparison + r.choice(["", "", f" <= {a_number(r, 1)}", " in (n, 1, y)"])
    parts = [a_rule(r, depth - 1) for _ in range(r.choice([2, 2, 3]))]
    joined = f" {r.choice(['and', 'or'])} ".join(parts)
    return r.choice([joined, f"not ({joined})", f"isfinite({r.choice(NAMES)}) and ({joined})"])


def by_python(text: str, columns: Sequence[Sequence[Any]], env: dict[str, Any]) -> list[int]:
    """The indices of elements that break the rule, or whose judgement divides by zero."""
    code = compile(text, "rule", "eval")
    broken = []
    for index, elements in enumerate(zip(*columns, strict=True)):
        named = dict(zip(NAMES, elements, strict=True))
        try:
            holds = eval(code, {"__builtins__": {}, **FUNCTIONS}, {**named, **env})
        except ZeroDivisionError:
            holds = False
        if not holds:
            broken.append(index)
    return broken


@pytest.mark.parametrize("seed", range(40))
def test_rules_mean_what_they_mean_in_python(seed: int) -> None:
    r = random.Random(seed)
    torch.manual_seed(seed)
    while True:
        text = "x == x and y == y and (" + a_rule(r, 2) + ")"
        env = {"n": r.choice([1, 3, -2, True]), "m": r.choice([0.5, 2.0])}
        dtypes = r.choice(DTYPES), r.choice(DTYPES)
        # where floats divide by zero, Python raises and IEEE 754 does not
        if not ("/" in text or "%" in text) or not any(d.is_floating_point for d in dtypes):
            break
    low = [0 if dtype in (torch.bool, torch.uint8) else -4 for dtype in dtypes]
    tensors = {
        name: torch.randint(least, 7, (3, 5)).to(dtype)
        for name, dtype, least in zip(NAMES, dtypes, low, strict=True)
    }
    if r.random() < 0.5:
        tensors["y"] = tensors["y"].view(5, 3).T
    try:
        wanted = by_python(text, [x.flatten().tolist() for x in tensors.values()], env)
    except OverflowError:
        return
    for way in WAYS:
        try:
            found = judged(way, text, tensors, env)
        except Unjudgeable as error:  # a number of the whole call, which all come to
            assert "divides by zero" in str(error)
            continue
        assert (found and found[:2]) == ((len(wanted), wanted[0]) if wanted else None), (text, way)
