"""Text from outside: names of tables, notes of files, addresses."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Returns `text` with control characters escaped, such as `\x1b`, so that a terminal shows them on one line.

    All characters that `str.isprintable` rejects are escaped, also U+00A0, U+3000, and emoji newer than this Python.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
