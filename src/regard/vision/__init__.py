"""Pictures in, tensors of pixels out."""

from regard.vision.image_processor import ImageProcessor

__all__ = ["ImageProcessor"]
