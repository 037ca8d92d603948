"""The one exception that reaches the user."""


class SpecVizError(Exception):
    """Something the user can act on. The message is one sentence: what is wrong and what to do."""
