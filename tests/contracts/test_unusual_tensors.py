"""Tensors that are not plain strided memory are judged by rule: never misread, never a crash."""

import warnings
from collections.abc import Callable
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import torch
from jaxtyping import BFloat16, Complex64, Float8e4m3fn, Float32, Shaped
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import contracts
from contracts import (
    ContractError,
    aligned,
    contiguous,
    contract,
    device,
    no_grad,
    no_overlap,
    same_device,
    same_dtype,
    unit_stride,
    values,
    when,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # beta features of torch say so


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A subclass that answers through `__torch_dispatch__`, with no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"no contents: {function}")


def dense() -> Tensor:
    return torch.eye(3)


def fake(where: str = "cpu", *, strided: bool = False) -> Tensor:
    with FakeTensorMode():
        if strided:
            return torch.empty_strided((3, 3), (1, 3), device=where)
        return torch.empty(3, 3, device=where)


STRIDED: dict[str, Callable[[], Tensor]] = {
    "dense": dense,
    "parameter": lambda: torch.nn.Parameter(dense()),
    "subclass": lambda: dense().as_subclass(Subclass),
    "meta": lambda: torch.empty(3, 3, device="meta"),
    "fake": fake,
    "fake cuda": lambda: fake("cuda"),
    "fake cuda:1": lambda: fake("cuda:1"),
    "empty": lambda: torch.zeros(0, 3),
    "size one": lambda: torch.zeros(1, 1).as_strided((1, 1), (7, 9)),
    "inference": lambda: inference(),
    "empty wrapper": lambda: Wrapper(torch.zeros(0, 3)),
    "meta wrapper": lambda: Wrapper(torch.empty(3, 3, device="meta")),
    "resolved": lambda: negative().resolve_neg(),
    "not lazy": lambda: torch.zeros(3, 3, dtype=torch.complex64).imag.contiguous(),
}
MISREAD: dict[str, tuple[Callable[[], Any], str]] = {
    "coo": (lambda: dense().to_sparse(), "sparse"),
    "empty coo": (lambda: torch.zeros(0, 3).to_sparse(), "sparse"),
    "coo of one": (lambda: torch.ones(1, 1).to_sparse(), "sparse"),
    "csr": (lambda: dense().to_sparse_csr(), "sparse"),
    "csc": (lambda: dense().to_sparse_csc(), "sparse"),
    "bsr": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse"),
    "oneDNN": (lambda: dense().to_mkldnn(), "laid out as mkldnn"),
    "negative": (lambda: negative(), "negative"),
    "jagged": (lambda: nested(torch.jagged), "nested"),
    "strided nested": (lambda: nested(torch.strided), "nested"),
    "wrapper": (lambda: Wrapper(dense()), "a Wrapper without memory of its own"),
    "masked": (lambda: masked(), "a MaskedTensor without memory of its own"),
}
RULES: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: contiguous("x"),
    "unit_stride": lambda: unit_stride("x"),
    "unit_stride of all": lambda: unit_stride(),
    "unit_stride dim 0": lambda: unit_stride("x", dim=0),
    "aligned": lambda: aligned(4, "x"),
    "no_overlap": lambda: no_overlap("x"),
}
ANNOTATIONS = {
    "axes": Float32[Tensor, "a b"],
    "variadic": Float32[Tensor, "*a b"],
    "any shape": Float32[Tensor, "..."],
    "any dtype": Shaped[Tensor, "..."],
    "bare": Tensor,
    "union": Float32[Tensor, "a b"] | Float32[Tensor, "..."] | int,
    "optional": Float32[Tensor, "..."] | None,
    "list": list[Float32[Tensor, "..."]],
}


def inference() -> Tensor:
    with torch.inference_mode():
        return dense()


