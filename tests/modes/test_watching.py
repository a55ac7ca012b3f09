"""`async`: contents are judged without waiting, and what is broken is raised later, with the call
that it came from."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Int32
from torch import Tensor

import contracts
from contracts import (
    ContractError,
    Violation,
    contiguous,
    contract,
    same_device,
    values,
    when,
)
from contracts.contents.torch_observer import TorchObserver
from contracts.contents.watch import Watch, watch

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    contracts.synchronize()


@contract(
    values("0 <= lengths <= topk", id="lengths-range"), values("indices < s_kv", id="indices-range")
)
def attend(
    indices: Int32[Tensor, "s_q topk"],
    kv: Float[Tensor, "s_kv width"],
    lengths: Int32[Tensor, "s_q"] | None = None,
) -> int:
    return indices.shape[0]


def ints(*rows: int) -> Tensor:
    return torch.tensor([rows], dtype=torch.int32)


def raised() -> ContractError:
    with pytest.raises(ContractError) as caught:
        contracts.synchronize()
    return caught.value


def test_the_broken_call_returns_and_synchronize_names_it() -> None:
    with contracts.mode("async"):
        assert attend(ints(1, 9, 2, 9), torch.zeros(9, 4)) == 1
    error = raised()
    assert error.function == "attend"
    assert error.site is not None
    assert f"{HERE}:" in error.site
    assert str(error).startswith(f"attend refused the call at {error.site}: 1 rule broken")
    (violation,) = error.violations
    assert violation.rule == "indices-range"
    assert violation.argument == "indices"
    assert violation.origin == "s_kv is 9; 2 of 4 elements break it"
    assert "indices[0, 1] is 9, breaks indices < s_kv" in violation.message


def test_what_was_found_is_raised_once() -> None:
    with contracts.mode("async"):
        attend(ints(9), torch.zeros(9, 4))
    raised()
    contracts.synchronize()


def test_the_next_call_raises_it_and_is_not_made() -> None:
    made = []

    @contract(values("x > 0"))
    def call(x: Int32[Tensor, "a b"]) -> None:
        made.append(x)

    with contracts.mode("async"):
        call(ints(0))
        with pytest.raises(ContractError, match="the call at"):
            call(ints(1))
        call(ints(1))
    assert len(made) == 2


def test_another_contract_raises_it_too() -> None:
    @contract(values("x > 0"))
    def call(x: Int32[Tensor, "a b"]) -> None: ...

    with contracts.mode("async"):
        attend(ints(9), torch.zeros(9, 4))
        with pytest.raises(ContractError, match="attend refused the call at"):
            call(ints(1))


def test_calls_in_other_modes_raise_nothing_of_it() -> None:
    with contracts.mode("async"):
        attend(ints(9), torch.zeros(9, 4))
    attend(ints(9), torch.zeros(9, 4))
    raised()


def test_metadata_is_judged_at_once() -> None:
    with contracts.mode("async"), pytest.raises(ContractError) as caught:
        attend(ints(1).long(), torch.zeros(9, 4))
    assert caught.value.site is None
    assert caught.value.violations[0].rule == "indices-dtype"


def test_shapes_that_do_not_broadcast_are_refused_at_once() -> None:
    @contract(values("x < y"))
    def call(x: Int32[Tensor, "a"], y: Int32[Tensor, "b"]) -> None: ...

    with contracts.mode("async"), pytest.raises(ContractError, match="cannot be judged"):
        call(ints(1, 2)[0], ints(1, 2, 3)[0])


def test_rules_that_a_call_leaves_out_are_skipped_and_conditions_asked() -> None:
    @contract(when("n > 2", values("x > 0")), values("y > 0"))
    def call(x: Int32[Tensor, "a n"], y: Int32[Tensor, "a n"] | None = None) -> None: ...

    with contracts.mode("async"):
        call(ints(0, 0))
        contracts.synchronize()
        call(ints(0, 0, 0))
        assert "(when n > 2)" in str(raised())
        call(ints(0, 0), ints(1, 0))
    assert raised().violations[0].argument == "y"


def test_numbers_and_expressions_of_numbers_are_those_of_the_call() -> None:
    @contract(values("x < 2 * limit"))
    def call(x: Int32[Tensor, "a n"], limit: int = 3) -> None: ...

    with contracts.mode("async"):
        call(ints(5))
        contracts.synchronize()
        call(ints(5), 2)
    assert "2 * limit is 4" in str(raised())


def test_every_thread_raises_what_it_broke() -> None:
    outcome: dict[int, str] = {}

    def work(index: int) -> None:
        with contracts.mode("async"):
            attend(ints(index, 0), torch.zeros(8, 4))
            try:
                attend(ints(0, 0), torch.zeros(8, 4))
                outcome[index] = ""
            except ContractError as error:
                outcome[index] = error.violations[0].message

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(16):
        wanted = f"indices[0, 0] is {index}, breaks indices < s_kv" if index >= 8 else ""
        assert outcome[index] == wanted


def test_synchronize_raises_what_another_thread_broke() -> None:
    def work() -> None:
        with contracts.mode("async"):
            attend(ints(9), torch.zeros(9, 4))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "attend" in str(raised())


def test_what_a_dead_thread_broke_is_not_another_threads() -> None:
    """The system gives its number to the next one."""
    raised_there = []

    def broken() -> None:
        with contracts.mode("async"):
            attend(ints(9), torch.zeros(9, 4))

    def innocent() -> None:
        with contracts.mode("async"):
            try:
                attend(ints(1), torch.zeros(9, 4))
            except ContractError as error:
                raised_there.append(error)

    for work in (broken, *[innocent] * 8):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert raised_there == []
    assert "attend" in str(raised())


def test_a_caught_error_keeps_nothing_alive_by_itself() -> None:
    """It holds its frames by its traceback; none of them may hold it."""

    def caught(call: Callable[[], None]) -> weakref.ref[Tensor]:
        mine = torch.zeros(3)
        with contracts.mode("async"):
            attend(ints(9), torch.zeros(9, 4))
            try:
                call()
            except ContractError:
                pass
            else:
                raise AssertionError
        return weakref.ref(mine)

    gc.collect()
    gc.disable()
    try:
        for call in (contracts.synchronize, lambda: attend(ints(1), torch.zeros(9, 4))):
            assert caught(call)() is None
    finally:
        gc.enable()


def test_what_was_found_outlives_a_failure_to_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with contracts.mode("async"):
        attend(ints(9), torch.zeros(9, 4))
    with monkeypatch.context() as patch:
        patch.setattr(TorchObserver, "collect", lambda self: iter([1 // 0]))
        with pytest.raises(ZeroDivisionError):
            contracts.synchronize()
    raised()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_the_lock_is_held_can_go_on() -> None:
    with watch.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends the child where it waits for ever
            watch.collect()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_no_tensor_is_kept_for_a_call() -> None:
    indices = ints(9)
    gone = weakref.ref(indices)
    with contracts.mode("async"):
        attend(indices, torch.zeros(9, 4))
    del indices
    gc.collect()
    assert gone() is None
    raised()


def test_fake_and_meta_tensors_and_vmap_are_excused() -> None:
    with contracts.mode("async"):
        attend(torch.zeros(2, 2, dtype=torch.int32, device="meta"), torch.zeros(9, 4))
        torch.vmap(lambda x: x + attend(x, torch.zeros(9, 4)))(ints(9, 9).expand(3, 1, 2))
    contracts.synchronize()


def test_inside_grad_contents_are_judged() -> None:
    @contract(values("x > 0"))
    def call(x: Float[Tensor, "n"]) -> Tensor:
        return x.sum()

    with contracts.mode("async"):
        torch.func.grad(call)(torch.zeros(3))
    assert "3 of 3 elements break it" in str(raised())


def test_the_error_survives_pickling() -> None:
    with contracts.mode("async"):
        attend(ints(9), torch.zeros(9, 4))
    error = raised()
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.to_dict() == error.to_dict()
    assert again.site == error.site


def test_results_are_not_judged() -> None:
    @contract(values("x > 0"))
    def wrong(x: Int32[Tensor, "a n"]) -> Int32[Tensor, "a n"]:
        return x[:, 1:]

    with contracts.mode("async"):
        assert wrong(ints(1, 1)).shape == (1, 1)


def test_a_device_has_the_observer_that_was_registered_for_it() -> None:
    class Nobody:
        def judge_of(self, conditions):  # type: ignore[no-untyped-def]
            raise AssertionError

        def collect(self) -> tuple[()]:
            return ()

        def wait(self) -> None: ...

    mine = Watch()
    nobody = Nobody()
    mine.register("npu", nobody)
    assert mine.observer("npu") is nobody
    assert mine.observer("cpu") is mine.observer("cpu")


def test_cuda_is_watched_by_kernels_once_backends_are_imported() -> None:
    from backends.values import KernelObserver

    assert isinstance(watch.observer("cuda"), KernelObserver)


@contract(
    contiguous("indices", "kv", "lengths", "weights"),
    same_device(),
    *(f"{axis} > 0" for axis in ("s_q", "topk", "s_kv", "width")),
    values("0 <= lengths <= topk"),
    values("indices < s_kv"),
)
def gather(
    indices: Int32[Tensor, "s_q topk"],
    kv: Float[Tensor, "s_kv width"],
    lengths: Int32[Tensor, "s_q"],
    weights: Float[Tensor, "s_q topk"],
) -> None: ...


def known_call() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Arguments of a layout that `gather` knows, all of whose contents are right."""
    given = torch.zeros(2, 4).int(), torch.zeros(9, 3), torch.zeros(2).int(), torch.zeros(2, 4)
    with contracts.mode("async"):
        for _ in range(4):
            gather(*given)
    sizes, notes = gather.contract.measure(given)
    assert gather.contract.watched in (notes or {})
    assert gather.contract.measure(given)[0] is sizes
    return given


