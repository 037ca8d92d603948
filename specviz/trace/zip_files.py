"""Taking named files out of a zip file that somebody else packed."""

import zipfile
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.trace.limits import MB

MOST_MEMBERS = 1000
MEMBER_MARK = b"PK\x01\x02"  # begins each entry of the list of members
PIECE = 1 << 16  # bytes unpacked at a time


def unpack(content: bytes, wanted: Collection[str], folder: Path, *, name: str, most: int) -> None:
    """Write the members of a zip file that are called as `wanted`, whatever their folder in it, into `folder`.

    Args:
        name: what errors call the zip file.
        most: bytes that they may unpack to, all together.

    Raises:
        SpecVizError: it is damaged, holds a wanted name twice, or unpacks to more.
    """
    if content.count(MEMBER_MARK) > MOST_MEMBERS:
        raise SpecVizError(f"{name} holds more than {MOST_MEMBERS} files; pack only {', '.join(wanted)}.")
    left = most
    taken: set[str] = set()
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            for member in archive.infolist():
                target = Path(member.filename).name
                if target not in wanted:
                    continue
                if target in taken:
                    raise SpecVizError(f"{name} holds {target} twice; pack one trace.")
                taken.add(target)
                with archive.open(member) as packed, (folder / target).open("wb") as unpacked:
                    while piece := packed.read(PIECE):
                        left -= len(piece)
                        if left < 0:
                            raise SpecVizError(f"{name} unpacks to more than {most // MB} MB; it is too large to open.")
                        unpacked.write(piece)
    except SpecVizError:
        raise
    except Exception as error:  # zipfile and its decompressors have exceptions of their own for each kind of damage
        raise SpecVizError(f"{name} is damaged or no zip file; download or pack it again.") from error
