"""How often Hypothesis tries: by night as often as a test says, by day no more often than the suite's profile says."""

from hypothesis import settings


def examples(number: int, *, by_day: int | None = None) -> settings:
    """Settings of a test that tries ``number`` examples by night, and ``by_day`` of them where each takes long."""
    most = settings.get_profile("by day").max_examples
    is_day = settings().max_examples == most
    return settings(max_examples=min(number, by_day or most) if is_day else number)
