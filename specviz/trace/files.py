"""Writing a file so that it is either whole or absent."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specviz.errors import SpecVizError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes `path`'s place, otherwise it is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SpecVizError(
            f"Cannot write {path}: {error.strerror or error}; free some space or choose another place."
        ) from error
    finally:
        if temporary.is_file():
            temporary.unlink()
