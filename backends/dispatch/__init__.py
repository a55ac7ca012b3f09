"""One contract an op, many backends: which of them serves a call, and why not the others."""

from .demands import use
from .errors import BackendWarning, NoBackendError, Reason
from .library import Gradient
from .op import Op
from .report import Answer, Report
from .target import Target, assume_target

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
    "use",
]
