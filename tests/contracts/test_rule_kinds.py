"""Each kind of rule in each place where a tensor can stand: passing and failing inputs, the same
verdict on the generated and on the explaining path."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from contracts import (
    ContractDefinitionError,
    ContractError,
    aligned,
    contiguous,
    contract,
    custom,
    device,
    dtype,
    no_grad,
    no_overlap,
    requires,
    rule,
    same_device,
    same_dtype,
    unit_stride,
    values,
    when,
)

Any2 = Float[Tensor, "_ _"]


def tensor(*args: Any) -> Tensor:
    return torch.zeros(4, 6, *args)


def meta() -> Tensor:
    return torch.zeros(4, 6, device="meta")


def grad() -> Tensor:
    return torch.zeros(4, 6, requires_grad=True)


def shifted(elements: int) -> Tensor:
    """Dense, and `elements` past an aligned address."""
    storage = torch.zeros(64)
    lead = -storage.data_ptr() // 4 % 16
    return storage[lead + elements :][:24].view(4, 6)


def plain(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: Any2, flag: int = 1): ...

    return lambda x: (f, (x, 1))


def optional(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: Any2 | None = None, flag: int = 1): ...

    return lambda x: (f, (x, 1))


def listed(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: list[Any2], flag: int = 1): ...

    return lambda x: (f, ([x], 1))


def variadic(*rules: Any) -> Any:
    @contract(*rules)
    def f(*x: Any2): ...

    return lambda x: (f, ((x,),))


def mapped(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: dict[str, tuple[int, Any2 | None]] | None = None, flag: int = 1): ...

    return lambda x: (f, ({"a": (1, None), "b": (2, x)}, 1))


def union(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: Any2 | Float[Tensor, "n"] | float, flag: int = 1): ...

    return lambda x: (f, (x, 1))


def untyped(*rules: Any) -> Any:
    @contract(*rules)
    def f(x: Tensor, flag: int = 1): ...

    return lambda x: (f, (x, 1))


def conditional(*rules: Any) -> Any:
    @contract(*(when("flag == 1", rule) for rule in rules))
    def f(x: Any2, flag: int = 1): ...

    return lambda x: (f, (x, 1))


PLACES = [plain, optional, listed, variadic, mapped, union, untyped, conditional]

CASES: list[tuple[Any, Callable[[], Tensor], Callable[[], Tensor]]] = [
    (lambda: device("cpu", "x"), tensor, meta),
    (lambda: device("meta", "x"), meta, tensor),
    (lambda: device("cpu"), tensor, meta),
    (lambda: dtype(torch.float32, "x"), tensor, lambda: tensor().double()),
    (lambda: dtype((torch.float16, torch.bfloat16)), lambda: tensor().half(), tensor),
    (lambda: unit_stride("x"), lambda: tensor()[:, 2:5], lambda: tensor()[:, ::2]),
    (lambda: unit_stride("x", dim=0), lambda: torch.zeros(6, 4).T, tensor),
    (lambda: unit_stride(dim=-2), lambda: torch.zeros(1, 5), tensor),
    (lambda: contiguous("x"), tensor, lambda: tensor()[:, 1:]),
    (lambda: contiguous(), lambda: tensor()[1:], lambda: tensor().T),
    (lambda: aligned(64, "x"), lambda: shifted(0), lambda: shifted(1)),
    (lambda: aligned(8), lambda: shifted(2), lambda: shifted(3)),
    (lambda: no_overlap("x"), tensor, lambda: torch.zeros(1, 6).expand(4, 6)),
    (lambda: no_overlap("x"), tensor, lambda: torch.zeros(9).as_strided((4, 6), (1, 1))),
    (lambda: no_grad("x"), tensor, grad),
    (lambda: no_grad(), tensor, grad),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("make", "right", "wrong"), CASES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_rule_on_one_tensor(
    make: Any, right: Callable[[], Tensor], wrong: Callable[[], Tensor], place: Any
) -> None:
    call = place(make())
    f, arguments = call(right())
    assert f.contract.passes(*arguments), f.contract.source
    assert f.contract.violations(*flat(f, arguments)) == ()
    f, arguments = call(wrong())
    assert not f.contract.passes(*arguments), f.contract.source
    faults = f.contract.violations(*flat(f, arguments))
    assert [fault.rule for fault in faults] == [f.contract.rules[0].id]
    assert faults[0].argument.startswith("x")
    with pytest.raises(ContractError):
        f(*flat(f, arguments))


def flat(f: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as a call writes them."""
    names = [p.kind.name for p in f.contract.declaration.signature.parameters.values()]
    return arguments[0] if names[0] == "VAR_POSITIONAL" else arguments


