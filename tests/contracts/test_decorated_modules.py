"""nn.Module.forward with a contract: hooks, copies, state, scripts of training all as before."""

import copy
import pickle

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from contracts import ContractError, contract


class Projection(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(width, width)
        self.activation = checked_relu

    @contract("batch > 0")
    def forward(self, x: Float32[Tensor, "batch {self.width}"]) -> Float32[Tensor, "batch width"]:
        return self.activation(self.linear(x))


class Stack(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Projection(width) for width in widths)

    @contract
    def forward(self, xs: list[Float32[Tensor, "batch _"]]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self.layers, xs, strict=True)]


@contract
def checked_relu(x: Float32[Tensor, "*any"]) -> Tensor:
    return x.relu()


def test_called_as_a_module() -> None:
    module = Projection(4)
    assert module(torch.ones(2, 4)).shape == (2, 4)
    assert module(x=torch.ones(2, 4)).shape == (2, 4)
    with pytest.raises(ContractError, match=r"x axis 1 \(self.width\) is 5, expected 4"):
        module(torch.ones(2, 5))
    with pytest.raises(ContractError, match="batch > 0"):
        module(torch.ones(0, 4))


def test_hooks_see_every_call_that_is_accepted() -> None:
    module, seen = Projection(4), []
    module.register_forward_pre_hook(lambda _, args: seen.append("before"))
    module.register_forward_hook(lambda _, args, result: seen.append(tuple(result.shape)))
    module(torch.ones(2, 4))
    with pytest.raises(ContractError):
        module(torch.ones(2, 5))
    assert seen == ["before", (2, 4), "before"]


def test_a_pre_hook_may_mend_the_arguments() -> None:
    module = Projection(4)
    module.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    assert module(torch.ones(2, 4, dtype=torch.float64)).shape == (2, 4)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_checked_and_independent(duplicate) -> None:
    module = Projection(4)
    twin = duplicate(module)
    twin.width = 5
    twin.linear = nn.Linear(5, 5)
    assert twin(torch.ones(2, 5)).shape == (2, 5)
    assert module(torch.ones(2, 4)).shape == (2, 4)
    with pytest.raises(ContractError):
        twin(torch.ones(2, 4))
    assert module.state_dict().keys() == twin.state_dict().keys()


def test_a_copy_of_the_method_stays_bound_to_its_module() -> None:
    module = Projection(4)
    method = copy.deepcopy(module.forward)
    assert method.__self__ is not module
    with pytest.raises(ContractError):
        method(torch.ones(2, 5))


def test_checked_modules_inside_a_checked_module() -> None:
    stack = Stack(3, 4)
    shapes = [tuple(y.shape) for y in stack([torch.ones(2, 3), torch.ones(2, 4)])]
    assert shapes == [(2, 3), (2, 4)]
    with pytest.raises(ContractError, match="Stack.forward"):
        stack([torch.ones(2, 3), torch.ones(3, 4)])
    with pytest.raises(ContractError, match="Projection.forward"):
        stack([torch.ones(2, 3), torch.ones(2, 5)])


def test_gradients_and_parameters_pass_through() -> None:
    module = Projection(4)
    module(torch.ones(2, 4)).sum().backward()
    assert module.linear.weight.grad is not None
    assert checked_relu(module.linear.weight).shape == (4, 4)
    assert next(module.parameters()) is module.linear.weight
