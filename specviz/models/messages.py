"""Other libraries' errors, cut down to what fits into one sentence."""


def first_line(error: BaseException) -> str:
    """The error's first line without a full stop, at most 200 characters; its type's name if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
