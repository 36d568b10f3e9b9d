"""Producers and consumers in processes of their own, and a consumer that stops gracefully.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m
examples.redis_producer_and_consumer``. It starts a consumer, ``... redis_producer_and_consumer consume``, and produces.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pydantic import BaseModel

from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, Processors


class Email(BaseModel):
    to: str
    template: str


email = JobType("email", input=Email, output=None)
job_types = JobTypes(email)
processors = Processors(job_types)


@processors.handles(email)
def send(attempt: Attempt[Email, None]) -> Outcome[None]:
    # It may be run again after a crash: give the job's id to the provider, who then sends once.
    if attempt.input.template == "newsletter":
        attempt.record_progress(message="sending")
        while not attempt.worker_stopping:
            time.sleep(0.01)
    print(f"sent {attempt.input.template} to {attempt.input.to}, as {attempt.job_id}", flush=True)
    return None


def consume() -> int:
    """Until SIGTERM; what runs then may end within the grace."""
    with Client.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        return InProcessWorker(client, processors, concurrency=5, shutdown_timeout=20).run()


def produce(client: Client, id: str, template: str) -> None:
    """Start it, if it was not started before."""
    chain = client.start_chain(email, Email(to="ada@example.com", template=template), id=id, attach=True)
    print(f"{id}: {'there already, ' + chain.refresh().status if chain.deduplicated else 'started'}", flush=True)


def main() -> None:
    with Client.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        produce(client, "email-123", "welcome")
        produce(client, "email-123", "welcome")
        consumer = subprocess.Popen([sys.executable, "-m", "examples.redis_producer_and_consumer", "consume"])
        try:
            client.get_chain("email-123").result(timeout=30)
            produce(client, "email-123", "welcome")
            produce(client, "email-124", "newsletter")
            # A job that is claimed and has not begun goes back when its consumer stops: so wait until it has begun.
            while client.get_job("email-124").progress is None:
                time.sleep(0.01)
        finally:
            consumer.terminate()
        print(f"the consumer ended with {consumer.wait(30)}, and its job is {client.get_job('email-124').status}")
        client.delete_chains(["email-123", "email-124"])  # so that this program can be run again


if __name__ == "__main__":
    if "consume" in sys.argv:
        sys.exit(consume())
    main()
