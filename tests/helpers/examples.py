"""How many examples Hypothesis draws for a test."""

from hypothesis import settings

from helpers.support import runs_all_tests


def of_each(kinds, usual=None):
    """Settings of a test that draws one of several kinds: `usual` examples, those of the profile if None.

    In `make test-all`, each kind gets as many as a test of its own.
    """
    examples = settings.default.max_examples
    return settings(max_examples=examples * len(kinds) if runs_all_tests() else usual or examples)
