"""Export of a translator to the formats of other programs, in which it gives the same translations."""

from regard.translation.export.export import FORMS, export

__all__ = ["FORMS", "export"]
