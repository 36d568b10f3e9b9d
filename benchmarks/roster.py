"""Who takes part."""

from benchmarks.model import Contestant, Kind

_HERE = "benchmarks.contestants"

QUEUERT = Contestant("queuert", f"{_HERE}.ours", Kind.OURS, package="queuert")
BARE = Contestant("bare", f"{_HERE}.bare_postgres", Kind.BARE, package="psycopg")
PGBENCH = Contestant("pgbench", f"{_HERE}.on_pgbench", Kind.BARE, package="psycopg", optional=True)
BARE_REDIS = Contestant("bare-redis", f"{_HERE}.bare_redis", Kind.BARE, package="redis")
PROCRASTINATE = Contestant("procrastinate", f"{_HERE}.on_procrastinate", Kind.PEER, "procrastinate", "procrastinate")
PGQUEUER = Contestant("pgqueuer", f"{_HERE}.on_pgqueuer", Kind.PEER, "pgqueuer", "pgqueuer")
CHANCY = Contestant("chancy", f"{_HERE}.on_chancy", Kind.PEER, "chancy", "chancy")
DBOS = Contestant("dbos", f"{_HERE}.on_dbos", Kind.PEER, "dbos", "dbos")
OBAN = Contestant("oban", f"{_HERE}.on_oban", Kind.PEER, "oban", "oban", (3, 12))
AWA = Contestant("awa", f"{_HERE}.on_awa", Kind.PEER, "awa", "awa-pg")
ARQ = Contestant("arq", f"{_HERE}.on_arq", Kind.PEER, "arq", "arq")
SAQ = Contestant("saq", f"{_HERE}.on_saq", Kind.PEER, "saq", "saq")
RQ = Contestant("rq", f"{_HERE}.on_rq", Kind.PEER, "rq", "rq")
DRAMATIQ = Contestant("dramatiq", f"{_HERE}.on_dramatiq", Kind.PEER, "dramatiq", "dramatiq")
BULLMQ = Contestant("bullmq", f"{_HERE}.on_bullmq", Kind.PEER, "bullmq", "bullmq")
