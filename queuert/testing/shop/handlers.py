"""The handlers of the shop. They do nothing but wait, fail, and say how far they are."""

from __future__ import annotations

import asyncio
import random

from queuert import Attempt, Limits, NewChain, Outcome, Processors, RecurringSchedule, RetryPolicy
from queuert.policies import LeasePolicy
from queuert.testing.shop.job_types import (
    Letter,
    Order,
    Page,
    Refund,
    Shipment,
    charge,
    exchange_rates,
    export_sales,
    import_catalog,
    invoice,
    job_types,
    newsletter,
    nightly_report,
    order,
    pack,
    pay_out,
    picture,
    product_page,
    refund,
    ship,
    sync_customer,
)

SCHEDULES = (
    RecurringSchedule("exchange-rates", exchange_rates, "EUR", every=15),
    RecurringSchedule("nightly-report", nightly_report, "all", cron="0 3 * * *", time_zone="Europe/Berlin"),
    RecurringSchedule("monthly-export", export_sales, "month", cron="30 4 1 * *"),
)

processors = Processors(
    job_types, retry=RetryPolicy(max_attempts=3, initial_delay=3, max_delay=30), schedules=SCHEDULES
)


class GatewayTimeout(Exception):
    """The payment gateway did not answer."""


class CardDeclined(Exception):
    """The bank of the customer refuses."""


class CrmUnavailable(Exception):
    """The service with the customers is down."""


async def _work(shortest: float, longest: float) -> None:
    await asyncio.sleep(random.uniform(shortest, longest))


@processors.handles(order)
async def take_order(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
    """Take the order; it has to be paid."""
    await _work(0.02, 0.2)
    return attempt.continue_with(charge, attempt.input)


@processors.handles(charge, retry=RetryPolicy(max_attempts=4, initial_delay=2, fail_on=(CardDeclined,)))
async def charge_card(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
    """Charge the card: the gateway times out now and then, and one customer has no money."""
    await _work(0.1, 0.8)
    if attempt.input.customer == "mallory":
        raise CardDeclined("the bank refused the card: insufficient funds")
    if random.random() < 0.12:
        raise GatewayTimeout("the payment gateway did not answer within 800 ms")
    return attempt.continue_with(pack, attempt.input)


@processors.handles(pack)
async def pack_parcel(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
    """Pack the parcel."""
    await _work(0.2, 1.5)
    return attempt.continue_with(ship, attempt.input)


@processors.handles(ship)
async def ship_parcel(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
    """Ship it."""
    await _work(0.05, 0.3)
    return Shipment(number=attempt.input.number, tracking=f"JD{attempt.input.number:010}")


@processors.handles(picture)
async def draw_picture(attempt: Attempt[str, str]) -> Outcome[str]:
    """Draw a picture of a product."""
    await _work(0.1, 0.6)
    return f"https://cdn.example/{attempt.input}"


@processors.handles(product_page)
async def make_page(attempt: Attempt[Page, list[str]]) -> Outcome[list[str]]:
    """Make the page of a product, when its pictures are drawn."""
    if not attempt.blockers:
        names = [f"{attempt.input.product}-{number}.webp" for number in range(attempt.input.pictures)]
        return attempt.wait_for(*(NewChain(picture, name) for name in names))
    await _work(0.1, 0.2)
    return attempt.outputs_of(picture)


@processors.handles(import_catalog, lease=LeasePolicy(seconds=20))
async def read_catalog(attempt: Attempt[str, int]) -> Outcome[int]:
    """Read a long catalog, and say how far it is."""
    rows = 12_000
    for done in range(0, rows, 150):
        attempt.record_progress(done, rows, message=f"reading {attempt.input}")
        await asyncio.sleep(0.5)
    return rows


@processors.handles(invoice)
async def print_invoice(attempt: Attempt[int, str]) -> Outcome[str]:
    """Print an invoice. One in twenty is of a large customer, and takes its time."""
    await _work(*((4, 9) if attempt.input % 20 == 0 else (0.05, 0.4)))
    return f"invoice-{attempt.input}.pdf"


@processors.handles(sync_customer, retry=RetryPolicy(max_attempts=2, initial_delay=1))
async def sync(attempt: Attempt[str, None]) -> Outcome[None]:
    """Tell the service with the customers, which is down for some."""
    await _work(0.05, 0.2)
    if attempt.input.startswith("crm-down"):
        raise CrmUnavailable("503 Service Unavailable from https://crm.example/v2/customers")
    if attempt.input.startswith("unknown"):
        raise KeyError(attempt.input)
    return None


@processors.handles(newsletter, limits=Limits(per_key=1))
async def send_letters(attempt: Attempt[Letter, int]) -> Outcome[int]:
    """Send the newsletter, one issue at a time for each country."""
    await _work(1, 3)
    return 1_000


@processors.handles(export_sales)
async def export(attempt: Attempt[str, None]) -> Outcome[None]:
    """Export the sales."""
    await _work(1, 2)
    return None


@processors.handles(refund)
async def check_refund(attempt: Attempt[Refund, str]) -> Outcome[str]:
    """Let somebody approve a refund, if it is large."""
    if attempt.input.cents >= 10_000:
        await attempt.wait_for_event("approval", str, timeout=7 * 86_400)
    return attempt.continue_with(pay_out, attempt.input)


@processors.handles(pay_out)
async def pay_back(attempt: Attempt[Refund, str]) -> Outcome[str]:
    """Pay it."""
    await _work(0.1, 0.3)
    return f"paid {attempt.input.cents / 100:.2f}"


@processors.handles(exchange_rates)
async def fetch_rates(attempt: Attempt[str, dict[str, float]]) -> Outcome[dict[str, float]]:
    """Fetch the rates."""
    await _work(0.2, 0.6)
    return {"USD": 1.08, "GBP": 0.84}


@processors.handles(nightly_report)
async def report(attempt: Attempt[str, None]) -> Outcome[None]:
    """Write the report of the night."""
    await _work(3, 6)
    return None
