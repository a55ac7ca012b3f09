"""`backends.sparse_mla_q8kv8_prefill_fwd` as a user meets it: buffers, choices, graphs, fakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import backends
from backends import NoBackendError, assume_target
from backends.ops.sparse_mla_prefill.cases import SMALL, Case, Inputs, Results, exact_results
from backends.ops.sparse_mla_prefill.reference import sparse_mla_reference
from contracts import ContractError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASE = Case("tiny", s_q=2, s_kv=40, h_q=64, topk=128, topk_length=(100, 7), attn_sink=0.5)
PLAIN = replace(CASE, topk_length=None, attn_sink=None)

attend = backends.sparse_mla_q8kv8_prefill_fwd
every_backend = pytest.mark.parametrize("backend", ["reference", "triton"])


def expected(inputs: Inputs, case: Case) -> Results:
    results = case.new_results(DEVICE)
    sparse_mla_reference(*inputs.operands, *results.buffers)
    return results


def same_bits(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))


def test_backends_by_priority() -> None:
    assert attend.backends == ("gluon", "triton", "reference")


@pytest.mark.parametrize("case", [CASE, PLAIN], ids=lambda case: str(case.attn_sink))
def test_missing_buffers_are_allocated(case: Case) -> None:
    inputs = case.build(DEVICE)
    wanted = expected(inputs, case)
    for mine, theirs in zip(attend(**inputs.arguments), wanted.buffers, strict=True):
        assert mine.dtype == theirs.dtype
        if DEVICE == "cpu":
            assert same_bits(mine, theirs)


@every_backend
def test_the_callers_buffers_are_written_and_returned_as_they_are(backend: str) -> None:
    inputs = CASE.build(DEVICE)
    given = CASE.new_results(DEVICE)
    for names in (("out", "max_logits", "lse"), ("lse",), ("out", "max_logits")):
        buffers = {name: getattr(given, name).fill_(float("nan")) for name in names}
        results = attend(**inputs.arguments, **buffers, backend=backend)
        for name, result in zip(("out", "max_logits", "lse"), results, strict=True):
            assert result.isfinite().all()
            assert (result is buffers.get(name)) is (name in names)


@every_backend
def test_the_sink_is_seen(backend: str) -> None:
    inputs = CASE.build(DEVICE)
    assert inputs.attn_sink is not None
    out, *_ = attend(**inputs.arguments, backend=backend)
    closed = replace(inputs, attn_sink=torch.full_like(inputs.attn_sink, float("inf")))
    assert out.abs().sum() > 0
    assert attend(**closed.arguments, backend=backend)[0].abs().sum() == 0


def wrong_buffers() -> list[Any]:
    rows = (CASE.s_q, CASE.h_q)
    out = torch.zeros(*rows, 512, dtype=torch.bfloat16)
    shared = torch.zeros(2, *rows)
    return [
        ("out", out[1:], "out-s_q"),
        ("out", out.float(), "out-dtype"),
        ("out", torch.zeros(2, 512, 64, dtype=torch.bfloat16).transpose(1, 2), "contiguous"),
        ("out", out.to("meta"), "same-device"),
        ("lse", torch.zeros(rows, dtype=torch.bfloat16), "lse-dtype"),
        ("max_logits", torch.zeros(64, 2), "max_logits-s_q"),
        ("lse", shared[0, :1].expand(rows), "contiguous"),
    ]


@pytest.mark.parametrize(("name", "buffer", "rule"), wrong_buffers())
def test_a_wrong_buffer_is_refused_by_name_and_untouched(
    name: str, buffer: Tensor, rule: str
) -> None:
    inputs = CASE.build("cpu")
    before = None if buffer.is_meta else buffer.clone()
    with pytest.raises(ContractError) as refusal:
        attend(**inputs.arguments, **{name: buffer})
    found = [(v.argument, v.rule) for v in refusal.value.violations]
    assert (name, rule) in found
    assert before is None or torch.equal(before, buffer)


def test_buffers_that_overlap_are_refused() -> None:
    inputs = CASE.build("cpu")
    shared = torch.zeros(CASE.s_q, CASE.h_q)
    with pytest.raises(ContractError, match="buffers-disjoint"):
        attend(**inputs.arguments, max_logits=shared, lse=shared)


def test_a_gradient_is_refused_not_cut() -> None:
    inputs = CASE.build("cpu")
    sink = torch.nn.Parameter(inputs.attn_sink)  # type: ignore[arg-type]
    wanting = replace(inputs, attn_sink=sink)
    with pytest.raises(ContractError, match="attn_sink requires grad"):
        attend(**wanting.arguments)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            attend(**wanting.arguments)


# -- which backend


@pytest.mark.parametrize(
    ("sm", "choice"), [(80, "reference"), (89, "triton"), (90, "gluon"), (100, "triton")]
)
def test_the_device_decides(sm: int, choice: str) -> None:
    inputs = CASE.build("cpu")
    with FakeTensorMode(), assume_target("cuda", sm=sm):
        arguments = on_cuda(inputs)
        assert attend.explain(**arguments).choice == choice


def on_cuda(inputs: Inputs) -> dict[str, Any]:
    """Fakes of the inputs on a GPU that need not be there."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    return {name: move(x) for name, x in inputs.arguments.items()}


