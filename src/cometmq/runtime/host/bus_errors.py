"""Name the file when the kernel ends the process because it cannot provide a mapped page (SIGBUS).

A page of a mapping has no bytes any more if somebody cut the file, or if the device failed. The
process then ends, because the instruction that reads the page can neither continue nor raise an
exception. Python's `faulthandler` shows where it was, but not which file it touched. So a handler
of our own looks up the address that the kernel names in the table of mappings, writes one line, and
lets the former handler do what it did, which ends the process.

The handler runs Python code inside a signal handler. This is safe here: the kernel sends the signal
to the thread that touched the page, which is copying bytes and holds no lock of the C library, and
if the handler fails, the process ends as it would without it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_SA_SIGINFO: Final = 4
_SA_ONSTACK: Final = 0x08000000
# The address is the first field behind si_signo, si_errno and si_code, aligned.
_ADDRESS_AT: Final = 16
_MASK_BYTES: Final = 128
_Handler: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    """The C library's `struct sigaction`, the same in glibc and musl on all 64-bit machines but MIPS."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * _MASK_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


# The function that the C library calls; it must not be collected.
_installed: list[Any] = []


def explain_bus_errors(log_file: Path | None = None) -> None:
    """Have a line written to `log_file` and to standard error when the process ends by a SIGBUS.

    Does nothing without /proc, as outside Linux. Call it once, and only in a server's own process.
    """
    if _installed or not Path("/proc/self/maps").exists():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = _SigAction()

    def handle(_number: int, info: int, _context: int) -> None:
        # First: from here on the process ends, even if the handler fails.
        libc.sigaction(signal.SIGBUS, ctypes.byref(before), None)
        address = ctypes.c_size_t.from_address(info + _ADDRESS_AT).value
        _say(_line(address), log_file)

    handler = _Handler(handle)
    action = _SigAction()
    action.handler = ctypes.cast(handler, ctypes.c_void_p)
    action.flags = _SA_SIGINFO | _SA_ONSTACK
    _installed.extend((handler, before, libc))
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))


def _line(address: int) -> str:
    event: dict[str, Any] = {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "level": "critical",
        "logger": __name__,
        "event": "this process ends because a page of a mapped file is gone (SIGBUS)",
    }
    mapped = mapped_file(address)
    if mapped is not None:
        path, offset = mapped
        event |= {"path": path, "offset": offset, "why": _reason(path, offset)}
    return json.dumps(event)


def mapped_file(address: int) -> tuple[str, int] | None:
    """Return the file that is mapped at an address, and the offset in it; None if there is no file."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        span, _rights, offset, _device, _inode, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end and path and path[0].startswith("/"):
            return path[0], int(offset, 16) + address - start
    return None


def _reason(path: str, offset: int) -> str:
    try:
        size = os.stat(path).st_size  # noqa: PTH116 - as little code as possible
    except OSError:
        return "the file was removed, and either it was cut before or its device failed"
    if size <= offset:
        return f"somebody cut the file to {size} bytes while it was in use"
    return "the device could not read the page, see the kernel's log"


def _say(line: str, log_file: Path | None) -> None:
    data = f"{line}\n".encode()
    targets: list[Callable[[], int]] = [lambda: sys.__stderr__.fileno() if sys.__stderr__ else 2]
    if log_file is not None:
        targets.append(lambda: os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    for target in targets:
        with suppress(OSError, ValueError):
            os.write(target(), data)
