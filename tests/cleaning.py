"""Have a store do now what its cleaner does piece by piece in another thread."""

from __future__ import annotations

from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.store import MessageStore


def clean(store: MessageStore) -> None:
    """Do one run of the cleaner in this thread, without pauses."""
    for work in store.cleaner.run():
        work.do()


def remove_first(files: MappedFileQueue) -> None:
    """Delete the oldest file of a real disk."""
    files.detach_first().unlink()
