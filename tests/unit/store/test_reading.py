"""The package of the store that readers share: what its import costs, and what it finds."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from cometmq.errors import StoreLockedError
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, encode_record
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.store import reading
from cometmq.store.files.disk import Disk
from cometmq.store.reading.files import kept_from_brokers
from cometmq.store.reading.layout import PLACEHOLDER_SIZE, next_magic
from cometmq.store.reading.lock import EXCLUSIVE, SHARED, take_lock
from cometmq.store.reading.record_texts import RecordTexts
from cometmq.store.reading.units import UNIT_DTYPE, is_message

MODULES = sorted(path.stem for path in Path(reading.__path__[0]).glob("[a-z]*.py"))
# What an import must not bring along, as Spark's workers would pay for it in each task.
HEAVY = ("asyncio", "structlog", "msgspec", "cometmq.store.files.disk", "cometmq.store.config")


@pytest.mark.parametrize("module", MODULES)
def test_workers_import_nothing_heavy_with_it(module: str) -> None:
    code = f"import sys, cometmq.store.reading.{module}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = ended.stdout.split()
    assert f"cometmq.store.reading.{module}" in imported
    assert not set(HEAVY) & set(imported)


def test_units_that_stand_for_no_message() -> None:
    units = np.array([(0, 0, 0), (0, PLACEHOLDER_SIZE, 0), (7, 91, 1)], UNIT_DTYPE)
    assert is_message(units).tolist() == [False, False, True]


def test_readers_share_the_lock_and_a_broker_has_it_alone(tmp_path: Path) -> None:
    held = Disk().lock(tmp_path / "lock")
    code = (
        "import os, sys; from cometmq.store.reading.lock import *;"
        "print([take_lock(os.open(sys.argv[1], os.O_RDWR), kind) for kind in (SHARED, EXCLUSIVE)])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]

    def others() -> str:
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        return ended.stdout.strip()

    assert others() == "[False, False]"
    held.release()
    fd = os.open(tmp_path / "lock", os.O_RDWR)
    assert take_lock(fd, SHARED)
    assert others() == "[True, False]"
    assert take_lock(fd, EXCLUSIVE)
    assert others() == "[False, False]"
    os.close(fd)
    assert others() == "[True, True]"


def test_a_store_that_a_broker_has_is_not_read(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cometmq.store.files.disk import Disk;"
        "held = Disk().lock(Path(sys.argv[1]) / 'lock'); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        with (
            pytest.raises(StoreLockedError, match="is being written by a broker that runs"),
            kept_from_brokers(tmp_path),
        ):
            pass
        broker.communicate("\n")
    with kept_from_brokers(tmp_path):
        pass


def test_either_magic_is_found_in_one_pass(tmp_path: Path) -> None:
    """A search for each of the two magics alone went through the rest of a file at every damaged
    record.
    """
    places = {100: MAGIC_V2, 300: MAGIC_V1, 500: MAGIC_V2}
    content = bytearray(4096)
    for place, magic in places.items():
        content[place : place + 4] = magic.to_bytes(4, "big")
    (tmp_path / "log").write_bytes(content)
    with (tmp_path / "log").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found, at = [], 0
    while (at := next_magic(mapping, at, 504)) >= 0:
        found.append(at)
        at += 1
    assert found == list(places)
    assert next_magic(mapping, 301, 503) == -1
    mapping.close()


def record_with(properties: str) -> bytes:
    return encode_record(
        topic=b"orders",
        body=b"body",
        properties=properties.encode(),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=b"\x7f\0\0\1\0\0\x2a\x9f",
        store_timestamp=2,
        store_host=b"\x7f\0\0\1\0\0\x2a\x9f",
    )


# As users and older releases write them: whole, cut short, doubled and damaged.
properties_texts = st.lists(
    st.sampled_from(["\x01", "\x02", "TAGS", "KEYS", "TAGS\x01a\x02", "é", "x", "TAGSX"]),
    max_size=12,
).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(properties_texts, min_size=1, max_size=5))
def test_one_property_and_all_properties_are_read_alike(written: list[str]) -> None:
    window = b"".join(map(record_with, written))
    texts = RecordTexts(window, read_columns(window, 0, len(window), None))
    found: list[dict[str, str]] = [{} for _ in written]
    for owner, start, name_end, end in zip(*texts.entries(), strict=True):
        found[owner][texts.decode(start, name_end)] = texts.decode(name_end + 1, end)
    assert found == [decode_properties(each) for each in written]
    for name in ("TAGS", "KEYS"):
        one = {owner: texts.decode(a, b) for owner, a, b in zip(*texts.values(name), strict=True)}
        assert one == {at: each[name] for at, each in enumerate(found) if name in each}
