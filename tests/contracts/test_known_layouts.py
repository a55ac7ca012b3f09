"""A check that knows a layout skips what would answer the same, and nothing else."""

import gc
import itertools
import weakref
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import contracts
from contracts import (
    ContractError,
    Rule,
    aligned,
    contiguous,
    contract,
    custom,
    no_grad,
    no_overlap,
    same_device,
    unit_stride,
    values,
    when,
)
from contracts.layouts import KNOWN, LEARNT, Layouts

Q = Float[Tensor, "batch length heads dim"]
calls_allowed = True


@contract(
    "dim % 2 == 0",
    "window <= length",
    "not causal or length <= memory",
    same_device(),
    no_grad(),
    unit_stride("q", "k"),
    contiguous("out"),
    no_overlap("out"),
    aligned(16, "q"),
    custom(lambda: calls_allowed, "calls are allowed", id="allowed"),
)
def attend(
    q: Q,
    k: Float[Tensor, "batch memory heads dim"],
    bias: Float[Tensor, "batch"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    out: Q | None = None,
    *,
    window: int = 0,
    causal: bool = False,
) -> int:
    return len(q)


def queries(length: int = 6, dim: int = 4, **options: Any) -> Tensor:
    return torch.zeros(2, length, 4, dim, **options)


def positional(**arguments: Any) -> list[Any]:
    """As the generated check takes them, which leaves what it refuses to the explaining path."""
    return list(attend.contract.bind(**arguments).values())


def layouts_of(function: Any) -> Layouts:
    (found,) = (x for x in function.__globals__.values() if isinstance(x, Layouts))
    return found


def test_the_second_call_of_a_layout_is_learnt() -> None:
    layouts = layouts_of(attend)
    layouts.known.clear()
    layouts.met[:] = [None] * KNOWN
    for length in (3, 5, 4):
        attend(queries(length), queries())
    assert not layouts.known
    for length in (5, 4):
        attend(queries(length), queries())
    assert set(layouts.known) == {(2, 4, 4, 4), (2, 5, 4, 4)}
    known = dict(layouts.known)
    for length in (5, 4, 4, 5):
        attend(queries(length), queries())
    assert layouts.known == known


def test_sizes_that_are_new_and_strides_that_vary_are_not_learnt_for_ever() -> None:
    layouts = layouts_of(attend)
    layouts.known.clear()
    layouts.met[:] = [None] * KNOWN
    for _ in range(3):
        for length in range(1, 3 * KNOWN):
            attend(queries(length), queries(length))
    assert len(layouts.met) == KNOWN
    learnt = []
    for _ in range(20):
        for steps in (1, 2, 3):
            attend(queries(7), queries(400 * steps)[:, ::steps])
            learnt.append(layouts.known.get(queries(7).shape))
    assert len({id(entry) for entry in learnt}) == 1 + LEARNT
    for length in range(1, 3 * KNOWN):
        for _ in range(2):
            attend(queries(length), queries())
        assert len(layouts.known) <= KNOWN


OFF = torch.zeros(194)[2:].view(2, 6, 4, 4)


CALLS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "plain": ({}, set()),
    "longer": ({"q": queries(8)}, set()),
    "odd dim": ({"q": queries(dim=3), "k": queries(dim=3)}, {"dim%2==0"}),
    "another length": ({"k": queries(5)}, set()),
    "causal": ({"causal": True}, set()),
    "causal too long": ({"causal": True, "k": queries(5)}, {"notcausalorlength<=memory"}),
    "window": ({"window": 6}, set()),
    "window true": ({"window": True}, set()),
    "window too wide": ({"window": 7}, {"window<=length"}),
    "strided": ({"k": queries(12)[:, ::2]}, set()),
    "steps": ({"k": queries(dim=8)[..., ::2]}, {"unit_stride(q,k)"}),
    "transposed": ({"q": torch.zeros(2, 4, 6, 4).transpose(1, 2)}, set()),
    "bias": ({"bias": torch.zeros(2)}, set()),
    "short bias": ({"bias": torch.zeros(1)}, {"bias-batch"}),
    "lengths": ({"lengths": torch.zeros(2, dtype=torch.int32)}, set()),
    "float lengths": ({"lengths": torch.zeros(2)}, {"lengths-dtype"}),
    "out": ({"out": queries()}, set()),
    "transposed out": ({"out": torch.zeros(2, 4, 6, 4).transpose(1, 2)}, {"contiguous(out)"}),
    "meta": ({"k": queries(device="meta")}, {"same_device"}),
    "grad": ({"k": queries(requires_grad=True)}, {"no_grad"}),
    "double": ({"k": queries(dtype=torch.float64)}, set()),
    "off by 8 bytes": ({"q": OFF}, {"aligned(16,q)"}),
    "none of it": ({"q": queries(0), "k": queries(0)}, set()),
    "parameter": ({"k": torch.nn.Parameter(queries(), requires_grad=False)}, set()),
}  # fmt: skip


