"""A run's rows in the formats of other trainers. Each module names the fields, the library's version, and
what the format loses."""

from .common import Exporter
from .run import export

__all__ = ["Exporter", "export"]
