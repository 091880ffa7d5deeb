"""Numbers of bytes in messages."""


def describe_bytes(size: int) -> str:
    """Write a number of bytes, such as "1.5 MiB" or "12.0 GiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
