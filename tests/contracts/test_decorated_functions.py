"""A decorated function is the function itself, but for its checks."""

import functools
import gc
import inspect
import linecache
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from contracts import ContractDefinitionError, ContractError, contract

Row = Float32[Tensor, "n"]


def plain(a: Row, /, b: Row | None = None, *rest: Row, scale: float = 1.0, **more: Row) -> Row:
    """Adds everything up."""
    return (a + sum(rest) + sum(more.values()) + (0 if b is None else b)) * scale


checked = contract(plain)


@contract("n > 1")
def module_level(x: Row) -> Row:
    """Doubles."""
    return 2 * x


def row(size: int = 3) -> Tensor:
    return torch.ones(size)


def test_metadata_is_the_functions_own() -> None:
    assert checked.__name__ == "plain"
    assert checked.__qualname__ == "plain"
    assert checked.__module__ == __name__
    assert checked.__doc__ == "Adds everything up."
    assert checked.__wrapped__ is plain
    assert checked.__annotations__ == plain.__annotations__


@pytest.mark.parametrize("follow_wrapped", [True, False])
def test_signature_is_the_functions_own(follow_wrapped: bool) -> None:
    assert inspect.signature(checked, follow_wrapped=follow_wrapped) == inspect.signature(plain)


def test_signature_survives_unusual_parameters() -> None:
    default = object()

    def odd(
        a: Any, b: Any = default, /, c: Any = (1, 2), *, d: Any = default, e: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        return a, b, c, d, e, kwargs

    wrapped = contract(odd)
    assert inspect.signature(wrapped, follow_wrapped=False) == inspect.signature(odd)
    assert wrapped(1, e=2, x=3) == odd(1, e=2, x=3)
    assert wrapped(1, 2, 3, d=4, e=5) == odd(1, 2, 3, d=4, e=5)


def test_every_kind_of_argument_is_passed_on() -> None:
    call = {"scale": 2.0, "extra": row()}
    assert torch.equal(checked(row(), row(), row(), **call), plain(row(), row(), row(), **call))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((row(2),), {"b": row(3)}),
        ((row(2), row(2), row(3)), {}),
        ((row(2),), {"extra": row(3)}),
        ((row(2),), {"scale": "2"}),
    ],
    ids=["keyword", "variadic", "keywords", "value"],
)
def test_every_kind_of_argument_is_checked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        checked(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((row(),), {"a": row()}), ((row(),), {"b": row(), "scale": 1.0, "_": row()})],
    ids=["missing", "positional-only", "extra"],
)
def test_binding_errors_are_those_of_python(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def outcome(function: Callable[..., Any]) -> type[BaseException] | None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            return type(error)
        return None

    assert outcome(checked) is outcome(plain)
    assert not isinstance(outcome(checked), ContractError)


def test_a_missing_argument_is_reported_under_the_functions_name() -> None:
    with pytest.raises(TypeError, match=r"module_level\(\) missing 1 required positional argument"):
        module_level()  # type: ignore[call-arg]


def test_pickled_by_reference() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level


def test_without_parentheses_and_with_empty_ones() -> None:
    for decorated in (contract(plain), contract()(plain)):
        with pytest.raises(ContractError):
            decorated(row().double())


def test_no_arguments_at_all() -> None:
    assert contract(lambda: 5)() == 5


def test_a_function_without_annotations_is_only_passed_on() -> None:
    @contract
    def free(x, *args, y=2, **kwargs):
        return x, args, y, kwargs

    assert free(1, 2, 3, y=4, z=5) == (1, (2, 3), 4, {"z": 5})


def test_decorated_twice_both_contracts_hold() -> None:
    @contract("n % 2 == 0")
    @contract("n % 3 == 0")
    def f(x: Row) -> int:
        return x.shape[0]

    assert [f(row(6)), f(row(12)), f(row(6))] == [6, 12, 6]
    with pytest.raises(ContractError, match="n % 2 == 0"):
        f(row(3))
    with pytest.raises(ContractError, match="n % 3 == 0"):
        f(row(2))
    assert inspect.signature(f) == inspect.signature(inspect.unwrap(f))


def test_a_partial_of_a_decorated_function() -> None:
    half = functools.partial(checked, scale=0.5)
    assert half(row()).tolist() == [0.5] * 3
    with pytest.raises(ContractError):
        half(row().double())
    assert (
        pickle.loads(pickle.dumps(functools.partial(module_level, x=row())))().tolist() == [2] * 3
    )


def test_a_decorated_partial() -> None:
    def scaled(factor: float, x: Row, y: Row) -> Row:
        return factor * x + y

    twice = contract("n > 1")(functools.partial(scaled, 2.0, y=row()))
    assert twice(row()).tolist() == [3.0] * 3
    assert twice(x=row(), y=row()).tolist() == [3.0] * 3
    assert twice.contract.name.endswith("scaled")
    with pytest.raises(ContractError, match="y axis 0"):
        twice(row(2))
    with pytest.raises(ContractError, match="n > 1"):
        twice(row(1), y=row(1))


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Row) -> Row:
        return self.factor * x

    def method(self, x: Row) -> Row:
        return self(x)


