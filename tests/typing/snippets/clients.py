"""What the clients release, and what they refuse to take."""

from __future__ import annotations

from typing import Any, assert_type

from pydantic import BaseModel

from queuert import AsyncChain, AsyncClient, Chain, Client, Deduplicate, Job, JobType, NewChain, after


class Resize(BaseModel):
    url: str
    width: int


class Thumbnail(BaseModel):
    key: str


class Published(BaseModel):
    address: str


class Refused(BaseModel):
    why: str


publish = JobType("publish", input=Thumbnail, output=Published)
resize = JobType("resize", input=Resize, continues_with=publish)
check = JobType("check", input=Resize, output=Refused, continues_with=publish)
thumbnail = Thumbnail(key="k")
picture = Resize(url="u", width=1)


def sync(client: Client, connection: object) -> None:
    chain = client.start_chain(resize, picture, priority=3, run_at=after(minutes=5), connection=connection)
    assert_type(chain, Chain[Published])
    assert_type(chain.result(timeout=30), Published)
    assert_type(client.start_chain(check, picture).result(), Refused | Published)
    assert_type(client.get_chain("id", publish), Chain[Published])
    assert_type(client.get_chain("id"), Chain[Any])
    assert_type(client.wait([chain]), list[Chain[Published]])
    assert_type(client.start_chains([NewChain(resize, picture)]), list[Chain[Published]])
    assert_type(NewChain(check, picture), NewChain[Refused | Published])
    client.start_chain(publish, thumbnail, blockers=[chain, "id"])
    assert_type(client.start_and_wait(resize, picture, timeout=5), Published)
    assert_type(client.find_chain(resize, "key"), Chain[Published] | None)
    assert_type(client.find_chain("resize", "key", scope="any"), Chain[Any] | None)
    assert_type(client.get_jobs(["id"], connection=connection), list[Job])
    client.start_chain(resize, picture, deduplication=Deduplicate("key", debounce=5, max_delay=60), max_attempts=1)

    client.start_chain(resize, picture, max_attempts="one")  # expect: error
    client.start_chain(resize, thumbnail)  # expect: error
    client.start_chain(resize, {"url": "u"})  # expect: error
    client.start_chain("resize", picture)  # expect: error
    client.start_chain(resize, picture, run_at=300)  # expect: error
    client.start_chain(publish, thumbnail, blockers=[17])  # expect: error
    NewChain(resize, thumbnail)  # expect: error
    number: int = chain.result()  # expect: error
    del number


async def asynchronous(client: AsyncClient) -> None:
    chain = await client.start_chain(resize, picture)
    assert_type(chain, AsyncChain[Published])
    assert_type(await chain.result(timeout=30), Published)
    assert_type(await client.get_chain("id", publish), AsyncChain[Published])
    assert_type(await client.wait([chain]), list[AsyncChain[Published]])
    assert_type(await client.start_and_wait(resize, picture, id="i", result_ttl=60), Published)
    assert_type(await client.start_and_wait(check, picture), Refused | Published)

    await client.start_chain(resize, thumbnail)  # expect: error
    await client.start_and_wait(resize, thumbnail)  # expect: error
    number: int = await chain.result()  # expect: error
    del number
