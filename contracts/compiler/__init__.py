"""A declaration -> straight-line Python.

`module` holds the generated text and loads it, its source registered with linecache so that
tracebacks show it; `code` is what rules write with; `body` puts all tests of a declaration in
order; `check` and `wrapper` are the functions that come out.

What costs time is reading tensor attributes, so each shape is read once and whole shapes are
compared where they are equal by name; the rest is plain control flow.
"""

from .check import Compiled, compile_passes, compile_sizes
from .wrapper import compile_wrapper

__all__ = ["Compiled", "compile_passes", "compile_sizes", "compile_wrapper"]
