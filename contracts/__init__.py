"""Contracts for tensor functions: declared once, checked on every call, explained when broken.

The names below load on first use: pytest imports this package at every start, for its plugin, and
should not pay for torch where no contract is tested.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contents.watch import synchronize
    from .decorator import contract
    from .errors import ContractDefinitionError, ContractError, Violation
    from .interface import Contract
    from .modes import current_mode, mode
    from .rules import (
        Rule,
        aligned,
        contiguous,
        device,
        dtype,
        no_grad,
        no_overlap,
        requires,
        rule,
        same_device,
        same_dtype,
        unit_stride,
        when,
    )
    from .rules.about import about  # from `.rules`, type checkers would take it for its module
    from .rules.custom import custom
    from .rules.values import values
else:
    _HOMES = {
        "Contract": "interface",
        "contract": "decorator",
        "ContractDefinitionError": "errors",
        "ContractError": "errors",
        "Violation": "errors",
        "current_mode": "modes",
        "mode": "modes",
        "synchronize": "contents.watch",
    }

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES.get(name, 'rules')}", __name__), name)
        globals()[name] = value
        return value


__all__ = [
    "Contract",
    "ContractDefinitionError",
    "ContractError",
    "Rule",
    "Violation",
    "about",
    "aligned",
    "contiguous",
    "contract",
    "current_mode",
    "custom",
    "device",
    "dtype",
    "mode",
    "no_grad",
    "no_overlap",
    "requires",
    "rule",
    "same_device",
    "same_dtype",
    "synchronize",
    "unit_stride",
    "values",
    "when",
]
