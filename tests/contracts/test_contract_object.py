"""`function.contract`: checks without the call, sizes without tensors, the same for others."""

import copy
import inspect
import pickle

import pytest
import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

from contracts import Contract, ContractDefinitionError, ContractError, contract, rule, when

Image = BFloat16[Tensor, "batch img_len num_heads head_dim"]


@contract(
    rule("head_dim % 2 == 0", id="even"),
    "num_heads % groups == 0",
    when("causal", "img_len > 1"),
)
def pack(
    image: Image,
    table: Float32[Tensor, "img_len head_dim/2"],
    groups: int = 1,
    causal: bool = False,
    text: BFloat16[Tensor, "batch txt_len num_heads head_dim"] | None = None,
) -> tuple[BFloat16[Tensor, "batch img_len num_heads*head_dim"], Float32[Tensor, "head_dim/2"]]:
    raise AssertionError("the function itself is not called")


def arguments(head_dim: int = 4) -> tuple[Tensor, Tensor]:
    image = torch.zeros(2, 3, 4, head_dim, dtype=torch.bfloat16)
    return image, torch.zeros(3, head_dim // 2)


def test_check_returns_the_sizes() -> None:
    sizes = {"batch": 2, "img_len": 3, "num_heads": 4, "head_dim": 4}
    assert pack.contract.check(*arguments()) == sizes
    text = torch.zeros(2, 5, 4, 4, dtype=torch.bfloat16)
    assert pack.contract.check(*arguments(), text=text) == {**sizes, "txt_len": 5}
    with pytest.raises(ContractError, match="even"):
        pack.contract.check(*arguments(3))


def test_violations_and_accepts_never_raise_for_a_wrong_call() -> None:
    assert pack.contract.violations(*arguments()) == ()
    assert [fault.rule for fault in pack.contract.violations(*arguments(3))] == ["even"]
    assert pack.contract.accepts(*arguments())
    assert not pack.contract.accepts(*arguments(3))
    assert not pack.contract.accepts("x", None)
    with pytest.raises(TypeError, match="missing"):
        pack.contract.accepts()


def test_check_axes_judges_sizes_without_tensors() -> None:
    assert pack.contract.check_axes(head_dim=64, batch=1) == {"head_dim": 64, "batch": 1}
    with pytest.raises(ContractError, match="even"):
        pack.contract.check_axes(head_dim=63)
    with pytest.raises(ContractError, match="num_heads % groups == 0"):
        pack.contract.check_axes(num_heads=6, groups=4)
    pack.contract.check_axes(num_heads=6)
    with pytest.raises(ContractError, match="img_len > 1"):
        pack.contract.check_axes(img_len=1, causal=True)
    pack.contract.check_axes(img_len=1, causal=False)
    with pytest.raises(TypeError, match=r"no axis 'heads'; it has batch, img_len"):
        pack.contract.check_axes(heads=3)


def test_guard_puts_the_contract_before_another_function() -> None:
    def mine(image: Tensor, table: Tensor, groups: int = 1, causal=False, text=None) -> str:
        """Mine."""
        return f"{tuple(image.shape)}"

    guarded = pack.contract.guard(mine)
    assert guarded(*arguments()) == "(2, 3, 4, 4)"
    assert guarded.__doc__ == "Mine."
    assert guarded.contract is pack.contract
    with pytest.raises(ContractError, match="even"):
        guarded(*arguments(3))


def swapped(image: Tensor, table: Tensor, groups: int = 2, causal: bool = False, text=None): ...
def shorter(image: Tensor, table: Tensor): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (swapped, "groups is 1 by default in the contract of .*, and 2 in swapped"),
        (shorter, "shorter does not take the arguments of .*: too many positional arguments"),
        (lambda image, table, *, groups=1: None, "does not take the arguments of"),
    ],
)
def test_guard_refuses_a_function_that_takes_something_else(function, words: str) -> None:
    with pytest.raises(ContractDefinitionError, match=words):
        pack.contract.guard(function)


def test_guard_passes_on_to_a_function_that_takes_anything() -> None:
    guarded = pack.contract.guard(lambda *args, **kwargs: (len(args), sorted(kwargs)))
    assert guarded(*arguments())[0] >= 2


def test_a_contract_is_pickled_by_the_name_of_its_function() -> None:
    assert pickle.loads(pickle.dumps(pack.contract)) is pack.contract
    assert copy.deepcopy(pack.contract) is pack.contract

    @contract
    def local(x: Float32[Tensor, "n"]): ...

    assert copy.deepcopy(local.contract) is local.contract
    with pytest.raises(pickle.PicklingError, match="local.* cannot be imported"):
        pickle.dumps(local.contract)


def test_empty_outputs_follow_the_return_annotation() -> None:
    first, second = pack.contract.empty_outputs(*arguments())
    assert (first.shape, first.dtype) == ((2, 3, 16), torch.bfloat16)
    assert (second.shape, second.dtype) == ((2,), torch.float32)
    image, table = (x.to("meta") for x in arguments())
    assert pack.contract.empty_outputs(image, table)[0].device.type == "meta"
    with pytest.raises(ContractError):
        pack.contract.empty_outputs(*arguments(3))


def test_empty_outputs_by_a_function_where_annotations_do_not_suffice() -> None:
    def halves(x: Tensor, n: int, k: int) -> tuple[Tensor, ...]:
        return x.new_empty(2, n, k).unbind(0)

    @contract(outputs=halves)
    def f(x: Float32[Tensor, "n"], k: int = 3) -> tuple[Tensor, Tensor]: ...

    assert [tuple(half.shape) for half in f.contract.empty_outputs(torch.zeros(5))] == [(5, 3)] * 2


@pytest.mark.parametrize("returns", [Tensor, Float32[Tensor, "..."], Float32[Tensor, "m"], int])
def test_empty_outputs_that_cannot_be_known(returns) -> None:
    def f(x): ...

    f.__annotations__ = {"x": Float32[Tensor, "n"], "return": returns}
    with pytest.raises(ContractDefinitionError, match="outputs="):
        contract(f).contract.empty_outputs(torch.zeros(2))


def test_what_it_says_of_itself() -> None:
    its = pack.contract
    assert isinstance(its, Contract)
    assert its.name == "pack"
    assert its.axes == ("batch", "img_len", "num_heads", "head_dim", "txt_len")
    assert [item.id for item in its.rules] == [
        "even",
        "num_heads%groups==0",
        "whencausal:img_len>1",
    ]
    assert repr(its).splitlines()[:2] == [
        "Contract of pack",
        '  image: BFloat16[Tensor, "batch img_len num_heads head_dim"]',
    ]
    assert "head_dim % 2 == 0" in its.source
    compile(its.source, "<source>", "exec")


def test_its_name_can_be_given() -> None:
    @contract("n > 1", name="ours.op")
    def f(x: Float32[Tensor, "n"]) -> None: ...

    with pytest.raises(ContractError, match=r"^ours.op refused"):
        f(torch.zeros(1))


def test_an_example_is_a_right_call() -> None:
    example = pack.contract.example(head_dim=8)
    assert example["image"].shape[3] == 8
    assert pack.contract.accepts(**example)
    assert set(example) == set(inspect.signature(pack).parameters)
