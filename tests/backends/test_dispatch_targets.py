"""What a device can do, as refusals say it: read from the call's tensors, never from device 0."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import BackendWarning, NoBackendError, Op, assume_target
from backends.dispatch import registry
from backends.dispatch.setting import read_environment
from backends.dispatch.target import Target, read_target
from contracts import contract, device

ROOT = Path(__file__).resolve().parents[2]

Row = Float32[Tensor, "n"]


@contract()
def shift_(x: Row) -> Row:
    """x + 1."""


def shift_reference(x: Tensor) -> Tensor:
    return x + 1


def shift_fast(x: Tensor) -> Tensor:
    return x + 2


shift = Op(shift_, reference=shift_reference)
shift.backend("hopper", needs="sm == 90", priority=3)(shift_fast)
shift.backend("fp8", needs="sm >= 89", packages=["torch"], priority=2)(shift_fast)
shift.backend("cuda", rules=[device("cuda")], priority=1)(shift_fast)


@pytest.fixture
def fake() -> Iterator[Any]:
    """A maker of tensors on any device, also on one that is not there."""
    with FakeTensorMode() as mode:

        def make(where: str, n: int = 4) -> Tensor:
            return torch.empty(n, device=where)

        make.mode = mode  # type: ignore[attr-defined]
        yield make


def test_explanation_on_a_cpu() -> None:
    assert str(shift.explain(torch.ones(3))) == (
        "shift_ on cpu: reference\n"
        "  hopper     no: needs sm==90, device is cpu\n"
        "  fp8        no: needs sm>=89, device is cpu\n"
        "  cuda       no: x is on cpu, expected cuda\n"
        '                   fix: x = x.to("cuda")\n'
        "  reference  yes: chosen"
    )


def test_explanation_on_a_device_that_is_too_old(fake: Any) -> None:
    with assume_target("cuda:0", sm=80):
        report = shift.explain(fake("cuda"))
        assert str(report) == (
            "shift_ on sm80: cuda\n"
            "  hopper     no: needs sm==90, device is sm80\n"
            "  fp8        no: needs sm>=89, device is sm80\n"
            "  cuda       yes: chosen\n"
            "  reference  yes, by lower priority"
        )
        with pytest.raises(NoBackendError, match="fp8: needs sm>=89, device is sm80"):
            shift(fake("cuda"), backend="fp8")
        demanded = str(shift.explain(fake("cuda"), backend="fp8")).splitlines()
        assert demanded[0] == "shift_ on sm80: no backend, because backend= demands fp8"
        assert demanded[3] == "  cuda       yes, but not demanded"
        with backends.use("cuda"):
            first = str(shift.explain(fake("cuda"))).splitlines()[0]
        assert first == "shift_ on sm80: cuda, because backends.use demands cuda"


def test_each_device_is_asked_for_itself(fake: Any) -> None:
    with assume_target("cuda:0", sm=80), assume_target("cuda:1", sm=90):
        choices = [shift.explain(fake(f"cuda:{index}")).choice for index in (0, 1, 0)]
    assert choices == ["cuda", "hopper", "cuda"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks about a machine without a GPU")
def test_a_device_that_is_not_there(fake: Any) -> None:
    report = shift.explain(fake("cuda:3"))
    assert report.choice == "cuda"
    assert report.reasons[0].text == (
        "needs sm==90, device is cuda:3, which this machine does not have"
    )


def test_meta_tensors_are_judged_too() -> None:
    assert shift.explain(torch.empty(3, device="meta")).choice == "reference"


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch, fake: Any) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda package: package != "torch")
    with assume_target("cuda:0", sm=89):
        report = shift.explain(fake("cuda"))
    assert report.choice == "cuda"
    assert [reason.text for reason in report.reasons if reason.backend == "fp8"] == [
        "needs the package torch, which is not installed"
    ]


@pytest.mark.parametrize(
    ("capability", "present", "expected"),
    [((8, 6), True, "sm86"), ((12, 0), True, "sm120"), ((9, 0), False, "cuda:0, which this")],
)
def test_capabilities_are_read_for_the_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], present: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert str(read_target(torch.device("cuda", 0))).startswith(expected)


def test_hip_devices_have_no_nvidia_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    target = read_target(torch.device("cuda", 0))
    assert (target.sm, str(target)) == (0, "cuda:0 (HIP)")


def test_interpreted_kernels_serve_only_where_they_are_demanded() -> None:
    @contract(name="interpreted")
    def interpreted(x: Row) -> Row: ...

    op = Op(interpreted, reference=shift_reference)
    op.backend("triton", needs="sm >= 80 or interpreter")(shift_fast)
    x = torch.zeros(1)
    with assume_target("cpu", interpreter=True):
        assert (op(x), op(x, backend="triton")) == (1, 2)
    with assume_target("cpu"), pytest.raises(NoBackendError, match="needs sm>=80 or interpreter"):
        op(x, backend="triton")


def test_the_interpreter_has_nothing_to_read_where_there_is_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert read_target(torch.device("cpu")).interpreter
    assert not read_target(torch.device("meta")).interpreter


def test_falling_back_on_an_accelerator_is_said_once(fake: Any) -> None:
    @contract(name="slow_on_gpu")
    def slow(x: Row) -> Row: ...

    op = Op(slow, reference=shift_reference)
    op.backend("hopper", needs="sm == 90", rules=["n > 2"])(shift_fast)
    with assume_target("cuda:0", sm=90):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            op(fake("cuda", 3))
        with pytest.warns(BackendWarning) as said:
            [op(fake("cuda", 2)) for _ in range(3)]
    (warning,) = said
    assert str(warning.message) == (
        "slow_on_gpu on sm90 is served by its reference, which is right and slow (hopper: n > 2 "
        "does not hold; nearest size: 3: n is 2, from x axis 0). Said once."
    )
    assert warning.filename == __file__


def test_targets_are_compared_by_identity() -> None:
    assert Target("cpu") != Target("cpu")


def in_a_new_process(program: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


PROGRAM = """
import sys, threading, torch, backends
pack = backends.hunyuan_qkv_rope_pack
image, table = torch.zeros(3, 1, 2, 1, 4).bfloat16(), torch.zeros(2, 2)
def show():
    report = pack.explain(*image, *image, table, table)
    print(report.choice, report.demanded, report.origin)
show()
thread = threading.Thread(target=show); thread.start(); thread.join()
with backends.use(None): show()
pack(*image, *image, table, table, backend="reference")
print("triton" in sys.modules)
"""


@pytest.mark.parametrize("variable", ["=triton", "hunyuan_qkv_rope_pack=", "a=b=c", "triton,=x"])
def test_a_malformed_environment_is_an_error(variable: str) -> None:
    with pytest.raises(ValueError, match=r"CONTRACTS_BACKEND: '.*' is neither a backend nor"):
        read_environment(variable)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("", "reference None None"),
        ("reference", "reference reference CONTRACTS_BACKEND"),
        ("hunyuan_qkv_rope_pack=cutlass", "None cutlass CONTRACTS_BACKEND"),
        ("cutlass, hunyuan_qkv_rope_pack=reference", "reference reference CONTRACTS_BACKEND"),
    ],
)
def test_the_environment_demands_for_every_thread(variable: str, expected: str) -> None:
    printed = in_a_new_process(PROGRAM, CONTRACTS_BACKEND=variable, TRITON_INTERPRET="0")
    first, thread, within, triton = printed.splitlines()
    assert first == thread == expected
    assert within == "reference None None"
    assert triton == "False"
