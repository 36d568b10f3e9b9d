"""A clock that tests move: it moves stored times into the past, so that jobs of later become due now."""

from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

from queuert.errors import ConfigurationError
from queuert.state import StateAdapter
from queuert.state.sqlite import SQLiteState

if TYPE_CHECKING:
    from queuert.state.postgres import PostgresState
    from queuert.state.redis import RedisState
    from queuert.state.redis.settings import RedisSettings


_apart = itertools.count(1)
"""The microseconds by which a moved tick is later than it should be. The tick is part of its chain's id: if it equalled
an earlier one, or one of the schedule itself, its chain would be taken for that tick's. Ticks that are caught up after
it are moved as it is: ``ticks_to_run`` in ``queuert/schedules.py`` sees by these microseconds that it was moved."""


_YEAR_2 = (datetime(2, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
"""In microseconds. Python has no times before the year 1."""


def too_early(year: str) -> ConfigurationError:
    """Return the error of times that would be moved to where a store, or Python, has none."""
    return ConfigurationError(
        f"the times that a queue moves must stay after the year {year}, got an advance that moves a start or a tick "
        "before it: advance by less, or begin with new chains and schedules"
    )


class StoredTimes(Protocol):
    """Moves all times in a store. Authors of other stores pass one to ``JobQueue(times=...)``."""

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past by this much, in one step; with ``leases`` the ends of leases as well."""
        ...


_FIRST_TIMES = """
SELECT min(created_at) FROM queuert_job
UNION ALL SELECT min(last_at) FROM queuert_schedule
UNION ALL SELECT min(next_at) FROM queuert_schedule
"""
"""The earliest times that a list shows: the other times of a job are later than its start."""


class SQLiteTimes:
    """Moves the times of the tables of SQLite, in a file or in memory."""

    def __init__(self, state: SQLiteState) -> None:
        self._state = state

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past, in one transaction."""
        by, later = round(seconds * 1_000_000), next(_apart)
        jobs = ["created_at", "scheduled_at", "started_at", "finished_at", "chain_closed_at", "expires_at", "stale_at"]
        moved = {
            "job": dict.fromkeys((*jobs, *(["lease_expires_at"] if leases else [])), by),
            "job_step": dict.fromkeys(("recorded_at", "wake_at", "answered_at", "started_at"), by),
            "chain_attribute": {"created_at": by},
            "limit_start": {"started_at": by},
            "schedule": {"last_at": by, "next_at": by - later},
        }
        store = self._state.sync_store(max_connections=1)
        store.open()
        try:
            with store._writing() as connection:
                if any(first < _YEAR_2 + by for (first,) in connection.execute(_FIRST_TIMES) if first is not None):
                    raise too_early("2")
                for table, columns in moved.items():
                    changes = ", ".join(f"{column} = {column} - {by}" for column, by in columns.items())
                    connection.execute(f"UPDATE queuert_{table} SET {changes}")
        finally:
            store.close()


_REDIS = """
local P, BY, APART, LEASES = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local call = redis.call
local function earlier(digits, by) return string.format('%.0f', tonumber(digits) - by) end

local FIELDS = {'created', 'due', 'started', 'finished', 'closed', 'expires', 'stale'}
if LEASES then FIELDS[#FIELDS + 1] = 'leased' end
local SCORES = {sched = true, ix = true, d = true, ['do'] = true, closed = true, expires = true, rate = true, at = true,
    lease = LEASES}

-- Members that contain a time, with scores that do not: written anew.
local function renamed(key, change)
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
        call('ZREM', key, member)
        call('ZADD', key, 0, change(member))
    end
end

local function of_list(entry)
    return (entry:gsub('^(%d+):(%d+):', function(gen, due) return gen .. ':' .. earlier(due, BY) .. ':' end))
end

local function of_key(member)
    return (member:gsub('^(%d+):(%d+):', function(rank, due)
        return rank .. ':' .. string.format('%017.0f', tonumber(due) - BY) .. ':'
    end))
end

-- Times have no sign. The start of a job is the earliest that it has.
for _, key in ipairs(call('KEYS', P .. 'j:*')) do
    if tonumber(call('HGET', key, 'created') or BY) < BY then return 1 end
end
for _, schedule in ipairs(call('HVALS', P .. 'schedules')) do
    for _, name in ipairs({'last_at', 'next_at'}) do
        if tonumber(schedule:match('"' .. name .. '":%s*"?(%d+)') or BY) < BY then return 1 end
    end
end
for _, key in ipairs(call('KEYS', P .. '*')) do
    local kind = key:sub(#P + 1):match('^[^:]*')
    if kind == 'j' then
        for _, field in ipairs(FIELDS) do
            local value = call('HGET', key, field)
            if value then call('HSET', key, field, earlier(value, BY)) end
        end
    elseif SCORES[kind] then
        local flat = call('ZRANGE', key, 0, -1, 'WITHSCORES')
        for at = 1, #flat, 2 do call('ZINCRBY', key, -BY, flat[at]) end
    elseif kind == 'w' or kind == 'p' then
        for at, entry in ipairs(call('LRANGE', key, 0, -1)) do call('LSET', key, at - 1, of_list(entry)) end
    elseif kind == 's' then
        for at, entry in ipairs(call('LRANGE', key, 0, -1)) do
            local header, result = entry:match('^([^\\n]*)(.*)$')
            local step = cjson.decode(header)
            for _, time in ipairs({3, 4, 6, 7}) do
                if tonumber(step[time]) then step[time] = earlier(step[time], BY) end
            end
            call('LSET', key, at - 1, cjson.encode(step) .. result)
        end
    elseif kind == 'kz' or kind == 'kk' then
        renamed(key, of_key)
    elseif kind == 'schedules' then
        local flat = call('HGETALL', key)
        for at = 1, #flat, 2 do
            local moved = flat[at + 1]
            for name, by in pairs({last_at = BY, next_at = BY - APART}) do
                moved = moved:gsub('("' .. name .. '":%s*"?)(%d+)', function(before, digits)
                    return before .. earlier(digits, by)
                end)
            end
            call('HSET', key, flat[at], moved)
        end
    end
end
"""


class RedisTimes:
    """Moves the times of a namespace of Redis."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past, in one script."""
        import redis
        from redis.retry import Retry

        by, later = round(seconds * 1_000_000), next(_apart)
        pool = self._settings.pool(redis.BlockingConnectionPool, redis.Connection, Retry, 1)
        with redis.Redis.from_pool(pool) as client:
            refused = client.eval(_REDIS, 0, self._settings.prefix, str(by), str(later), "1" if leases else "0")
        if refused:
            raise too_early("1970")


def times_of(state: StateAdapter) -> StoredTimes:
    """Return the object that moves the times of a store.

    Raises:
        ConfigurationError: they are not known: pass ``times=`` to the queue.
    """
    if isinstance(state, SQLiteState):
        return SQLiteTimes(state)
    # The drivers of the others may not be there. Who has made a store has imported its module.
    if isinstance(state, _loaded("queuert.state.postgres", "PostgresState")):
        from queuert.testing.postgres_times import PostgresTimes

        return PostgresTimes(cast("PostgresState", state)._settings, _apart, too_early)
    if isinstance(state, _loaded("queuert.state.redis", "RedisState")):
        return RedisTimes(cast("RedisState", state)._settings)
    raise ConfigurationError(
        f"the times of {type(state).__name__} cannot be moved: pass times= to the queue, an object whose method "
        "shift(seconds, leases=...) moves them"
    )


def _loaded(module: str, name: str) -> type[Any] | tuple[()]:
    """The class of a module that was imported, or no class."""
    return getattr(sys.modules[module], name) if module in sys.modules else ()
