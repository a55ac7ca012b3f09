"""Contracts for tensor functions: declared once, checked on every call, explained when broken."""

from .decorator import Contract, contract
from .errors import ContractDefinitionError, ContractError, Violation
from .rules import (
    Rule,
    about,
    aligned,
    contiguous,
    custom,
    device,
    dtype,
    no_grad,
    no_overlap,
    requires,
    rule,
    same_device,
    same_dtype,
    unit_stride,
    values,
    when,
)

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
    "custom",
    "device",
    "dtype",
    "no_grad",
    "no_overlap",
    "requires",
    "rule",
    "same_device",
    "same_dtype",
    "unit_stride",
    "values",
    "when",
]
