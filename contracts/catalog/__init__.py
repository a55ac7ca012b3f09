"""The catalogue: every way to break every contract, as documentation and as data."""

from .build import catalogue, entries_of, mended
from .discovery import NotFound, Subject, announced, find, installed, unusable, within
from .entry import Entry, Fix, Source
from .lookup import Match, look_up, path_in

__all__ = [
    "Entry",
    "Fix",
    "Match",
    "NotFound",
    "Source",
    "Subject",
    "announced",
    "catalogue",
    "entries_of",
    "find",
    "installed",
    "look_up",
    "mended",
    "path_in",
    "unusable",
    "within",
]