def negative() -> Tensor:
    x = torch.zeros(3, 3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    return x


def masked() -> Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.masked.masked_tensor(dense(), torch.ones(3, 3).bool())


def nested(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=layout)


def over(annotation: Any, *rules: Any) -> Any:
    def f(x, y=None, z=None, w=None): ...

    f.__annotations__ = {"x": annotation, "y": Tensor | None}
    return contract(*rules)(f)


def both_verdicts(f: Any, *arguments: Any) -> bool:
    """What a call does; the generated check may not accept what the explanation refuses."""
    rest = [None] * (4 - len(arguments))
    faults = f.contract.violations(*arguments)
    passes = f.contract.passes(*arguments, *rest)
    assert not (passes and faults), f"{f.contract.source}\n{faults}"
    if faults:
        with pytest.raises(ContractError):
            f(*arguments)
    else:
        f(*arguments)
    return not faults


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("annotation", ANNOTATIONS.values(), ids=ANNOTATIONS)
@pytest.mark.parametrize(("make", "word"), MISREAD.values(), ids=MISREAD)
def test_rules_on_memory_refuse_what_strides_do_not_describe(
    make: Callable[[], Tensor], word: str, annotation: Any, rule: Callable[[], Any]
) -> None:
    f, x = over(annotation, rule()), make()
    x = [x] if get_origin(annotation) is list else x
    assert not both_verdicts(f, x)
    with pytest.raises(ContractError, match=word):
        f(x)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_rules_on_memory_read_the_strides_of_everything_else(
    make: Callable[[], Tensor], rule: Callable[[], Any]
) -> None:
    strided = rule().__class__.__name__ == "UnitStride" and rule().dim == 0
    for annotation in (Float32[Tensor, "a b"], Tensor, Float32[Tensor, "*a"] | None):
        x = make()
        expected = not strided or x.numel() <= 1
        assert both_verdicts(over(annotation, rule()), x) is expected


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "conjugate"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj()._neg_view(), "conjugate"),
        (lambda: torch.zeros(3, dtype=torch.complex64)._neg_view(), "negative"),
    ],
)
def test_lazy_complex_views(make: Callable[[], Tensor], word: str) -> None:
    for annotation in (Complex64[Tensor, "n"], Tensor, list[Complex64[Tensor, "n"]]):
        for rule in (contiguous("x"), unit_stride(), no_overlap("x")):
            f = over(annotation, rule)
            x = [make()] if get_origin(annotation) is list else make()
            assert not both_verdicts(f, x)
            with pytest.raises(ContractError, match=word) as caught:
                f(x)
            fix = caught.value.violations[0].fix
            assert fix is None if rule.word == "no_overlap" else ".resolve_" in fix
    over(Complex64[Tensor, "n"])(make())


def test_a_lazy_negative_view_of_any_dtype() -> None:
    f = over(BFloat16[Tensor, "n"], contiguous("x"))
    with pytest.raises(ContractError, match="negative"):
        f(torch.ones(3, dtype=torch.bfloat16)._neg_view())


def test_annotations_alone_take_any_layout_with_a_shape() -> None:
    f = over(Float32[Tensor, "a b"])
    for name, (make, _) in MISREAD.items():
        if "jagged" not in name and "nested" not in name:
            assert both_verdicts(f, make())
    assert not both_verdicts(f, nested(torch.jagged))  # three axes
    assert both_verdicts(over(Float32[Tensor, "a b c"]), nested(torch.jagged))
    assert not both_verdicts(over(Float32[Tensor, "a b c"]), nested(torch.strided))  # no shape


def test_quantised_tensors_are_no_floats() -> None:
    x = torch.quantize_per_tensor(dense(), 0.1, 0, torch.qint8)
    assert not both_verdicts(over(Float32[Tensor, "a b"]), x)
    assert both_verdicts(over(Tensor), x)
    with pytest.raises(ContractError, match="quantised"):
        over(Tensor, contiguous("x"))(x)


def test_fake_tensors_on_devices_that_this_machine_lacks() -> None:
    f = over(Float32[Tensor, "a b"], device("cuda"), same_device(), contiguous("x"))
    assert both_verdicts(f, fake("cuda"))
    assert both_verdicts(f, fake("cuda:1"), fake("cuda:1"))
    assert not both_verdicts(f, fake("cuda:0"), fake("cuda:1"))
    assert not both_verdicts(f, fake("cpu"))
    assert not both_verdicts(f, fake("cuda", strided=True))
    with pytest.raises(ContractError, match="x is on cuda:0, expected cuda:1"):
        over(Tensor, device("cuda:1"))(fake("cuda:0"))
    with pytest.raises(ContractError, match="y is on cuda:1, expected cuda:0"):
        f(fake("cuda:0"), fake("cuda:1"))


def test_fake_eight_bit_floats() -> None:
    f = over(Float8e4m3fn[Tensor, "a b"], contiguous("x"), aligned(16))
    with FakeTensorMode():
        assert both_verdicts(f, torch.empty(3, 3, dtype=torch.float8_e4m3fn, device="cuda"))
        assert not both_verdicts(f, torch.empty(3, 3, dtype=torch.float8_e5m2, device="cuda"))


