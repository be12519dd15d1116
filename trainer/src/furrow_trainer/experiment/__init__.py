"""The learning experiment: demonstrations, a warm start, and two arms that go on online; only one of them
with true rewards."""

from . import report
from .course import Course

__all__ = ["Course", "report"]
