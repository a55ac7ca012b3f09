"""What choosing a backend costs on top of the check, on any machine.

    python bench/dispatch.py [--rounds N]

Each operation's own contract, in front of backends that do nothing. Nanoseconds, all in one run:

    check       the function behind its contract, with an empty body
    reference   the op, where the reference is all that serves the call
    kernel      the op, with a backend of two rules and a need: types, transforms and gradients of
                every tensor are looked at before addresses are handed to a kernel
    demanded    the same with backend="kernel"
    within use  the same inside `backends.use("kernel")`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
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
    )
    if signature.name == "hunyuan":
        return Op(function, reference=pack_nothing, gradient=Gradient(no_gradient, no_gradient))
    return Op(function, reference=attend_nothing, buffers=("out", "max_logits", "lse"))


def with_kernel(signature: Signature) -> Op[..., Any]:
    op = empty_op(signature, "kernel")
    rows, kernel = {
        "hunyuan": ("stride(img_q, 1) % 8 == 0", pack_nothing),
        "sparse_mla": ("stride(kv, 0) % 16 == 0", attend_nothing),
    }[signature.name]
    first = next(iter(signature.right))
    rules = [rows, f"data_ptr({first}) % 16 == 0"]
    op.backend("kernel", rules=rules, needs="sm == 0", priority=1)(kernel)
    return op


def measure(signature: Signature, rounds: int) -> dict[str, Timing]:
    positional, keywords = signature.split(signature.right)
    kernel = with_kernel(signature)
    contestants: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "check": (signature.contract.guard(signature.body), keywords),
        "reference": (empty_op(signature, "reference"), keywords),
        "kernel": (kernel, keywords),
        "demanded": (kernel, {**keywords, "backend": "kernel"}),
    }
    timers = {
        name: call_timer(function, positional, arguments)
        for name, (function, arguments) in contestants.items()
    }
    timings = interleaved(timers, rounds=rounds)
    with backends.use("kernel"):
        inside = {"check": timers["check"], "within use": timers["kernel"]}
        timings["within use"] = interleaved(inside, rounds=rounds)["within use"]
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    over = []
    for signature in signatures():
        timings = measure(signature, rounds)
        base = timings["check"].median
        rows = [
            (name, f"{t.median * 1e9:.0f}", f"{t.spread:.0%}", f"{(t.median - base) * 1e9:.0f}")
            for name, t in timings.items()
        ]
        print_table(f"{signature.name}, ns a call", ("", "median", "spread", "over check"), rows)
        over += [(t.median - base) * 1e9 for t in timings.values()]
    print(f"\nmost over the check: {max(over):.0f} ns, at most {BUDGET:.0f} wanted")
    sys.exit(max(over) > BUDGET)


if __name__ == "__main__":
    main()
