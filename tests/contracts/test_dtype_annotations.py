"""Every dtype class of jaxtyping and every group of them, against every dtype of torch."""

import jaxtyping
import pytest
import torch
from jaxtyping import BFloat16, Float16, Float32, Int32, Shaped
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of rare dtypes, by torch

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
CLASSES = [
    name
    for name, value in vars(jaxtyping).items()
    if isinstance(value, type)
    and issubclass(value, jaxtyping.AbstractDtype)
    and value is not jaxtyping.AbstractDtype
]


def empty(dtype: torch.dtype) -> Tensor | None:
    """A tensor of this dtype, if this torch can make one without values."""
    try:
        return torch.empty(2, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def annotated(annotation):
    def f(x: annotation) -> None: ...

    return f


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_accepts_what_jaxtyping_accepts(name: str) -> None:
    annotation = getattr(jaxtyping, name)[Tensor, "n"]
    tensors = [x for x in map(empty, DTYPES) if x is not None]
    expected = [x.dtype for x in tensors if isinstance(x, annotation)]
    if not expected:
        with pytest.raises(ContractDefinitionError, match="no such dtype"):
            contract(annotated(annotation))
        return
    f = contract(annotated(annotation))
    assert [x.dtype for x in tensors if f.contract.accepts(x)] == expected
    assert [x.dtype for x in tensors if f.contract.passes(x)] == expected
    assert [x.dtype for x in tensors if not f.contract.violations(x)] == expected


def test_there_are_classes_and_dtypes_to_test() -> None:
    assert len(CLASSES) > 30
    assert {torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16} <= set(DTYPES)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("Float8e4m3fn", torch.float8_e4m3fn),
        ("Float8e4m3fnuz", torch.float8_e4m3fnuz),
        ("Float8e5m2", torch.float8_e5m2),
        ("Float8e5m2fnuz", torch.float8_e5m2fnuz),
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.uint8,
        torch.bfloat16,
    ],
)
def test_flavours_of_eight_bit_floats_are_told_apart(
    name: str, right: torch.dtype, given: torch.dtype
) -> None:
    f = contract(annotated(getattr(jaxtyping, name)[Tensor, "n"]))
    x = torch.zeros(4, dtype=torch.uint8).view(given) if given.itemsize == 1 else torch.zeros(4)
    x = x.to(given)
    if given is right:
        f(x)
        return
    with pytest.raises(ContractError) as caught:
        f(x)
    assert f"x is {given}, expected {right}" in str(caught.value)


def test_a_union_of_dtypes() -> None:
    @contract
    def f(x: Float16[Tensor, "n m"] | BFloat16[Tensor, "n m"], y: Float32[Tensor, "m"]) -> None: ...

    f(torch.zeros(2, 3).half(), torch.zeros(3))
    f(torch.zeros(2, 3).bfloat16(), torch.zeros(3))
    with pytest.raises(ContractError, match=r"expected torch.float16 or torch.bfloat16"):
        f(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ContractError, match="y axis 0"):
        f(torch.zeros(2, 3).half(), torch.zeros(2))


def test_a_bare_tensor_has_any_dtype_and_shape() -> None:
    @contract
    def f(x: Tensor, y: Shaped[Tensor, "..."]) -> None: ...

    for x in (torch.zeros(()), torch.zeros(2, 3).bool(), torch.zeros(0, dtype=torch.complex64)):
        f(x, x)
        with pytest.raises(ContractError):
            f(x, 1)
    with pytest.raises(ContractError):
        f([torch.zeros(2)], torch.zeros(2))


def test_parameters_are_tensors_and_can_be_demanded() -> None:
    Weight = Float32[torch.nn.Parameter, "n"]

    @contract
    def f(x: Float32[Tensor, "n"], w: Weight, p: torch.nn.Parameter | None = None) -> None: ...

    weight = torch.nn.Parameter(torch.zeros(3))
    f(weight, weight, weight)
    f(torch.zeros(3), weight)
    with pytest.raises(ContractError, match="Parameter"):
        f(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ContractError, match="Parameter"):
        f(torch.zeros(3), weight, torch.zeros(3))


def test_an_annotation_within_an_annotation() -> None:
    Inner = Float32[Tensor, "n"]

    @contract
    def f(x: Shaped[Inner, "batch"], y: Int32[Tensor, "batch n"]) -> None: ...

    f(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ContractError):
        f(torch.zeros(2, 3).int(), torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ContractError):
        f(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.int32))


def test_arrays_of_another_library_are_refused_with_a_fix() -> None:
    np = pytest.importorskip("numpy")

    @contract
    def f(x: Float32[Tensor, "n"]) -> int:
        return x.shape[0]

    array = np.zeros(3, dtype=np.float32)
    with pytest.raises(ContractError) as caught:
        f(array)
    scope = {"x": array, "torch": torch}
    exec(caught.value.violations[0].fix, scope)
    assert f(scope["x"]) == 3