def test_a_callable_object() -> None:
    scale = contract("n > 1")(Scaler(2.0))
    assert scale(row()).tolist() == [2.0] * 3
    with pytest.raises(ContractError):
        scale(row(1))
    with pytest.raises(ContractError):
        scale(row().double())


def test_a_bound_method() -> None:
    scale = contract("n > 1")(Scaler(2.0).method)
    assert scale(x=row()).tolist() == [2.0] * 3
    assert scale.contract.check(row()) == {"n": 3}
    with pytest.raises(ContractError):
        scale(row(1))


def test_a_cached_function_keeps_its_cache() -> None:
    calls = []

    @contract
    @functools.lru_cache
    def slow(n: int) -> int:
        calls.append(n)
        return n

    assert [slow(2), slow(2)] == [2, 2]
    assert calls == [2]


def test_names_of_arguments_never_clash_with_generated_ones() -> None:
    @contract("x_shape > 0", "passes > 0", "x_shape == n")
    def f(
        x: Float32[Tensor, "n Tensor"],
        y: Float32[Tensor, "Tensor float32"],
        passes: int = 1,
        x_shape: int = 3,
        refuse: Float32[Tensor, "*refused found"] | None = None,
        function: int = 0,
    ) -> int:
        return passes + function

    assert f(torch.zeros(3, 4), torch.zeros(4, 5), refuse=torch.zeros(1, 2, 3)) == 1
    sizes = f.contract.check(torch.zeros(3, 4), torch.zeros(4, 5), refuse=torch.zeros(1, 2, 3))
    assert sizes == {"n": 3, "Tensor": 4, "float32": 5, "refused": (1, 2), "found": 3}
    with pytest.raises(ContractError):
        f(torch.zeros(3, 4), torch.zeros(3, 5))
    with pytest.raises(ContractError):
        f(torch.zeros(3, 4), torch.zeros(4, 5), 0)


@pytest.mark.parametrize(
    "name", ["isinstance", "len", "type", "tuple", "Exception", "torch", "Tensor", "None_"]
)
def test_arguments_named_like_what_the_check_uses(name: str) -> None:
    namespace: dict[str, Any] = {"Row": Float32[Tensor, "*batch n"]}
    exec(f"def f(x: Row, {name}: int) -> int: return {name}", namespace)
    f = contract("n > 1")(namespace["f"])
    assert f(row(), 3) == 3
    with pytest.raises(ContractError):
        f(row(), "3")
    with pytest.raises(ContractError):
        f(row(1), 3)


@pytest.mark.parametrize(
    "thing",
    [property(lambda self: 1), functools.cached_property(lambda self: 1), 3, None, []],
    ids=["property", "cached_property", "int", "None", "list"],
)
def test_what_cannot_be_decorated_is_a_definition_error(thing: Any) -> None:
    with pytest.raises(ContractDefinitionError):
        contract(thing)
    with pytest.raises(ContractDefinitionError):
        contract("n > 1")(thing)


def test_a_builtin_without_a_signature_is_a_definition_error() -> None:
    with pytest.raises(ContractDefinitionError, match="signature"):
        contract(torch.add)


def test_the_generated_check_shows_in_tracebacks() -> None:
    import linecache

    source = module_level.contract.source
    filename = module_level.contract.passes.__code__.co_filename
    assert "def passes(x)" in source
    assert "".join(linecache.getlines(filename)) == source
    assert "".join(linecache.getlines(module_level.__code__.co_filename))


def test_an_argument_called_underscore_is_passed_on() -> None:
    @contract
    def first_of(x: Float32[Tensor, "_ n"], y: Row | Float32[Tensor, "n k"], _: int = 7) -> int:
        return _

    assert first_of(torch.zeros(3, 4), torch.zeros(4, 2)) == 7
    assert first_of(torch.zeros(3, 4), torch.zeros(4), 9) == 9


def test_the_source_of_a_check_goes_with_it() -> None:
    @contract("n > 1")
    def short_lived(x: Row) -> None: ...

    short_lived.contract.check(torch.zeros(2))
    mine = {name for name in linecache.cache if "short_lived" in name}
    assert mine
    del short_lived
    gc.collect()
    assert mine.isdisjoint(linecache.cache)
