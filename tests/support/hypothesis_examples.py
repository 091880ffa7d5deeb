"""Number of Hypothesis examples: a test's own number in the full suite, and fewer if slow tests are skipped."""

from hypothesis import settings


def examples(number: int, *, without_slow: int | None = None) -> settings:
    """Return settings with ``number`` examples; without slow tests, at most ``without_slow`` or the profile's."""
    profile_examples = settings.get_profile("without slow tests").max_examples
    skips_slow = settings().max_examples == profile_examples
    return settings(max_examples=min(number, without_slow or profile_examples) if skips_slow else number)
