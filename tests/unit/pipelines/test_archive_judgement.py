"""The judgement that an archive's proof makes of figures and files, without Spark."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import (
    DataFile,
    Figures,
    Hour,
    Layout,
    Manifest,
    QueueState,
)
from cometmq.pipelines.archive.proving.inventory import Inventory, take_inventory
from cometmq.pipelines.archive.proving.judgement import Evidence, Judgement, safe_ranges
from cometmq.pipelines.archive.proving.spans import length, runs, within, without
from cometmq.pipelines.archive.schemas import ALL, COMPACT
from cometmq.pipelines.locations import Location, located
from cometmq.spark.gaps import Gap

HOUR = Hour("orders", "2026-11-20T16")
NEXT = Hour("orders", "2026-11-20T17")
QUEUES = [MessageQueue("orders", "broker-a", at) for at in range(3)]
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)))


def figures(queue_id: int, first: int, last: int, checksum: int = 7) -> Figures:
    count = last - first + 1
    return Figures("broker-a", queue_id, count, first, last, f"{checksum * count:x}")


def inventory(*hours: Hour) -> Inventory:
    paths: dict[Hour, list[Location]] = {hour: [located(name) for name in "ab"] for hour in hours}
    return Inventory([], paths, {})


def evidence(*log: tuple[Hour, Figures], away: tuple[int, ...] = ()) -> Evidence:
    spans: dict[MessageQueue, tuple[int, int]] = {}
    for _, one in log:
        low, high = spans.get(QUEUES[one.queue_id], (one.first, one.last + 1))
        spans[QUEUES[one.queue_id]] = min(low, one.first), max(high, one.last + 1)
    return Evidence(
        spans,
        frozenset(QUEUES[at] for at in away),
        {(hour, QUEUES[one.queue_id], one.form): one for hour, one in log},
        {},
    )


def manifest(hour: Hour, *log: Figures) -> Manifest:
    return Manifest(*hour, (DataFile("a", 10, 1), DataFile("b", 10, 2)), log)


def test_files_that_sum_up_to_the_log_are_proved() -> None:
    before = {HOUR: manifest(HOUR)}
    found = [(HOUR, "a", figures(0, 0, 49)), (HOUR, "b", figures(0, 50, 99))]
    judged = Judgement(before, [HOUR], evidence((HOUR, figures(0, 0, 99))), inventory(HOUR), found)
    assert not judged.failed
    assert not judged.problems
    assert judged.proved(QUEUES[0]) == (0, 100)
    (after,) = judged.manifests()
    assert after.log == (figures(0, 0, 99),)
    assert [file.queues for file in after.files] == [
        (figures(0, 0, 49),),
        (figures(0, 50, 99),),
    ]
    assert after.is_proved


def test_what_was_proved_before_counts_with_what_is_new() -> None:
    before = {HOUR: manifest(HOUR, figures(0, 0, 49))}
    found = [(HOUR, "a", figures(0, 0, 79)), (HOUR, "b", figures(0, 80, 99))]
    judged = Judgement(before, [HOUR], evidence((HOUR, figures(0, 50, 99))), inventory(HOUR), found)
    assert not judged.failed
    assert judged.manifests()[0].log == (figures(0, 0, 99),)


def test_each_form_of_files_is_held_against_its_own_figures() -> None:
    """Checksums of different columns must not be added up."""
    old = replace(figures(0, 0, 49), form=ALL)
    new = replace(figures(0, 50, 99, checksum=9), form=COMPACT)
    before = {HOUR: manifest(HOUR, old)}
    found = [(HOUR, "a", old), (HOUR, "b", new)]
    judged = Judgement(before, [HOUR], evidence((HOUR, new)), inventory(HOUR), found)
    assert not judged.failed
    assert judged.manifests()[0].log == (old, new)
    swapped = [(HOUR, "a", replace(old, form=COMPACT)), (HOUR, "b", replace(new, form=ALL))]
    judged = Judgement(before, [HOUR], evidence((HOUR, new)), inventory(HOUR), swapped)
    assert judged.failed.keys() == {(HOUR, QUEUES[0])}
    assert judged.proved(QUEUES[0]) is None


def test_a_queue_that_does_not_fit_is_not_proved_and_others_are() -> None:
    before = {HOUR: manifest(HOUR), NEXT: manifest(NEXT)}
    found = [
        (HOUR, "a", figures(0, 0, 49)),
        (HOUR, "a", figures(1, 0, 48)),
        (NEXT, "a", figures(0, 50, 99)),
        (NEXT, "b", figures(1, 50, 99)),
    ]
    log = evidence(
        (HOUR, figures(0, 0, 49)),
        (HOUR, figures(1, 0, 49)),
        (NEXT, figures(0, 50, 99)),
        (NEXT, figures(1, 50, 99)),
    )
    judged = Judgement(before, before, log, inventory(*before), found)
    assert list(judged.failed) == [(HOUR, QUEUES[1])]
    assert judged.proved(QUEUES[0]) == (0, 100)
    assert judged.proved(QUEUES[1]) is None
    first, second = judged.manifests()
    assert first.suspect
    assert first.log == (figures(0, 0, 49),)
    # Its other hour fits, but is not marked before the whole span is.
    assert second.log == (figures(0, 50, 99),)
    assert not second.suspect
    assert not second.is_proved


def test_the_same_count_with_another_checksum_does_not_fit() -> None:
    before = {HOUR: manifest(HOUR)}
    found = [(HOUR, "a", figures(0, 0, 99, checksum=8))]
    judged = Judgement(before, [HOUR], evidence((HOUR, figures(0, 0, 99))), inventory(HOUR), found)
    assert list(judged.failed) == [(HOUR, QUEUES[0])]


def test_an_offset_that_neither_side_has_is_not_proved() -> None:
    """Log and archive agree, and one message is in neither."""
    before = {HOUR: manifest(HOUR)}
    short = Figures("broker-a", 0, 99, 0, 99, "5")
    log = evidence((HOUR, short))
    judged = Judgement(before, [HOUR], log, inventory(HOUR), [(HOUR, "a", short)])
    assert not judged.failed
    (problem,) = judged.problems
    assert (problem.kind, problem.first, problem.last) == ("offsets without messages", 0, 99)
    assert judged.proved(QUEUES[0]) is None
    # Where it is noted as gone it is in order.
    gap = Gap("orders", "broker-a", 0, 40, 41, "retention")
    noted = Judgement(
        before, [HOUR], log._replace(gaps=(gap,)), inventory(HOUR), [(HOUR, "a", short)]
    )
    assert not noted.problems
    assert noted.proved(QUEUES[0]) == (0, 100)


def test_a_queue_whose_broker_is_away_waits() -> None:
    before = {HOUR: manifest(HOUR)}
    found = [(HOUR, "a", figures(0, 0, 49)), (HOUR, "b", figures(1, 0, 49))]
    log = evidence((HOUR, figures(0, 0, 49)), away=(1,))
    judged = Judgement(before, [HOUR], log, inventory(HOUR), found)
    assert not judged.failed
    (after,) = judged.manifests()
    assert not after.suspect
    assert not after.is_proved
    assert judged.proved(QUEUES[1]) is None


def test_a_file_that_was_proved_is_held_against_that() -> None:
    proved = Manifest(*HOUR, (DataFile("a", 10, 1, (figures(0, 0, 99),)),), (figures(0, 0, 99),))
    found = [(HOUR, "a", figures(0, 0, 98))]
    judged = Judgement({HOUR: proved}, [HOUR], evidence(), inventory(HOUR), found)
    (problem,) = judged.problems
    assert (problem.kind, problem.file, problem.queue_id) == ("file changed", "a", 0)
    assert "has 99 messages, was proved with 100" in problem.detail
    (after,) = judged.manifests()
    assert after.suspect
    assert after.files == proved.files
    # Restored, it is as before.
    found = [(HOUR, "a", figures(0, 0, 99))]
    again = Judgement({HOUR: after}, [HOUR], evidence(), inventory(HOUR), found)
    assert again.manifests() == (proved,)


def test_an_hour_that_does_not_fit_is_not_safe_to_expire_nor_what_follows() -> None:
    queues = [QueueState("orders", "broker-a", at, 0, 300, 200) for at in range(2)]
    manifests = [
        Manifest(*HOUR, (), (figures(0, 0, 99), figures(1, 0, 119))),
        Manifest(*NEXT, (), (figures(0, 100, 199),), suspect=True),
    ]
    gaps = [Gap("orders", "broker-a", 1, 20, 30, "retention")]
    first, second = safe_ranges(queues, manifests, gaps, "now")
    assert (first.to, first.count, first.missing) == (100, 100, 0)
    assert (second.to, second.count, second.missing) == (200, 190, 10)


def test_the_inventory_names_what_is_missing_changed_and_strange(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    directory = tmp_path / "data" / HOUR.directory
    directory.mkdir(parents=True)
    for name, size in (("a", 10), ("b", 11), ("other.parquet", 5), (".a.crc", 3), ("_SUCCESS", 0)):
        (directory / name).write_bytes(b"x" * size)
    files = (
        DataFile("a", 10, 1),
        DataFile("b", 10, 1),
        DataFile("c", 10, 1, (figures(2, 5, 9),)),
    )
    (tmp_path / "data" / NEXT.directory).mkdir(parents=True)
    (tmp_path / "data" / NEXT.directory / "b00000009-0000.parquet").touch()
    found = take_inventory(layout, {HOUR: Manifest(*HOUR, files)})
    changed, missing = found.problems
    assert (changed.kind, changed.file, changed.detail) == (
        "file changed",
        "b",
        "has 11 bytes, had 10",
    )
    assert (missing.kind, missing.file) == ("file missing", "c")
    assert (missing.queue_id, missing.first, missing.last) == (2, 5, 9)
    assert [path.name for path in found.listed[HOUR]] == ["a", "b"]
    assert [path.name for path in found.strange[HOUR]] == ["other.parquet"]
    assert [path.name for path in found.strange[NEXT]] == ["b00000009-0000.parquet"]


@given(st.tuples(st.integers(0, 40), st.integers(0, 40)), SPANS)
def test_spans_are_sets_of_offsets(span: tuple[int, int], others: list[tuple[int, int]]) -> None:
    whole = set(range(*span))
    covered = whole & {at for one in others for at in range(*one)}
    inside = within(span, others)
    assert [at for one in inside for at in range(*one)] == sorted(covered)
    assert length(inside) == len(covered)
    assert [at for one in without(span, others) for at in range(*one)] == sorted(whole - covered)
    assert {at for one in runs(sorted(covered)) for at in range(*one)} == covered


def test_each_gap_is_looked_at_once_however_many_queues_there_are() -> None:
    count, each = 2000, 20
    queues = [
        QueueState("orders", "broker-a", at, first=0, to=1000, proved_to=1000)
        for at in range(count)
    ]
    gaps = [
        Gap("orders", "broker-a", at, start * 10, start * 10 + 3, "retention")
        for at in range(count)
        for start in range(each)
    ]
    began = time.process_time()
    safe = safe_ranges(queues, [], gaps, "2026-11-26T00:00:00Z")
    spans = {one.queue: (0, 1000) for one in queues}
    waiting = Evidence(spans, frozenset(), {}, {}, tuple(gaps)).without_messages()
    # Each queue among all gaps took more than a minute.
    assert time.process_time() - began < 10
    assert {one.missing for one in safe} == {each * 3}
    assert waiting == dict.fromkeys(spans, 1000 - each * 3)
