"""One contract an op, many backends: which of them serves a call, and why not the others."""

from .errors import BackendWarning, NoBackendError, Reason
from .library import Gradient
from .op import Op, registered
from .report import Answer, Report
from .setting import assume_target, use
from .target import Target

__all__ = [
    "Answer",
    "BackendWarning",
    "Gradient",
    "NoBackendError",
    "Op",
    "Reason",
    "Report",
    "Target",
    "assume_target",
    "registered",
    "use",
]
