"""A FastAPI application with routes of its own: an order and its job are one commit, and errors have their statuses.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=postgresql://... python -m examples.fastapi_orders``. The requests are made in the same process;
``uvicorn examples.fastapi_orders:app`` would serve them, beside ``queuert worker examples.fastapi_orders:processors``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, QueuertError
from queuert.web import answer_error

ship = JobType("ship_parcel", input=int, output=str)
job_types = JobTypes(ship)
processors = Processors(job_types)


@processors.handles(ship)
async def ship_parcel(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"parcel {attempt.input}"


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "example_parcels"
    number: Mapped[int] = mapped_column(primary_key=True)


url = os.environ["QUEUERT_URL"]
engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
sessions = async_sessionmaker(engine)
client = AsyncClient.from_url(url, job_types)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
app.add_exception_handler(QueuertError, answer_error)


@app.post("/parcels/{number}", status_code=202)
async def start(number: int) -> dict[str, str]:
    async with sessions.begin() as session:
        session.add(Parcel(number=number))
        chain = await client.start_chain(ship, number, id=f"parcel-{number}", connection=session)
    return {"id": chain.id}


@app.get("/parcels/{number}")
async def show(number: int, wait: float = 0.0) -> dict[str, str]:
    chain = await client.get_chain(f"parcel-{number}", ship)
    return {"label": await chain.result(timeout=wait)}


async def main() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop.test") as web,
    ):
        started = await web.post("/parcels/7")
        print(started.status_code, started.json())
        early = await web.get("/parcels/7")
        print(early.status_code, early.json()["type"])
        async with InProcessWorker(client, processors):
            shown = await web.get("/parcels/7", params={"wait": 30})
            print(shown.status_code, shown.json())
        unknown = await web.get("/parcels/8")
        print(unknown.status_code, unknown.json()["detail"])


if __name__ == "__main__":
    asyncio.run(main())
