"""The key/value cache: pieces give what the whole gives, and a cache never changes."""