@pytest.mark.parametrize("place", [optional, mapped])
@pytest.mark.parametrize("make", [case[0] for case in CASES])
def test_an_absent_tensor_obeys_every_rule(make: Any, place: Any) -> None:
    f, _ = place(make())(None)
    assert f.contract.passes(None, 1)
    assert f.contract.violations(None) == ()
    f()


def test_a_condition_that_is_false_demands_nothing() -> None:
    for make, _, wrong in CASES:
        f, (x, _) = conditional(make())(wrong())
        assert f.contract.passes(x, 2)
        assert f.contract.violations(x, 2) == ()


PAIRS: list[tuple[Any, Callable[[], Tensor], Callable[[], Tensor]]] = [
    (same_device, tensor, meta),
    (same_dtype, tensor, lambda: tensor().double()),
]


def two(x: Shaped[Tensor, "..."], y: Shaped[Tensor, "..."], z: Tensor | None = None): ...


def two_optional(x: Tensor | None, y: Tensor | None = None, z: list[Tensor] | None = None): ...


def two_listed(x: list[Tensor], y: dict[str, Tensor], z: tuple[Tensor, ...] = ()): ...


@pytest.mark.parametrize(("make", "first", "second"), PAIRS, ids=["device", "dtype"])
@pytest.mark.parametrize("names", [(), ("x", "y", "z"), ("x", "y")], ids=str)
@pytest.mark.parametrize(
    ("function", "wrap"),
    [
        (two, lambda x, y, z: (x, y, z)),
        (two_optional, lambda x, y, z: (x, y, None if z is None else [z])),
        (two_listed, lambda x, y, z: ([x], {"k": y}, () if z is None else (z,))),
    ],
    ids=["plain", "optional", "containers"],
)
def test_a_rule_that_compares_tensors(
    make: Any, first: Any, second: Any, names: Any, function: Any, wrap: Any
) -> None:
    f = contract(make(*names))(function)

    def accepted(*arguments: Any) -> bool:
        verdict = f.contract.passes(*wrap(*arguments))
        assert verdict == (not f.contract.violations(*wrap(*arguments)))
        return verdict

    a, b = first(), second()
    assert accepted(a, a, None)
    assert accepted(b, b, b)
    assert not accepted(a, b, None)
    assert not accepted(b, a, a)
    assert accepted(a, a, b) == (names == ("x", "y"))
    fault = f.contract.violations(*wrap(a, b, None))[0]
    assert fault.argument.startswith("y")
    assert fault.origin.startswith("x")


def test_comparisons_skip_absent_tensors() -> None:
    f = contract(same_device(), same_dtype("x", "y"))(two_optional)
    for arguments in [(None,), (None, tensor()), (tensor(), None), (None, None, [meta(), meta()])]:
        f(*arguments)
    for arguments in [(None, tensor(), [meta()]), (tensor(), tensor().half())]:
        assert not f.contract.passes(*arguments, *[None] * (3 - len(arguments)))
        with pytest.raises(ContractError):
            f(*arguments)


def test_requires() -> None:
    @contract(requires("b", when="a"), requires("c"))
    def f(x: Any2, a: Tensor | None = None, b: int | None = None, c: str | None = None): ...

    x = tensor()
    f(x, c="c")
    f(x, x, 1, "c")
    f(x, None, 1, "c")
    for arguments, missing in [((x, x, None, "c"), "b"), ((x,), "c"), ((x, None, 1), "c")]:
        assert not f.contract.passes(*arguments, *[None] * (4 - len(arguments)))
        with pytest.raises(ContractError, match=f"{missing} is None, expected a value"):
            f(*arguments)
    with pytest.raises(ContractError, match="because a is given"):
        f(x, x, None, "c")


