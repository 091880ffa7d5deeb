"""A translator for programs that are not regard: written as they read it, and to translate as it did."""

from regard.translation.export.export import FORMS, export

__all__ = ["FORMS", "export"]
