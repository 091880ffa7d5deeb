"""Number of Hypothesis examples: a test's own number in the full suite, capped by the profile "by day" otherwise."""

from hypothesis import settings


def examples(number: int, *, by_day: int | None = None) -> settings:
    """Return settings with ``number`` examples, and at most ``by_day`` or the profile's number without slow tests."""
    most = settings.get_profile("by day").max_examples
    is_day = settings().max_examples == most
    return settings(max_examples=min(number, by_day or most) if is_day else number)
