"""The job types of the shop."""

from __future__ import annotations

from pydantic import BaseModel

from queuert import JobType, JobTypes


class Order(BaseModel):
    """An order of a customer."""

    number: int
    customer: str
    cents: int


class Shipment(BaseModel):
    """A parcel on its way."""

    number: int
    tracking: str


class Page(BaseModel):
    """The page of a product, with its pictures."""

    product: str
    pictures: int


class Refund(BaseModel):
    """Money that a customer wants back."""

    order: int
    cents: int


class Letter(BaseModel):
    """A newsletter to all customers of a country."""

    country: str
    issue: int


ship = JobType("ship", input=Order, output=Shipment)
pack = JobType("pack", input=Order, continues_with=ship)
charge = JobType("charge", input=Order, continues_with=pack)
order = JobType("order", input=Order, continues_with=charge)
restock = JobType("restock", input=str, output=None)
"""The supplier does these, and his workers are not running."""

picture = JobType("picture", input=str, output=str)
product_page = JobType("product-page", input=Page, output=list[str])
import_catalog = JobType("import-catalog", input=str, output=int)
invoice = JobType("invoice", input=int, output=str)
sync_customer = JobType("sync-customer", input=str, output=None)
newsletter = JobType("newsletter", input=Letter, output=int)
export_sales = JobType("export-sales", input=str, output=None)

pay_out = JobType("pay-out", input=Refund, output=str)
refund = JobType("refund", input=Refund, output=str, continues_with=pay_out)

exchange_rates = JobType("exchange-rates", input=str, output=dict[str, float])
nightly_report = JobType("nightly-report", input=str, output=None)

job_types = JobTypes(
    order,
    charge,
    pack,
    ship,
    restock,
    picture,
    product_page,
    import_catalog,
    invoice,
    sync_customer,
    newsletter,
    export_sales,
    refund,
    pay_out,
    exchange_rates,
    nightly_report,
)
