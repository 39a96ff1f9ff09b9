"""Large pages for processes that are forked hundreds of times."""

import contextlib
import ctypes

LARGE, MADV_COLLAPSE = 2 << 20, 25


def collapse_pages() -> None:
    """Put this process's memory into large pages: a fork then copies, and at its end takes apart, a third of what it
    would. A kernel before Linux 6.1, or another system, leaves all as it was."""
    madvise = ctypes.CDLL(None).madvise
    with contextlib.suppress(FileNotFoundError), open("/proc/self/maps") as file:
        for addresses, access, _, _, _, *path in map(str.split, file):
            if access.startswith("rw") and path in ([], ["[heap]"]):
                first, end = (int(address, 16) for address in addresses.split("-"))
                for block in range(-(-first // LARGE) * LARGE, end // LARGE * LARGE, LARGE):
                    madvise(ctypes.c_void_p(block), ctypes.c_size_t(LARGE), MADV_COLLAPSE)
