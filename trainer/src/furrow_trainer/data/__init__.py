"""The data set of a run, read while it grows."""

from .cursor import Cursor
from .manifest import Commit, DataFile, Manifest
from .reader import Choice, Group, Reader
from .rows import GroupRow, ImageSpan, Step, Trajectory

__all__ = [
    "Choice",
    "Commit",
    "Cursor",
    "DataFile",
    "Group",
    "GroupRow",
    "ImageSpan",
    "Manifest",
    "Reader",
    "Step",
    "Trajectory",
]
