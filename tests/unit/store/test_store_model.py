"""Any sequence of appends, stops and crashes equals a model."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.store_box import CLIENT, Box, bodies, put

from cometmq.protocol.messages.batch import BatchEntry

QUEUES = st.tuples(st.sampled_from(["a", "b", "%RETRY%" + "r" * 140]), st.integers(0, 2))
BODIES = st.binary(max_size=40).map(lambda body: body * 20)
STEPS = st.one_of(
    st.tuples(st.just("put"), QUEUES, BODIES),
    st.tuples(st.just("batch"), QUEUES, st.lists(BODIES, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["stop", "crash", "flush", "prepare"])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_store_equals_its_model(steps: list[tuple[Any, ...]]) -> None:
    model: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        box = Box(Path(directory) / "store")
        store = box.open()
        for kind, *details in steps:
            box.clock.value += 500
            if kind == "put":
                (topic, queue_id), body = details
                offset, _ = put(store, body, topic=topic, queue_id=queue_id)
                assert offset == len(model[topic, queue_id])
                model[topic, queue_id].append(body)
            elif kind == "batch":
                (topic, queue_id), parts = details
                entries = [BatchEntry(0, body, b"") for body in parts]
                queue = store.queue(topic, queue_id)
                first, _ = store.append_batch(queue, entries, [0] * len(entries), 1, CLIENT)
                assert first == len(model[topic, queue_id])
                model[topic, queue_id].extend(parts)
            elif kind == "flush":
                store.flush_all()
            elif kind == "prepare":
                store.prepare_next()
            else:
                box.crash(store) if kind == "crash" else store.close()
                store = box.open()
        box.crash(store)
        store = box.open()
        for (topic, queue_id), expected in model.items():
            assert bodies(store, topic, queue_id) == expected
        box.close()
