"""Cases of standards and other libraries, computed by regard."""