def test_arrays_and_other_objects_are_not_tensors() -> None:
    every = [contiguous(), unit_stride(), aligned(4), no_grad(), same_device(), same_dtype()]
    f = over(Float32[Tensor, "a b"], *every, "numel(x) > 1", "a > 1", "stride(x, 0) > 0")
    for thing in (np.eye(3, dtype=np.float32), [[1.0]], "x", 1, object(), dense, None, [dense()]):
        faults = f.contract.violations(thing)
        assert [fault.rule for fault in faults] == ["x-type"]
        assert not both_verdicts(f, thing)


def test_zero_axes_and_zero_sizes() -> None:
    f = over(Float32[Tensor, ""], contiguous(), unit_stride("x"), no_overlap("x"))
    assert both_verdicts(f, torch.zeros(()))
    assert not both_verdicts(f, torch.zeros(1))
    g = over(Float32[Tensor, "a b"], contiguous(), unit_stride(), no_overlap("x"), aligned(16))
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert both_verdicts(g, torch.zeros(shape))
        assert both_verdicts(g, torch.zeros(5, 5)[: shape[0], : shape[1]])


def test_strides_of_axes_of_one_element_never_matter() -> None:
    f = over(Float32[Tensor, "a b"], unit_stride("x"), contiguous("x"), no_overlap("x"))
    assert both_verdicts(f, torch.zeros(8).as_strided((3, 1), (1, 99)))
    assert both_verdicts(f, torch.zeros(8).as_strided((1, 3), (0, 1)))
    assert both_verdicts(f, torch.zeros(3, 1).T.contiguous().T)
    assert not both_verdicts(f, torch.zeros(8).as_strided((1, 3), (1, 2)))


def test_mapped_tensors_are_judged_by_their_own_axes() -> None:
    f = over(Float32[Tensor, "a"], unit_stride("x"), contiguous("x"))
    seen = torch.func.vmap(lambda row: (f(row), row.sum())[1])(dense())
    assert seen.tolist() == [1.0] * 3
    g = over(Float32[Tensor, "a b"])

    def refused(row: Tensor) -> Tensor:
        with pytest.raises(ContractError):
            g(row)
        return row

    torch.func.vmap(refused)(dense())


def test_tensors_under_grad_transforms() -> None:
    f = over(Float32[Tensor, "a b"], contiguous("x"), aligned(4))
    torch.func.grad(lambda x: (f(x), x.sum())[1])(dense())


def test_describing_them_never_fails() -> None:
    f = over(int)
    makers = [*STRIDED.values(), *(make for make, _ in MISREAD.values())]
    makers.append(lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.qint8))
    makers.append(lambda: dense().to_mkldnn())
    for make in makers:
        with pytest.raises(ContractError) as caught, warnings.catch_warnings():
            warnings.simplefilter("error")
            f(make())
        (line,) = [line for line in caught.value.arguments if line.startswith("x")]
        assert "float32" in line or "qint8" in line
        assert len(line) < 100


def annotate(*annotations: Any) -> Any:
    names = [f"x{index}" for index in range(len(annotations))]
    scope: dict[str, Any] = {}
    defaults = ["=None" * (type(None) in get_args(item)) for item in annotations]
    signature = ", ".join(map(str.__add__, names, defaults))
    exec(f"def f({signature}): ...", scope)
    scope["f"].__annotations__ = dict(zip(names, annotations, strict=True))
    return contract(same_device())(scope["f"])


MATRIX, FREE = Float32[Tensor, "a b"], Float32[Tensor, "..."]


@pytest.mark.parametrize(
    "annotations",
    [
        [MATRIX] * 4,
        [FREE] * 4,
        [FREE, MATRIX, MATRIX, FREE],
        [MATRIX, *[MATRIX | None] * 4],
        [FREE, *[FREE | None] * 4],
        [FREE, FREE, FREE, *[MATRIX | None] * 3],
    ],
)
def test_one_unusual_tensor_among_many_after_usual_ones(annotations: list[Any]) -> None:
    """What the check has learned from usual calls is never asked about a tensor without strides:
    that would end the process."""
    f = annotate(*annotations)
    odd = [make for make, _ in MISREAD.values()] + [STRIDED["parameter"], STRIDED["subclass"]]
    for make in odd:
        for index in range(len(annotations)):
            arguments = [dense() for _ in annotations]
            assert f.contract.passes(*arguments)
            arguments[index] = make()
            assert f.contract.passes(*arguments) == (not f.contract.violations(*arguments))
    for make in odd:
        arguments = [make() for _ in annotations]
        for _ in range(3):
            assert f.contract.passes(*arguments) == (not f.contract.violations(*arguments))


