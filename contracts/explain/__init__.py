"""A refused call -> every violation, with where each expectation comes from and how to mend it.

This path interprets the declaration instead of running generated code. It is slower, and it is
the definition: the generated check may refuse only what this refuses. `matching` holds values
against annotations, `judgement` puts annotations and rules in order, `verdicts` is what others ask.
"""

from .verdicts import (
    contents_rules,
    error,
    refusal,
    refusal_of,
    sizes,
    violations,
    violations_of_contents,
    violations_of_result,
    violations_of_sizes,
)

__all__ = [
    "contents_rules",
    "error",
    "refusal",
    "refusal_of",
    "sizes",
    "violations",
    "violations_of_contents",
    "violations_of_result",
    "violations_of_sizes",
]