def test_every_order_of_layouts_gives_the_same_verdicts() -> None:
    plain = {"q": queries(), "k": queries()}
    calls = [(plain | change, broken) for change, broken in CALLS.values()]
    overlapping = {"q": plain["q"], "k": plain["k"], "out": plain["q"]}
    calls.append((overlapping, {"no_overlap(out)"}))
    for arguments, broken in calls:
        assert {v.rule for v in attend.contract.violations(**arguments)} == broken
    for first, second in itertools.permutations(calls, 2):
        for arguments, broken in (first, first, first, second, second, second, first):
            try:
                attend(**arguments)
                refused = set()
            except ContractError as error:
                refused = {violation.rule for violation in error.violations}
            assert refused == broken
            assert attend.contract.passes(*positional(**arguments)) is not bool(broken)


def test_addresses_are_judged_at_every_call() -> None:
    memory = torch.zeros(3 * 192)
    q, k, apart = (memory[192 * i : 192 * (i + 1)].view(2, 6, 4, 4) for i in range(3))
    within = memory[8:200].view(2, 6, 4, 4)
    for _ in range(3):
        for _ in range(3):
            attend(q, k, out=apart)
        with pytest.raises(ContractError, match="out and q overlap"):
            attend(q, k, out=within)


def test_a_function_of_the_user_is_asked_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = queries(), queries()
    for _ in range(3):
        attend(q, k)
    monkeypatch.setattr(f"{__name__}.calls_allowed", False)
    with pytest.raises(ContractError, match="calls are allowed does not hold"):
        attend(q, k)


def test_grad_mode_is_asked_at_every_call() -> None:
    q, k = queries(), queries(requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(3):
                attend(q, k)
        with pytest.raises(ContractError, match="requires grad"):
            attend(q, k)


def test_one_tensor_may_be_given_twice() -> None:
    q = queries()
    for _ in range(4):
        assert attend(q, q) == 2
        with pytest.raises(ContractError, match="overlap"):
            attend(q, q, out=q)


def test_scalars_that_compare_equal_but_count_differently_are_not_taken_for_each_other() -> None:
    big = 2**53

    @contract("scale * 3 + length % 2 != 27021597764222977", unit_stride(), contiguous())
    def scaled(q: Q, k: Q, v: Q, scale: float | int) -> None: ...

    x = [queries(5), queries(5), queries(5)]
    for _ in range(3):
        scaled(*x, float(big))  # 3 * 2**53 + 1 is no float
        with pytest.raises(ContractError):
            scaled(*x, big)


def test_a_nested_tensor_after_known_ones_is_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(6, 4, 4), torch.zeros(5, 4, 4)])
    for name in ("q", "k", "out"):
        arguments = {"q": queries(), "k": queries(), "out": queries()}
        for _ in range(3):
            attend(**arguments)
        with pytest.raises(ContractError):
            attend(**arguments | {name: nested})


def test_no_tensor_is_kept_alive() -> None:
    arguments = [queries(7), queries(7)]
    watched = [weakref.ref(x) for x in arguments]
    for _ in range(3):
        attend(*arguments)
    del arguments
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_a_layout_counts_for_nothing_under_a_transform() -> None:
    q, k = queries(), queries()
    for _ in range(3):
        attend(q, k)

    def inside(x: Tensor) -> Tensor:
        with pytest.raises(ContractError, match="rank"):
            attend(q[0], k)
        assert attend(q, k) == 2
        return x

    torch.func.vmap(inside)(torch.zeros(2))


def test_a_known_layout_is_not_compared_with_symbolic_sizes() -> None:
    """Comparing would specialise what the caller left dynamic."""
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k = queries(9), queries(9)
    for _ in range(3):
        attend(q, k)

    def traced(x: Tensor, y: Tensor) -> Tensor:
        attend(x, y)
        return x.sum(1)

    graph = make_fx(traced, tracing_mode="symbolic")(queries(9), queries(9))
    assert graph(queries(4), queries(4)).shape == (2, 4, 4)
    computed = [line for line in graph.code.splitlines() if "tensor_contracts" not in line]
    assert "9" not in "".join(computed)


