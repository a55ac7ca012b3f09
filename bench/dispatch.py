"""What choosing a backend costs on top of the check, on any machine.

    python bench/dispatch.py [--rounds N]

Each operation's own contract, in front of backends that do nothing. Nanoseconds, all in one run:

    check       a function behind the contract, whose body does what the op does besides choosing:
                it makes the results' tuple
    reference   the op, where the reference is all that serves the call
    kernel      the op, with a backend that has the rules of its fastest one: types, transforms and
                gradients of every tensor are looked at before addresses are handed to a kernel
    without grad    the same under torch.no_grad
    demanded    the same as `kernel`, with backend="kernel"
    within use  the same as `kernel`, inside `backends.use("kernel")`
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import backends
from backends.dispatch import Gradient, Op
from bench.check_contestants import Signature, signatures
from bench.tables import print_table
from bench.timing import Timing, call_timer, interleaved
from contracts import Contract

BUDGET = 1000.0
"""Nanoseconds that selecting may add to the check, once warm."""


def pack_nothing(
    img_q: Tensor,
    img_k: Tensor,
    img_v: Tensor,
    txt_q: Tensor,
    txt_k: Tensor,
    txt_v: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    return img_q


def attend_nothing(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    q_scale: Tensor,
    kv_scale: Tensor,
    attn_sink: Tensor | None,
    topk_length: Tensor | None,
    out: Tensor,
    max_logits: Tensor,
    lse: Tensor,
) -> None:
    return None


def no_gradient(*_: Any) -> Any:
    raise AssertionError("the benchmark needs no gradient")


def empty_op(signature: Signature, label: str) -> Op[..., Any]:
    """The op with this signature whose backends do nothing."""
    declaration = replace(signature.contract.declaration, name=f"{signature.name}_{label}")
    function: Any = SimpleNamespace(
        contract=Contract(declaration),
        __name__=declaration.name,
        __qualname__=declaration.name,
        __doc__="",
        __annotations__={},
    )
    if signature.name == "hunyuan":
        return Op(function, reference=pack_nothing, gradient=Gradient(no_gradient, no_gradient))
    return Op(function, reference=attend_nothing, buffers=("out", "max_logits", "lse"))


OPS = {
    "hunyuan": (backends.hunyuan_qkv_rope_pack, pack_nothing),
    "sparse_mla": (backends.sparse_mla_q8kv8_prefill_fwd, attend_nothing),
}


def with_kernel(signature: Signature) -> Op[..., Any]:
    op = empty_op(signature, "kernel")
    real, kernel = OPS[signature.name]
    rules = real.registered[0].narrowed.rules
    op.backend("kernel", rules=rules, needs="sm == 0", priority=1)(kernel)
    return op


def results_of(signature: Signature) -> Callable[..., object]:
    """What is left of the op without a choice: the tuple of its buffers, or what a kernel gave."""
    declaration = signature.contract.declaration
    if signature.name == "hunyuan":
        return signature.contract.guard(pack_nothing)

    def attend_buffers(
        q: Any,
        kv: Any,
        indices: Any,
        sm_scale: Any,
        q_scale: Any,
        kv_scale: Any,
        d_v: Any = 512,
        attn_sink: Any = None,
        topk_length: Any = None,
        *,
        out: Any = None,
        max_logits: Any = None,
        lse: Any = None,
    ) -> Any:
        s_q, h_q, _ = q.shape
        return declaration.outputs(
            q=q, out=out, max_logits=max_logits, lse=lse, s_q=s_q, h_q=h_q, d_v=d_v
        )

    return signature.contract.guard(attend_buffers)


def measure(signature: Signature, rounds: int) -> dict[str, Timing]:
    positional, keywords = signature.split(signature.right)
    kernel = with_kernel(signature)
    contestants: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "check": (results_of(signature), keywords),
        "reference": (empty_op(signature, "reference"), keywords),
        "kernel": (kernel, keywords),
        "demanded": (kernel, {**keywords, "backend": "kernel"}),
    }
    timers: dict[str, timeit.Timer] = {
        name: call_timer(function, (positional, arguments))
        for name, (function, arguments) in contestants.items()
    }
    timers["without grad"] = Within(torch.no_grad, timers["kernel"])
    timers["within use"] = Within(lambda: backends.use("kernel"), timers["kernel"])
    return interleaved(timers, rounds=rounds)


class Within(timeit.Timer):
    """Another timer, inside a `with` block."""

    def __init__(self, block: Callable[[], AbstractContextManager[Any]], timer: timeit.Timer):
        self.block = block
        self.inside = timer

    def timeit(self, number: int = 1) -> float:
        with self.block():
            return self.inside.timeit(number)


def over(timing: Timing, base: Timing) -> float:
    """Nanoseconds more than `base`: the median over the rounds, so that a slow moment cancels."""
    pairs = zip(timing.samples, base.samples, strict=True)
    return statistics.median(mine - other for mine, other in pairs) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    most = 0.0
    for signature in signatures():
        timings = measure(signature, rounds)
        base = timings["check"]
        rows = [
            (name, f"{t.median * 1e9:.0f}", f"{t.spread:.0%}", f"{over(t, base):.0f}")
            for name, t in timings.items()
        ]
        print_table(f"{signature.name}, ns a call", ("", "median", "spread", "over check"), rows)
        most = max(most, *(over(t, base) for t in timings.values()))
    print(f"\nmost over the check: {most:.0f} ns, at most {BUDGET:.0f} wanted")
    sys.exit(most > BUDGET)


if __name__ == "__main__":
    main()
