"""The catalogue as a static site: no server, no external asset, no script needed for reading."""

from .site import write

__all__ = ["write"]