def test_contents_are_judged_in_every_call_of_a_known_layout() -> None:
    indices, kv, lengths, weights = known_call()
    sites = []
    for index, length, broken in [(9, 0, "indices[1, 3]"), (8, 5, "lengths[0]")]:
        indices[1, 3], lengths[0] = index, length
        with contracts.mode("async"):
            gather(indices, kv, lengths, weights)
        error = raised()
        assert error.violations[0].message.startswith(f"{broken} is ")
        sites.append(error.site)
    with contracts.mode("async"):
        gather(indices, kv, lengths, weights)
    assert sites[0] == sites[1] != raised().site


def test_other_sizes_are_judged_by_their_own_numbers() -> None:
    indices, _, lengths, weights = known_call()
    indices[0, 0] = 8
    with contracts.mode("async"):
        for rows in (9, 8, 9, 8):
            gather(indices, torch.zeros(rows, 3), lengths, weights)
            if rows == 8:
                assert "s_kv is 8" in (raised().violations[0].origin or "")
            contracts.synchronize()


def test_what_another_thread_broke_in_a_known_layout_is_its_own() -> None:
    given = known_call()
    wrong = (given[0] + 9, *given[1:])
    raised_there = []

    def there() -> None:
        with contracts.mode("async"):
            gather(*wrong)
            try:
                gather(*given)
            except ContractError as error:
                raised_there.append(error)

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    with contracts.mode("async"):
        gather(*given)
    assert len(raised_there) == 1


