"""`Op`: one contract, one reference that serves all of it, and backends that narrow it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import torch

from contracts import Contract, Rule
from contracts.decorator import Contracted

from .assembly import Assembly, assembled
from .errors import Reason
from .library import Gradient
from .registry import Backend
from .report import Report

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class Op(Generic[P, R_co]):
    """An operation: called like its contract's function, served by one of its backends.

    `Op(...)` gives a function, so that a call costs what a call of a function costs; this class is
    how type checkers see it, with what it carries.

    A call is judged by the contract first, whichever backend would serve it; then `backend=`, a
    `backends.use` block or the environment demands a backend, or the one of highest priority among
    those that serve the call is chosen.

    Args:
        function: a function with a contract. Its body is never run.
        reference: the inner function in plain torch, which serves every call that the contract
            accepts, on any device. Its parameters are parameters of `function`, annotated with
            types that a torch library op has (`Tensor | None`, `float`), and it says what it
            returns; those of `function` that it leaves out must have defaults.
        buffers: the parameters that inner functions write their results into. The contract's
            `outputs=` takes each of them, gives back those that the call brings and allocates
            the others; what it returns, the op returns. Inner functions return nothing.
        unpack: makes the public result of what an inner function returns, if they differ.
        pack: the inverse of `unpack`, for shapes alone.
        gradient: how to differentiate inner functions. Without it only the reference serves calls
            that need a gradient.

    Raises:
        ContractError: a call breaks the contract. Nothing was allocated or launched.
        NoBackendError: a call is right, and the backend that it demands cannot serve it.

    Example:
        >>> import torch, backends
        >>> from contracts import contract
        >>> from jaxtyping import Float32
        >>> @contract("n % 2 == 0")
        ... def halve(x: Float32[torch.Tensor, "n"]) -> Float32[torch.Tensor, "n"]:
        ...     '''Half of x.'''
        >>> def halve_reference(x: torch.Tensor) -> torch.Tensor:
        ...     return x / 2
        >>> halve = backends.Op(halve, reference=halve_reference)
        >>> @halve.backend("shifted", rules=["n >= 4"], priority=1)
        ... def halve_shifted(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.ldexp(x, torch.tensor(-1))
        >>> halve(torch.ones(2))
        tensor([0.5000, 0.5000])
        >>> print(halve.explain(torch.ones(2)))
        halve on cpu: reference
          shifted    no: n >= 4 does not hold; nearest size: 4: n is 2, from x axis 0
          reference  yes: chosen
    """

    contract: Contract
    """What a call must obey, whichever backend serves it."""
    backends: tuple[str, ...]
    """Names of the backends, by falling priority; the reference is last."""
    registered: tuple[Backend, ...]
    """The same as data: rules, and what they need of a device."""
    reference: Callable[P, R_co]
    """The op, served by its reference whatever else could."""
    inner: Any
    """The torch.library op that graphs see: it takes what backends take, then the backend's name
    and whether it was demanded."""
    __name__: str
    __qualname__: str

    def __new__(
        cls,
        function: Contracted[P, R_co],
        *,
        reference: Callable[..., Any],
        buffers: Sequence[str] = (),
        unpack: Callable[[Any], R_co] | None = None,
        pack: Callable[[R_co], Any] | None = None,
        gradient: Gradient | None = None,
    ) -> Op[P, R_co]:
        module = sys._getframe(1).f_globals["__name__"]
        assembly = Assembly(function, module, reference, buffers, unpack, pack, gradient)
        return cast("Op[P, R_co]", assembly.function)

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, backend: str | None, **kwargs: Any) -> R_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def explain(self, *args: Any, backend: str | None = None, **kwargs: Any) -> Report:
        """What would serve this call and why nothing else would; runs nothing.

        Takes what the op takes, fake and meta tensors too. A call that breaks the contract has
        `report.error`, the ContractError that the call would raise.
        """

    def availability(self, device: str | torch.device) -> dict[str, tuple[Reason, ...]]:
        """What speaks against each backend on a device, whatever the call.

        Imports those that nothing speaks against.
        """

    @overload
    def backend(
        self,
        name: str,
        source: str,
        /,
        *,
        rules: Sequence[Rule | str] = ...,
        needs: str | Sequence[str] = ...,
        packages: Sequence[str] = ...,
        priority: float = ...,
    ) -> None: ...
    @overload
    def backend(
        self,
        name: str,
        /,
        *,
        rules: Sequence[Rule | str] = ...,
        needs: str | Sequence[str] = ...,
        packages: Sequence[str] = ...,
        priority: float = ...,
    ) -> Callable[[F], F]: ...
    def backend(
        self,
        name: str,
        source: str | None = None,
        /,
        *,
        rules: Sequence[Rule | str] = (),
        needs: str | Sequence[str] = (),
        packages: Sequence[str] = (),
        priority: float = 0,
    ) -> Any:
        """Register another way to compute this op; a decorator of its inner function.

        Args:
            name: what `backend=` calls it.
            source: "package.module:function" instead of a decorated function: imported the first
                time that nothing else speaks against the backend.
            rules: what it demands of a call beyond the contract, in the contract's language:
                `["head_dim % 8 == 0", aligned(16, "kv")]`.
            needs: conditions on the device: `"sm >= 90"`, `"sm >= 80 or interpreter"`.
            packages: packages that have to be installed: `["triton"]`.
            priority: the highest among the backends that serve a call is chosen.

        The inner function takes the arguments of the reference, by position, and trusts them. It
        serves only calls that the contract and these rules accept. An exception out of it is a
        bug, never a refusal.
        """


def registered() -> tuple[Op[..., Any], ...]:
    """Every op that was defined, this package's and others', in the order of definition."""
    return tuple(cast("Op[..., Any]", assembly.function) for assembly in assembled.values())