@pytest.mark.parametrize(("pitch", "choice"), [(656, "gluon"), (577, "triton")])
def test_rows_of_a_cache_that_lie_oddly_go_to_the_portable_kernel(pitch: int, choice: str) -> None:
    inputs = replace(CASE, kv_row_bytes=pitch).build("cpu")
    with FakeTensorMode(), assume_target("cuda", sm=90):
        arguments = on_cuda(inputs)
        assert attend.explain(**arguments).choice == choice
        if choice != "gluon":
            with pytest.raises(NoBackendError, match=r"stride\(kv, 0\) % 16 == 0"):
                attend(**arguments, backend="gluon")


def test_a_device_too_old_is_named_with_what_it_lacks() -> None:
    inputs = CASE.build("cpu")
    with FakeTensorMode(), assume_target("cuda", sm=86):
        arguments = on_cuda(inputs)
        with pytest.raises(NoBackendError, match="needs sm>=89 or interpreter, device is sm86"):
            attend(**arguments, backend="triton")


# -- graphs and fakes


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_in_one_graph(compiler: str, dynamic: bool) -> None:
    def call(given: Tensor | None, **arguments: Any) -> Any:
        out, max_logits, lse = attend(**arguments, out=given, backend="reference")
        return out, max_logits + 1, lse

    compiled = torch.compile(call, fullgraph=True, backend=compiler, dynamic=dynamic)
    for case in (CASE, replace(CASE, s_q=5, s_kv=70)):
        inputs = case.build(DEVICE)
        for given in (None, case.new_results(DEVICE).out):
            results = compiled(given, **inputs.arguments)
            for x, y in zip(results, call(None, **inputs.arguments), strict=True):
                assert same_bits(x, y)
            assert given is None or same_bits(given, results[0])


def test_a_kernel_in_a_compiled_graph_gives_its_eager_bits() -> None:
    inputs = CASE.build(DEVICE)

    def call(**arguments: Any) -> Any:
        return attend(**arguments, backend="triton")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for x, y in zip(compiled(**inputs.arguments), call(**inputs.arguments), strict=True):
        assert same_bits(x, y)


def test_a_wrong_call_is_refused_on_a_warm_graph() -> None:
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    inputs = CASE.build(DEVICE)
    compiled(**inputs.arguments)
    with pytest.raises(ContractError, match="h_q-multiple-of-64"):
        compiled(**replace(PLAIN, h_q=96).build(DEVICE).arguments)
    compiled(**inputs.arguments)


OPCHECKED = [
    CASE,
    PLAIN,
    replace(CASE, name="slice-of-a-cache", kv_row_bytes=656),
    replace(CASE, name="no-queries", s_q=0),
    replace(PLAIN, name="no-rows", s_kv=0),
    replace(CASE, name="narrow", d_qk=512),
]


@every_backend
@pytest.mark.parametrize("case", OPCHECKED, ids=lambda case: f"{case.name}-{case.attn_sink}")
def test_the_library_op_passes_opcheck(
    case: Case, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # opcheck compares tensors before and after by allclose, which has no FP8 on a CPU.
    monkeypatch.setattr(torch, "allclose", lambda x, y, equal_nan: same_bits(x, y))
    inputs = case.build(DEVICE)
    buffers = [torch.zeros_like(x) for x in case.new_results(DEVICE).buffers]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    if backend == "reference" or case is CASE:
        tests += ("test_aot_dispatch_dynamic",)
    arguments = (*inputs.operands, *buffers, backend, True)
    torch.library.opcheck(attend.inner, arguments, test_utils=tests)


def test_fakes_have_the_layout_of_real_results() -> None:
    inputs = CASE.build(DEVICE)
    real = attend(**inputs.arguments)
    with FakeTensorMode() as mode:
        fakes = {
            name: mode.from_tensor(x) if isinstance(x, Tensor) else x
            for name, x in inputs.arguments.items()
        }
        for x, y in zip(attend(**fakes), real, strict=True):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


def test_exported() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, kv: Tensor, indices: Tensor, scale: Tensor) -> Any:
            return attend(q, kv, indices, 0.04, scale, scale, backend="reference")

    inputs = PLAIN.build(DEVICE)
    operands = (inputs.q, inputs.kv, inputs.indices, torch.ones(1, device=DEVICE))
    for strict in (True, False):
        program = torch.export.export(Module(), operands, strict=strict)
        for x, y in zip(program.module()(*operands), Module()(*operands), strict=True):
            assert same_bits(x, y)


@pytest.mark.parametrize("case", SMALL[:6], ids=lambda case: case.name)
def test_the_op_agrees_with_exact_arithmetic(case: Case) -> None:
    inputs = case.build(DEVICE)
    results = Results(*attend(**inputs.arguments, backend="reference"))
    exact = exact_results(inputs)
    torch.testing.assert_close(results.out, exact.out.bfloat16(), rtol=1e-2, atol=1e-3)
