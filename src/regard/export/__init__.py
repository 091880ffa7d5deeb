"""Export of a trained model to other programs, in which it computes the same."""

from regard.export.export import FORMS, export

__all__ = ["FORMS", "export"]
