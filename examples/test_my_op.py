"""Tests that a contract writes for itself: a plain function, three lines, dozens of calls.

    pytest examples/test_my_op.py -v --contract-coverage=100

Every call below `test_my_op` was generated from the annotations and the rules alone: legal ones at
each boundary, and for each rule and each fact of an annotation one that breaks it and nothing else.
"""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from contracts import ContractError, contract, requires, same_device, same_dtype, unit_stride


@contract(
    "num_heads > 0 and num_heads % num_kv_heads == 0",  # of no heads, some torch releases die
    "head_dim % 8 == 0 and 0 < head_dim <= 256",
    "window is None or window > 0",
    requires("sinks", when="window", hint="a window without sinks forgets the first tokens"),
    same_device(),
    same_dtype("q", "k", "v", id="one-dtype"),
    unit_stride("q", "k", "v"),
)
def my_op(
    q: Float[Tensor, "batch num_heads q_len head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    lengths: Int64[Tensor, "batch"] | None = None,
    window: int | None = None,
    sinks: Float[Tensor, "num_heads"] | None = None,
) -> Float[Tensor, "batch num_heads q_len head_dim"]:
    """Stands for any function of yours; what it computes is not what is tested here."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.tensor_contract(fn=my_op)
def test_my_op(contract_case): ...


@pytest.mark.tensor_contract(fn=my_op)
def test_what_it_does_with_the_same_calls(contract_case):
    """The generated calls are there for tests of your own, too."""
    arguments = contract_case.arguments
    if not contract_case.legal:
        with pytest.raises(ContractError):
            my_op(**arguments)
    elif all(x.device.type == "cpu" for x in arguments.values() if isinstance(x, Tensor)):
        assert my_op(**arguments).shape == arguments["q"].shape
