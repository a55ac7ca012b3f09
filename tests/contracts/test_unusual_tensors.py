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
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # beta features of torch say so


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A subclass that answers through `__torch_dispatch__`, with no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

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
    "wrapper": lambda: Wrapper(dense()),
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
