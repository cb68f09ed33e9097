"""`cometmq dev --sample`: a shop that has what an operator looks for, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import cometmq.testing
from cometmq.aio import AdminClient
from cometmq.cli.dev.sample import _DELAY_MINUTES, _LETTERS, _UNDECIDED, TOPICS, Sample
from cometmq.cli.dev.settings import DEFAULTS
from cometmq.testing import Cluster


def test_the_sample_has_orders_lag_dead_letters_delays_and_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Cluster(clock="virtual", properties=DEFAULTS) as cluster,
            AdminClient(cluster.namesrv) as admin,
        ):
            sample = Sample(cluster.namesrv, tmp_path)
            sample.start()
            await asyncio.wait_for(sample.filled.wait(), 120)
            assert set(TOPICS) <= {*await admin.topics.names()}
            letters = [letter async for letter in admin.messages.dead_letters("mailer")]
            assert len(letters) == _LETTERS
            assert await cluster.lag("reporting") > 200
            assert await cluster.lag("fraud-check") > 50
            timed = await admin.messages.timed("broker-a")
            assert len(timed.messages) == len(_DELAY_MINUTES)
            before = len(await cluster.messages("orders"))
            await asyncio.sleep(600)
            assert len(await cluster.messages("orders")) - before > 600
            for group in ("invoicing", "big-orders", "dispatch", "warehouse"):
                assert await cluster.lag(group) < 50
            # A broker writes down every few seconds which transactions have ended.
            halves = await admin.messages.halves("broker-a")
            assert len(halves.messages) >= _UNDECIDED
            await sample.close()
            await sample.close()

    cometmq.testing.run(main(), seed=7)