def test_a_number_that_is_given_later_is_judged_by() -> None:
    """It is no part of a layout: calls without it have left a rule out."""

    @contract(
        contiguous("a", "b", "c"),
        same_device(),
        *(f"{axis} > 0" for axis in ("n", "m", "k")),
        values("a < limit", id="limit"),
        when("strict", values("a < n")),
        values("b >= 0"),
    )
    def call(
        a: Int32[Tensor, "n m"],
        b: Int32[Tensor, "n m"],
        c: Float[Tensor, "m k"],
        limit: int | None = None,
        strict: bool = False,
    ) -> None: ...

    given = torch.full((2, 3), 5).int(), torch.zeros(2, 3).int(), torch.zeros(3, 4)
    with contracts.mode("async"):
        for _ in range(5):
            call(*given)
        contracts.synchronize()
        for limit, strict, rules in [
            (6, False, []),
            (5, False, ["limit"]),
            (4, True, ["limit", "whenstrict:a<n"]),
            (None, True, ["whenstrict:a<n"]),
            (None, False, []),
        ]:
            call(*given, limit=limit, strict=strict)
            assert [violation.rule for violation in watched_now()] == rules


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_a_fix_names_scalars_and_axes_in_every_mode(mode: str) -> None:
    @contract(
        contiguous("x", "y"),
        *(f"{axis} > 0" for axis in ("n", "m")),
        values("x < n", fix="x = x.clamp(max={n} - {k})"),
    )
    def call(x: Int32[Tensor, "n m"], y: Int32[Tensor, "n m"], k: int = 3) -> None: ...

    right, wrong = torch.zeros(2, 3).int(), torch.full((2, 3), 5).int()
    with contracts.mode(mode):
        for k in (3, 4, 3, 4):
            call(right, right, k=k)
            contracts.synchronize()
            with pytest.raises(ContractError) as caught:
                call(wrong, right, k=k)
                contracts.synchronize()
            assert caught.value.violations[0].fix == f"x = x.clamp(max=2 - {k})"


def watched_now() -> tuple[Violation, ...]:
    try:
        contracts.synchronize()
    except ContractError as error:
        return error.violations
    return ()
