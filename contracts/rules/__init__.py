"""What a call must obey beyond its annotations; one file per family of rules.

`base` has what all rules share. A new kind of rule is a new class in the file of its family, its
constructor in this list and in `contracts.__init__`, and tests that pass and fail it.
"""

from .about import About, about
from .base import Rule
from .custom import custom
from .expression import rule, when
from .memory import aligned, contiguous, no_overlap, unit_stride
from .presence import requires
from .tensor import device, dtype, no_grad, same_device, same_dtype
from .values import values

__all__ = [
    "About",
    "Rule",
    "about",
    "aligned",
    "contiguous",
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