def test_rules_within_a_condition_are_asked_anew_where_they_are_without_one() -> None:
    willing = [True]

    @contract(
        unit_stride(),
        contiguous(),
        when("causal", custom(lambda: willing[0], "it is willing", id="willing")),
        when("causal", no_grad()),
    )
    def masked(q: Q, k: Q, v: Q, causal: bool = True) -> None: ...

    plain, trained = [queries(5), queries(5)], queries(5, requires_grad=True)
    for _ in range(3):
        masked(*plain, queries(5))
        with torch.no_grad():
            masked(*plain, trained)
    with pytest.raises(ContractError, match="requires grad"):
        masked(*plain, trained)
    willing[0] = False
    with pytest.raises(ContractError, match="it is willing"):
        masked(*plain, queries(5))
    masked(*plain, queries(5), causal=False)


def test_zeros_of_two_signs_and_two_types_are_not_taken_for_each_other() -> None:
    numpy = pytest.importorskip("numpy")

    @contract("length / scale > 1", unit_stride(), contiguous())
    def scaled(q: Q, k: Q, v: Q, scale: float) -> None: ...

    call = [queries(5), queries(5), queries(5)]
    for scale in (2.0, 2.0, 2.0, numpy.float64(0.0), 0.0, numpy.float64(-0.0), 9.0, float("nan")):
        for _ in range(3):
            right = not scaled.contract.violations(*call, scale)
            assert scaled.contract.passes(*call, scale) is right


def test_what_one_condition_measures_is_not_there_outside_of_it() -> None:
    @contract(contiguous("out"), when("length > 30", no_overlap("out")), no_overlap("q"))
    def written(q: Q, out: Q) -> None: ...

    assert written.contract.passes(queries(3), queries(3))
    whole = queries(40)
    assert not written.contract.passes(whole, whole)


def test_a_condition_on_addresses_covers_the_whole_rule() -> None:
    @contract(when("data_ptr(q) % 8 == 0", no_overlap("out")))
    def written(q: Q, out: Q) -> None: ...

    itself = torch.zeros(2, 1, 4, 4).expand(2, 6, 4, 4)
    assert written.contract.violations(queries(), itself)
    assert not written.contract.passes(queries(), itself)


def test_a_contract_may_be_declared_among_fake_tensors() -> None:
    with FakeTensorMode():

        @contract(unit_stride(), contiguous(), same_device())
        def many(
            a: Q,
            b: Q,
            c: Q,
            d: Q | None = None,
            e: Q | None = None,
            f: Q | None = None,
            g: Q | None = None,
            h: Q | None = None,
            i: Q | None = None,
        ) -> int:
            return len(a)

    for _ in range(4):
        assert many(queries(), queries(), queries(), i=queries()) == 2


def test_what_no_guard_looks_at_is_asked_in_every_call() -> None:
    """Attributes of a tensor, and rules of which only their author knows what they read."""

    class FromTheStart(Rule):
        @property
        def text(self) -> str:
            return "from the start"

        def resolve(self, names: Any) -> Rule:
            return self

        def emit(self, code: Any) -> None:
            code.require(f"{code.name('q')}.storage_offset() == 0")

        def judge(self, call: Any) -> Any:
            if call.env["q"].storage_offset():
                yield self.violation(call, "q does not begin where its memory does")

    @contract(unit_stride(), contiguous(), FromTheStart(id="start"))
    def starting(q: Q, k: Q, v: Q) -> None: ...

    @contract(unit_stride(), contiguous("q", "k"))
    def grouped(q: Q, k: Q, sizes: Float[Tensor, "{q.groups}"]) -> None: ...

    later = torch.zeros(3, 2, 5, 4, 4)[1]
    q = queries(5)
    q.groups = 2  # type: ignore[attr-defined]
    for _ in range(3):
        starting(queries(5), queries(5), queries(5))
        grouped(q, queries(5), torch.zeros(2))
    with pytest.raises(ContractError, match="does not begin"):
        starting(later, queries(5), queries(5))
    q.groups = 3  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="expected 3"):
        grouped(q, queries(5), torch.zeros(2))


def test_a_word_of_a_literal_is_not_taken_for_an_axis() -> None:
    @contract(unit_stride(), contiguous(), custom(lambda length: length > 0, "some length"))
    def over(q: Q, k: Q, v: Q, along: Literal["length", "dim"] = "length") -> None: ...

    call = [queries(5), queries(5), queries(5)]
    for _ in range(4):
        assert over.contract.passes(*call, "length")
        assert over.contract.check(*call)["length"] == 5


def test_a_condition_within_a_condition_is_one_of_both() -> None:
    @contract(when("window > 0", when("window > 1", values("q >= 0"))))
    def watched(q: Q, window: int = 2) -> None: ...

    (rule,) = watched.contract.rules
    assert rule.text == "when (window > 0) and (window > 1): q >= 0"
    with contracts.mode("debug"):
        watched(-torch.ones(1, 1, 1, 1), 1)
        with pytest.raises(ContractError, match="breaks q >= 0"):
            watched(-torch.ones(1, 1, 1, 1), 2)
