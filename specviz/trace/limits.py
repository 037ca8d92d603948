"""How much a file that somebody else wrote may hold. Every limit is checked before the memory for it is spent."""

from specviz.limits import MAX_DRAFT, MAX_NEW_TOKENS

MB = 1 << 20

MOST_UNPACKED = 2048 * MB  # bytes of a recording set in memory, as its metadata counts them
MOST_TABLE = 64 * MB  # bytes of one table of a trace
MOST_JSON = 8 * MB  # bytes of a JSON text; about twenty times as many in memory at worst
MOST_REPORT = 64 * MB  # bytes of the JSON text of a report or a comparison, which is never uploaded
MOST_PROMPT_FILE = 32 * MB  # bytes
MOST_PROMPTS = 100_000  # of one prompt file
MOST_FOOTER = 24 * MB  # bytes of a Parquet file's metadata, which holds the JSON text twice
MOST_CONTAINERS = 200_000  # lists and objects of a JSON text
MOST_DEPTH = 24  # of lists and objects within each other

MOST_RECORDINGS = 10_000  # of a set
MOST_SETTINGS = 1 << 17  # recordings of a set times its longest draft: what a sweep holds at every threshold
MOST_DRAFT = int(MAX_DRAFT.high)
MOST_OUTPUT = int(MAX_NEW_TOKENS.high)  # tokens of one output
MOST_PROMPT = 1 << 20  # tokens of one prompt
MOST_PROMPT_TEXT = 4_000_000  # characters of one prompt
MOST_TOKEN_TEXT = 4096  # characters of one token's text
MOST_EOS = 1000  # end-of-sequence tokens
MOST_NAME = 1000  # characters of a name, such as a model's or a category
LARGEST_INT = 2**31 - 1  # that the tables hold


class TooLargeError(ValueError):
    """A file would take more than its limit; the message says how much."""
