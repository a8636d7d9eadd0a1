"""Bytes that end with a checksum of their own: headers, pages, marks, small records.

    offset    size  field    type  meaning (integers little-endian)
    0         n     content
    end - 4   4     crc32c   u32   CRC-32C of all before it

What the content begins with (magic, version), and what a reader does where the checksum is bad, is for each format.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from struct import Struct


def _load_crc32c() -> Callable[..., int]:
    """Return the function of the package's extension module, without the package.

    Its `__init__` looks up its own version in the installed metadata: a tenth of the processor time of `stream ls`.
    """
    package = PathFinder.find_spec("crc32c")
    extension = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations) if package else None
    if extension is None or extension.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


crc32c = _load_crc32c()
_CRC = Struct("<I")
CRC_SIZE = _CRC.size


def add_crc(content: bytes, size: int = 0) -> bytes:
    """Return the content and its checksum; `size`: with zeros between them, so many bytes in all."""
    content += bytes(max(0, size - CRC_SIZE - len(content)))
    return content + _CRC.pack(crc32c(content))


def crc_is_good(data: bytes) -> bool:
    """Return whether the last four bytes are the checksum of all before them."""
    return len(data) >= CRC_SIZE and bool(_CRC.unpack(data[-CRC_SIZE:])[0] == crc32c(data[:-CRC_SIZE]))
