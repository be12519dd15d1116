"""A run's rows in the forms that other trainers read. Each module says which fields, of which version of which library, and what is lost."""

from .common import Exporter, export

__all__ = ["Exporter", "export"]
