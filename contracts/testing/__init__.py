"""Tests that a contract generates for itself.

    @pytest.mark.tensor_contract(fn=attention)
    def test_attention(contract_case): ...

runs dozens of legal and broken calls of `attention`; `assert_contract(attention)` does the same
within one test. See docs/testing.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import Case, Defect, Suite
    from .comparing import Comparison, compare
    from .parity import Tolerance, assert_parity, conformance
    from .strategies import broken_calls, calls
    from .suite import generate
    from .verdict import assert_contract
else:
    _HOMES = {
        "Case": "cases",
        "Comparison": "comparing",
        "Defect": "cases",
        "Suite": "cases",
        "Tolerance": "parity",
        "assert_contract": "verdict",
        "assert_parity": "parity",
        "broken_calls": "strategies",
        "calls": "strategies",
        "compare": "comparing",
        "conformance": "parity",
        "generate": "suite",
    }

    def __getattr__(name: str) -> Any:
        # Loaded on first use: pytest imports this package at every start, for the plugin.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value


__all__ = [
    "Case",
    "Comparison",
    "Defect",
    "Suite",
    "Tolerance",
    "assert_contract",
    "assert_parity",
    "broken_calls",
    "calls",
    "compare",
    "conformance",
    "generate",
]
