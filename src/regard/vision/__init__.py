"""Pictures in: files to pixels, and pixels to model input; pictures with labels. Needs the extra ``vision``."""

from regard.vision.image_processor import ImageProcessor
from regard.vision.picture_file import MAX_PIXELS, read_picture

__all__ = ["MAX_PIXELS", "ImageProcessor", "read_picture"]
