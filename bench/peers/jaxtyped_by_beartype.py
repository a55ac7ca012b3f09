"""The same annotations in the spelling that jaxtyping's documentation recommends."""

import inspect

from beartype import beartype
from jaxtyping import jaxtyped

from bench.peers import jaxtyping_beartype

hunyuan = jaxtyped(typechecker=beartype)(inspect.unwrap(jaxtyping_beartype.hunyuan))
sparse_mla = jaxtyped(typechecker=beartype)(inspect.unwrap(jaxtyping_beartype.sparse_mla))