def test_overlap_with_any_other_tensor() -> None:
    @contract(no_overlap("out", "lse"))
    def f(
        q: Any2,
        many: list[Tensor] | None = None,
        *,
        out: Any2 | None = None,
        lse: Any2 | None = None,
    ): ...

    storage, q = torch.zeros(200), tensor()
    left, right, across = (storage[i : i + 24].view(4, 6) for i in (0, 24, 12))
    interleaved = torch.zeros(4, 12)
    right_calls: list[dict[str, Any]] = [
        {"q": q},
        {"q": q, "out": left, "lse": right},
        {"q": left, "out": right},
        {"q": left, "many": [left, across]},
        {"q": q, "many": [left, left], "lse": right},
        {"q": q, "out": left[:0], "lse": left},
        {"q": interleaved[:2, :6], "out": interleaved[2:, :6]},
    ]
    wrong_calls: list[tuple[dict[str, Any], str]] = [
        ({"q": q, "out": left, "lse": left}, "out and lse overlap"),
        ({"q": q, "out": left, "lse": across}, "out and lse overlap"),
        ({"q": q, "out": q}, "out and q overlap"),
        ({"q": across, "lse": right}, "lse and q overlap"),
        ({"q": q, "many": [q, right], "lse": across}, r"lse and many\[1\] overlap"),
        ({"q": interleaved[:, :6], "out": interleaved[:, 6:]}, "out and q overlap"),
        ({"q": q, "out": storage[:6].expand(4, 6)}, "out overlaps itself"),
    ]
    for call in right_calls:
        assert f.contract.passes(*f.contract.bind(**call).values()), call.keys()
        f(**call)
    for call, text in wrong_calls:
        assert not f.contract.passes(*f.contract.bind(**call).values()), text
        with pytest.raises(ContractError, match=text):
            f(**call)


def test_pointers_of_tensors_without_memory_are_excused() -> None:
    @contract(no_overlap("out"), aligned(16), "data_ptr(x) % 4096 > 0")
    def f(x: Any2, out: Any2): ...

    f(meta(), meta())
    f(meta()[:, 1:], meta())
    with pytest.raises(ContractError, match="overlaps itself"):
        f(meta(), meta()[:1].expand(4, 6))


def test_when() -> None:
    @contract(
        when("causal", "q_len == kv_len", hint="pad q"),
        when("bias is not None and q_len > 4", contiguous("bias")),
        when("kv_len > 6", when("not causal", "q_len > 1")),
    )
    def f(
        q: Float[Tensor, "q_len d"],
        k: Float[Tensor, "kv_len d"],
        causal: bool,
        bias: Float[Tensor, "q_len kv_len"] | None = None,
    ): ...

    def accepted(q_len: int, kv_len: int, causal: bool, bias: Tensor | None = None) -> bool:
        arguments = (torch.zeros(q_len, 2), torch.zeros(kv_len, 2), causal, bias)
        verdict = f.contract.passes(*arguments)
        assert verdict == (not f.contract.violations(*arguments))
        return verdict

    assert accepted(3, 3, True)
    assert not accepted(3, 4, True)
    assert accepted(3, 4, False)
    assert accepted(3, 4, False, torch.zeros(4, 3).T)
    assert not accepted(5, 4, False, torch.zeros(4, 5).T)
    assert accepted(5, 4, False, torch.zeros(5, 4))
    assert not accepted(1, 7, False)
    assert accepted(2, 7, False)
    with pytest.raises(ContractError) as caught:
        f(torch.zeros(3, 2), torch.zeros(4, 2), True)
    text = str(caught.value)
    assert "q_len == kv_len does not hold (when causal)" in text
    assert "hint: pad q" in text


def test_custom() -> None:
    calls = []

    def even_total(q, n, k=None):
        calls.append((n, k))
        return (q.numel() + n + (k or 0)) % 2 == 0

    @contract(custom(even_total, "an even total", id="even", hint="add one"))
    def f(q: Float[Tensor, "n m"], k: int | None = None): ...

    f(torch.zeros(2, 3))
    f(torch.zeros(3, 5), 2) if False else f(torch.zeros(3, 3), 2)
    assert calls[0] == (2, None)
    with pytest.raises(ContractError, match="an even total does not hold: n is 3") as caught:
        f(torch.zeros(3, 4))
    assert caught.value.violations[0].rule == "even"
    with pytest.raises(ContractError, match=r"q-dtype"):
        f(torch.zeros(3, 4).int())