def test_rules_on_addresses_refuse_what_has_several() -> None:
    f = over(Float32[Tensor, "..."] | None, "data_ptr(x) % 4 == 0")
    for layout in ("coo", "csr", "csc", "empty coo"):
        assert not both_verdicts(f, MISREAD[layout][0]())
    for name, make in STRIDED.items():
        assert both_verdicts(f, make()) or name == "not lazy"


def freed(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(0)
    return x


NOWHERE: dict[str, tuple[Callable[[], Tensor], str]] = {
    "freed": (lambda: freed(dense()), "freed memory"),
    "view of freed": (lambda: freed(torch.zeros(7, 3)[4:]), "freed memory"),
    "freed parameter": (lambda: freed(torch.nn.Parameter(dense())), "freed memory"),
    "freed subclass": (lambda: freed(dense().as_subclass(Subclass)), "a Subclass without memory"),
    "zero": (lambda: torch._efficientzerotensor((3, 3)), "a zero tensor without memory"),
    "view of zero": (lambda: torch._efficientzerotensor((7, 3))[4:], "a zero tensor without"),
}


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("rule", [lambda: aligned(4, "x"), lambda: no_overlap("x")])
@pytest.mark.parametrize(("make", "word"), NOWHERE.values(), ids=NOWHERE)
def test_rules_on_addresses_refuse_what_has_no_memory(
    make: Callable[[], Tensor], word: str, rule: Callable[[], Any], count: int
) -> None:
    names = ["x", "y", "z", "w"][:count]
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}): ...", scope)
    scope["f"].__annotations__ = dict.fromkeys(names, Float32[Tensor, "a b"])
    f = contract("a > 0", contiguous("x"), unit_stride(), same_device(), rule())(scope["f"])
    rest = [dense() for _ in names[1:]]
    for _ in range(4):  # the layout is that of a usual call
        f(dense(), *rest)
    for _ in range(2):
        assert not f.contract.passes(make(), *rest)
        with pytest.raises(ContractError, match=f"x is {word}"):
            f(make(), *rest)
    f(dense(), *rest)


@pytest.mark.parametrize("annotation", [list[Float32[Tensor, "..."]], Tensor | None, Tensor])
@pytest.mark.parametrize(("make", "word"), NOWHERE.values(), ids=NOWHERE)
def test_rules_on_addresses_refuse_it_wherever_it_stands(
    make: Callable[[], Tensor], word: str, annotation: Any
) -> None:
    for rule in (aligned(4, "x"), no_overlap("x"), when("x is not None", aligned(4, "x"))):
        f, x = over(annotation, rule), make()
        assert not both_verdicts(f, [x] if get_origin(annotation) is list else x)


def test_memory_that_is_gone_overlaps_nothing() -> None:
    f = over(Float32[Tensor, "a b"], no_overlap("x"))
    assert both_verdicts(f, dense(), freed(dense()))
    assert both_verdicts(f, torch.zeros(0, 3), freed(dense()))


def test_uninitialised_parameters_are_refused_by_name() -> None:
    lazy = torch.nn.UninitializedParameter
    for rules in ([], [contiguous("x")], [aligned(4)], [no_overlap("x")], [unit_stride()]):
        f = over(Float32[Tensor, "a b"], *rules)
        assert not both_verdicts(f, lazy())
        with pytest.raises(ContractError, match="x is UninitializedParameter float32 uninit"):
            f(lazy())
    four = annotate(MATRIX, MATRIX, MATRIX, MATRIX)
    for index in range(4):
        arguments: list[Any] = [dense() for _ in range(4)]
        assert both_verdicts_of(four, *arguments)
        arguments[index] = lazy()
        assert not both_verdicts_of(four, *arguments)
    for rule in RULES.values():
        with pytest.raises(ContractError, match="x is uninitialised"):
            over(Float32[Tensor, "..."], rule())(lazy())
    assert both_verdicts(over(Tensor), lazy())


