-- name: record_heartbeat
-- Records that a worker is alive, and what it did. ARGV[1]: {ttl, uptime, record, limits, traits, known_types,
-- activity}. Also deletes workers whose heartbeat has expired. Returns the time.
--
-- workers is a HASH of the last heartbeats, workers:until a ZSET of when they expire, limits a HASH of the limits of job
-- types, traits a HASH of what is particular to some: whether clients complete them, the microseconds after which they
-- are overdue, and whether they close with their parent.

local params = decoded(1)
local id, record = params.record.id, params.record
local stored = call('HGET', P .. 'workers', id)
record.started_at = stored and cjson.decode(stored).started_at or text(NOW - params.uptime)
record.seen_at = text(NOW)
call('HSET', P .. 'workers', id, cjson.encode(record))
call('ZADD', P .. 'workers:until', NOW + params.ttl, id)
for _, type in ipairs(record.job_types) do
    local limits = params.limits[type]
    if limits then call('HSET', P .. 'limits', type, cjson.encode(limits)) else call('HDEL', P .. 'limits', type) end
end
for _, type in ipairs(params.known_types) do
    local traits = params.traits[type]
    if traits then call('HSET', P .. 'traits', type, cjson.encode(traits)) else call('HDEL', P .. 'traits', type) end
end
for _, other in ipairs(call('ZRANGEBYSCORE', P .. 'workers:until', '-inf', text(NOW), 'LIMIT', 0, 100)) do
    if other ~= id then
        call('ZREM', P .. 'workers:until', other)
        call('HDEL', P .. 'workers', other)
    end
end
add_report(id, params.activity)
return text(NOW)

-- name: remove_worker
-- Deletes a worker that has stopped, and records the last of what it did. ARGV[1]: {id, activity}.

local params = decoded(1)
local id = params.id
add_report(id, params.activity)
call('ZREM', P .. 'workers:until', id)
return call('HDEL', P .. 'workers', id)

-- name: list_type_traits
-- Reads what is particular to job types, each followed by its traits.

return call('HGETALL', P .. 'traits')

-- name: list_workers
-- Reads the last heartbeats of the workers that are alive.

local answer = {}
for at, id in ipairs(call('ZRANGEBYSCORE', P .. 'workers:until', '(' .. text(NOW), '+inf')) do
    answer[at] = call('HGET', P .. 'workers', id)
end
return answer

-- name: count_held
-- Counts the jobs that workers have leased, without batches of bulk operations, which need no slot. ARGV[1]: list of
-- their ids. Returns a number for each.

local batches = {}
for _, id in ipairs(call('ZRANGE', P .. 'lease:queuert.bulk_operation', 0, -1)) do
    local holder = call('HGET', P .. 'j:' .. id, 'holder')
    if holder then batches[holder] = (batches[holder] or 0) + 1 end
end
local answer = {}
for at, holder in ipairs(decoded(1)) do
    answer[at] = math.max(0, call('LLEN', P .. 'p:' .. holder) - (batches[holder] or 0))
end
return answer

-- name: get_activity
-- Reads the minutes, or the hours, that begin after a time and before another, some at a time. ARGV[1]: {seconds, after,
-- before, types, most}. Returns the begin of the last of them, as far as there may be more, and what workers did in them.

local params = decoded(1)
local wanted = params.types and {}
for _, type in ipairs(params.types or {}) do wanted[type] = true end
local begins = call('ZRANGEBYSCORE', P .. 'periods:' .. params.seconds, '(' .. params.after, '(' .. params.before,
    'LIMIT', 0, params.most)
local found = {}
for _, begin in ipairs(begins) do
    local flat = call('HGETALL', P .. 'activity:' .. params.seconds .. ':' .. begin)
    for at = 1, #flat, 2 do
        local type, worker = pair_of(flat[at])
        if not wanted or wanted[type] then found[#found + 1] = {begin, type, worker, flat[at + 1]} end
    end
end
return {#begins == params.most and begins[#begins] or false, found}

-- name: maintain_activity
-- Adds minutes up to hours, without their workers, and drops old hours. ARGV[1]: {minutes_kept, hours_kept, limit}. It
-- takes whole minutes and hours until it has read `limit` entries. Returns the numbers of entries, and whether there may
-- be more.

local params = decoded(1)
local now = NOW / 1000000
local folded, dropped = 0, 0

local function oldest(seconds, before)
    return call('ZRANGEBYSCORE', P .. 'periods:' .. seconds, '-inf', '(' .. text(before), 'LIMIT', 0, 1)[1]
end

local horizon = math.floor((now - params.minutes_kept) / 3600) * 3600
local begin = oldest('60', horizon)
while begin and folded < params.limit do
    local hour = text(math.floor(tonumber(begin) / 3600) * 3600)
    local flat = call('HGETALL', P .. 'activity:60:' .. begin)
    for at = 1, #flat, 2 do
        local type = pair_of(flat[at])
        add_activity('3600', hour, type, '', 0, flat[at + 1])
    end
    folded = folded + #flat / 2
    drop_period('60', begin)
    begin = oldest('60', horizon)
end
local last = oldest('3600', now - params.hours_kept)
while last and dropped < params.limit do
    dropped = dropped + #call('HGETALL', P .. 'activity:3600:' .. last) / 2
    drop_period('3600', last)
    last = oldest('3600', now - params.hours_kept)
end
return {folded, dropped, (begin or last) and 1 or 0}