def test_a_custom_rule_that_fails_itself_says_so() -> None:
    @contract(custom(lambda q: q.shape[7] > 1, "a seventh axis"))
    def f(q: Tensor): ...

    assert "IndexError" in f.contract.violations(torch.zeros(2))[0].message
    with pytest.raises(ContractError, match="a seventh axis cannot be judged"):
        f(torch.zeros(2))


def test_values_are_not_read() -> None:
    @contract(values("0 <= x < n", id="in-range"))
    def f(x: Float[Tensor, "n"]): ...

    f(torch.full((3,), 99.0))
    assert f.contract.rules[0].values


def test_every_rule_takes_an_id_and_a_hint() -> None:
    rules = [
        rule("n > 0", id="a", hint="h"),
        same_device(id="b", hint="h"),
        same_dtype(id="c", hint="h"),
        device("cpu", id="d", hint="h"),
        dtype(torch.float32, id="e", hint="h"),
        unit_stride(id="f", hint="h"),
        contiguous(id="g", hint="h"),
        aligned(4, id="h", hint="h"),
        no_overlap("x", id="i", hint="h"),
        no_grad(id="j", hint="h"),
        requires("y", id="k", hint="h"),
        when("n > 1", "n > 2", id="l", hint="h"),
        custom(lambda n: n > 0, "n > 0", id="m", hint="h"),
        values("x > 0", id="n", hint="h"),
    ]

    @contract(*rules)
    def f(x: Float[Tensor, "n"], y: Tensor | None = None): ...

    assert "".join(item.id for item in f.contract.rules) == "abcdefghijklmn"
    assert {item.hint for item in f.contract.rules} == {"h"}


def test_ids_come_from_the_rules_themselves() -> None:
    @contract(
        "n % 2 == 0",
        same_device(),
        unit_stride("x", dim=0),
        aligned(16),
        dtype(torch.float32, "x"),
        requires("y", when="z"),
        when("n > 1", contiguous("x")),
    )
    def f(x: Float[Tensor, "n"], y: Tensor | None = None, z: int | None = None): ...

    assert [item.id for item in f.contract.rules] == [
        "n%2==0",
        "same_device",
        "unit_stride(dim=0,x)",
        "aligned(16)",
        "dtype(float32,x)",
        "z-requires-y",
        "whenn>1:contiguous(x)",
    ]


@pytest.mark.parametrize(
    "rules",
    [
        lambda: ("n > 1", "n > 1"),
        lambda: (rule("n > 1", id="same"), rule("n > 2", id="same")),
        lambda: (contiguous("unknown"),),
        lambda: (contiguous("k"),),
        lambda: (unit_stride("n"),),
        lambda: (no_overlap("x", "unknown"),),
        lambda: (no_grad("k"),),
        lambda: (same_device("x", "k"),),
        lambda: (device("nowhere"),),
        lambda: (dtype("float32", "x"),),
        lambda: (dtype((), "x"),),
        lambda: (aligned(12, "x"),),
        lambda: (aligned(0),),
        lambda: (requires("x"),),
        lambda: (requires("unknown"),),
        lambda: (requires("y", when="x"),),
        lambda: (requires("y", when="unknown"),),
        lambda: (when("n", "n > 1"),),
        lambda: (when("n > 1", "unknown > 1"),),
        lambda: (when("unknown > 1", "n > 1"),),
        lambda: (when("n > 1", contiguous("unknown")),),
        lambda: (custom(lambda unknown: True, "x"),),
        lambda: (3,),
        lambda: (contiguous,),
        lambda: (len,),
    ],
)
def test_a_rule_that_cannot_be_honoured_is_a_definition_error(rules: Any) -> None:
    with pytest.raises(ContractDefinitionError):

        @contract(*rules(), "n > 0")
        def f(x: Float[Tensor, "n"], k: int, y: Tensor | None = None): ...


@pytest.mark.parametrize("make", [same_device, same_dtype, contiguous, unit_stride, no_grad])
def test_a_rule_on_every_tensor_needs_one(make: Any) -> None:
    with pytest.raises(ContractDefinitionError, match="no tensor argument"):
        contract(make())(lambda x: x)