def both_verdicts_of(f: Any, *arguments: Any) -> bool:
    faults = f.contract.violations(*arguments)
    assert f.contract.passes(*arguments) == (not faults)
    return not faults


def both_rows(rule: Any, annotation: Any = Float32[Tensor, "n"]) -> Any:
    def f(x: Any, y: Float32[Tensor, "n"]) -> Tensor:
        return ((x[0] if isinstance(x, list) else x) * y).sum()

    f.__annotations__["x"] = annotation
    return contract(rule)(f)


def four_rows(rule: Any) -> Any:
    Row = Float32[Tensor, "n"]

    @contract("n > 0", contiguous("z", "w"), same_device(), rule)
    def f(x: Row, y: Row, z: Row, w: Row) -> Tensor:
        return (x * y * z * w).sum()

    for _ in range(4):
        f(*(torch.ones(4) for _ in range(4)))
    return lambda x, y: f(x, y, torch.ones(4), torch.ones(4))


SHAPES: dict[str, Callable[[Any], Any]] = {
    "two tensors": both_rows,
    "four tensors": four_rows,
    "optional": lambda rule: both_rows(rule, Float32[Tensor, "n"] | None),
    "any shape": lambda rule: both_rows(rule, Float32[Tensor, "..."]),
    "list": lambda rule: lambda x, y: both_rows(rule, list[Float32[Tensor, "n"]])([x], y),
}
TRANSFORMS: dict[str, Callable[[Any], Callable[[Tensor, Tensor], Any]]] = {
    "grad": torch.func.grad,
    "grad of both": lambda f: torch.func.grad(f, argnums=(0, 1)),
    "vjp": lambda f: lambda x, y: torch.func.vjp(f, x, y)[0],
    "jvp": lambda f: lambda x, y: torch.func.jvp(f, (x, y), (x, y)),
    "jacrev": torch.func.jacrev,
    "jacfwd, of an outer tensor": lambda f: (
        lambda x, y: torch.func.jacfwd(lambda z: f(x, y) + z.sum())(torch.ones(2))
    ),
    "hessian": lambda f: (
        lambda x, y: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x, y))(x).sum())(x)
    ),
    "functionalize": torch.func.functionalize,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_transforms_do_not_hide_addresses(
    shape: Callable[[Any], Any], transform: Callable[[Any], Any]
) -> None:
    buffer = torch.ones(20)
    rules: list[Any] = [aligned(16, "x"), no_overlap("x"), when("y is not None", aligned(16, "x"))]
    if "[0]" not in str(shape) and shape is not SHAPES["list"]:
        rules.append("data_ptr(x) % 16 == 0")
    for rule in rules:
        call = transform(shape(rule))
        call(buffer[:4], buffer[8:12])
        wrong = buffer[2:6] if getattr(rule, "word", "") == "no_overlap" else buffer[8:12]
        with pytest.raises(ContractError, match="past a 16-byte|overlap in memory|does not hold"):
            call(buffer[1:5], wrong)


@pytest.mark.parametrize("rule", [aligned(16), no_overlap("x"), "data_ptr(x) % 16 == 0"])
def test_addresses_inside_vmap_are_excused(rule: Any) -> None:
    f, buffer = both_rows(rule), torch.ones(20)
    for function in (f, torch.func.grad(f)):
        torch.vmap(function)(buffer[1:9].view(2, 4), buffer[1:9].view(2, 4))


@pytest.mark.parametrize(("make", "word"), NOWHERE.values(), ids=NOWHERE)
def test_strides_of_freed_memory_are_judged_as_they_are(
    make: Callable[[], Tensor], word: str
) -> None:
    """Whether there is memory at all, only an address tells, which these rules do not read."""
    for rule in (contiguous("x"), unit_stride("x")):
        f = over(Float32[Tensor, "a b"], rule)
        assert both_verdicts(f, make()) is ("Subclass" not in word)


@pytest.mark.parametrize("make", [masked, lambda: Wrapper(dense())], ids=["masked", "wrapper"])
@pytest.mark.parametrize("mode", ["debug", "async"])
def test_contents_of_subclasses_without_memory_are_refused(
    mode: str, make: Callable[[], Tensor]
) -> None:
    f = over(Float32[Tensor, "a b"], values("x >= 0"))
    with contracts.mode(mode), pytest.raises(ContractError, match="without memory of its own"):
        f(make())
    contracts.synchronize()
