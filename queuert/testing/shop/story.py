"""What happens in the shop: what was before the dashboard was opened, and what goes on."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, datetime, timedelta

from queuert import AsyncClient, NewChain, after
from queuert.activity import Activity, ActivityReport, Histogram
from queuert.ids import new_id
from queuert.testing.shop.job_types import (
    Letter,
    Order,
    Page,
    Refund,
    export_sales,
    import_catalog,
    invoice,
    newsletter,
    order,
    product_page,
    refund,
    restock,
    sync_customer,
)
from queuert.workers import WorkerHeartbeat

CUSTOMERS = ("ada", "bob", "chen", "dora", "emil", "fatima", "georg", "mallory")
STUCK = "order-21"
"""The order that waits for what nobody delivers."""

_HOURS = 5
_SHAPES = {
    # attempts a minute, share that fails, typical seconds of wait and of run
    "order": (60, 0.0, 0.02, 0.1),
    "charge": (64, 0.12, 0.02, 0.4),
    "pack": (56, 0.0, 0.03, 0.8),
    "ship": (55, 0.0, 0.02, 0.2),
    "picture": (40, 0.0, 0.5, 0.3),
    "product-page": (4, 0.0, 0.02, 0.15),
    "invoice": (25, 0.0, 0.3, 0.2),
    "sync-customer": (18, 0.02, 0.05, 0.1),
    "exchange-rates": (4, 0.0, 0.01, 0.4),
}


async def tell_the_past(client: AsyncClient) -> None:
    """Write what workers did in the last hours, and the chains that a new dashboard shows."""
    await _write_activity(client)
    await client.start_chain(restock, "shelf 7, 200 g", id="restock-21")
    orders = [
        NewChain(
            order,
            Order(number=number, customer=CUSTOMERS[number % len(CUSTOMERS)], cents=990 + 37 * number),
            id=f"order-{number}",
            attributes={"customer": CUSTOMERS[number % len(CUSTOMERS)], "order": str(number)},
            blockers=["restock-21"] if number == 21 else [],
        )
        for number in range(1, 61)
    ]
    await client.start_chains(orders)
    await client.start_chains([NewChain(sync_customer, f"crm-down-{n}") for n in range(42)])
    await client.start_chains([NewChain(sync_customer, f"unknown-{n}") for n in range(3)])
    await client.start_chains([NewChain(product_page, Page(product=name, pictures=24)) for name in ("lamp", "desk")])
    await client.start_chains([NewChain(import_catalog, f"catalog-{n}.csv") for n in range(3)])
    await client.start_chains([NewChain(refund, Refund(order=n, cents=9_000 + 700 * n)) for n in range(1, 5)])
    await client.start_chains(
        [NewChain(newsletter, Letter(country=land, issue=7), limit_key=land) for land in ("de", "fr") for _ in range(4)]
    )
    await client.start_chain(export_sales, "2026", run_at=after(hours=9))
    await client.pause_job_types(["newsletter"], reason="links in issue 7 are broken", by="maria")


async def go_on(client: AsyncClient, *, per_second: float = 3.0) -> None:
    """Start chains until it is cancelled: more by day than by night, and a day has two minutes."""
    number, began = 1_000, asyncio.get_running_loop().time()
    while True:
        number += 1
        customer = random.choice(CUSTOMERS)
        attributes = {"customer": customer, "order": str(number)}
        chains: list[NewChain[object]] = [
            NewChain(
                order,
                Order(number=number, customer=customer, cents=random.randint(500, 20_000)),
                id=f"order-{number}",
                attributes=attributes,
            ),
            NewChain(invoice, number, attributes=attributes),
        ]
        if number % 4 == 0:
            chains.append(NewChain(sync_customer, f"{customer}-{number}"))
        if number % 25 == 0:
            chains.append(NewChain(product_page, Page(product=f"product-{number}", pictures=12)))
        if number % 90 == 0:
            chains.append(NewChain(import_catalog, f"catalog-{number}.csv"))
        await client.start_chains(chains)
        seconds = asyncio.get_running_loop().time() - began
        await asyncio.sleep(1 / (per_second * (1.05 + math.sin(seconds / 120 * 2 * math.pi))))


async def _write_activity(client: AsyncClient) -> None:
    """Write the activity of a worker that has stopped, of each minute of the last hours."""
    source, store = random.Random(7), client.state.async_store(max_connections=1)
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    minutes = []
    for back in range(_HOURS * 60, 1, -1):
        at = now - timedelta(minutes=back)
        load = 1 + 0.6 * math.sin(back / 55) + source.uniform(-0.15, 0.15)
        for type, (rate, share, wait, run) in _SHAPES.items():
            # An hour ago the service with the customers was down for a while.
            bad = 0.9 if type == "sync-customer" and 48 <= back <= 71 else share
            slow = 6 if type == "charge" and 130 <= back <= 160 else 1
            started = max(0, round(rate * load))
            failed = round(started * bad)
            minutes.append(
                Activity(
                    at, 60, type, None, started=started, completed=started - failed, retried=failed,
                    wait=_histogram(source, started, wait * slow), run=_histogram(source, started, run * slow),
                )
            )  # fmt: skip
    worker = WorkerHeartbeat(
        id=f"yesterday-{new_id()[:8]}", name="yesterday", host="shop", pid=1, version="0.1.0", job_types=(),
        concurrency=8, running=0, uptime=_HOURS * 3600.0,
    )  # fmt: skip
    await store.open()
    try:
        await store.record_heartbeat(worker, 60.0, ActivityReport(1, minutes))
        await store.remove_worker(worker.id)
    finally:
        await store.aclose()


def _histogram(source: random.Random, count: int, typical: float) -> Histogram:
    buckets = [0] * 27
    for _ in range(count):
        milliseconds = int(typical * source.lognormvariate(0, 0.8) * 1000)
        buckets[min(26, milliseconds.bit_length())] += 1
    return Histogram(tuple(buckets))
