-- name: claim
-- Leases due jobs of several types, best first: moves them from the waiting lists to the holder's list, together with
-- the lease. ARGV[1]: {types, leases: {type: microseconds}, limit, max_bytes, begun, after, holder, token, limits:
-- {type: ...}, seed}. With `after`, jobs of a worse rank than that go before all others. Within a rank, types take turns in
-- the given order. The first job is claimed whatever the size of its input, unless the claim has `begun` with another
-- script; after a job that exceeds `max_bytes` no more are claimed. Returns whether dead entries are left in the way, and
-- the jobs.

local params = decoded(1)
math.randomseed(params.seed)
local answer = {0}

-- A type with jobs that may be claimed: {type, position, rank, turn, turns, left}. `rank` is that of its next job, or
-- better, until that job is looked for; `turns` counts by rank how many of its jobs were claimed.
local function group_of(type, position, first, limit)
    local group = {type = type, position = position, turn = 0, turns = {}, left = limit, rank = first or -1 / 0}
    local limits = params.limits and params.limits[type]
    if limits then
        group.own, group.left = limited_sources(type, limits, limit, params.holder, first)
        return group
    end
    if call('ZRANGEBYSCORE', P .. 'sched:' .. type, '-inf', text(NOW), 'LIMIT', 0, 1)[1] then return group end
    local listed = call('ZRANGEBYSCORE', P .. 'ranks:' .. type, first and text(first) or '-inf', '+inf', 'LIMIT', 0, 1)[1]
    local keyed = call('ZRANGEBYLEX', P .. 'kz:' .. type, first and '[' .. rank_text(first) or '-', '+', 'LIMIT', 0, 1)[1]
    if not listed and not keyed then return nil end
    group.rank = math.min(listed and tonumber(listed) or 1 / 0, keyed and rank_in_text(keyed) or 1 / 0)
    return group
end

local function sources_of(type, first, limit)
    local own = {lists_of(type, params.holder, first), keyed_of(type, params.holder, first)}
    local due = due_of_type(type, limit)
    if #due > 0 then own[3] = listed_source(due, params.holder, first) end
    return own
end

local function better(one, other, first)
    local mine, its = rank_in_claim(one, first), rank_in_claim(other, first)
    if mine ~= its then return mine < its end
    if one.due ~= other.due then return one.due < other.due end
    return (one.gen or 0) < (other.gen or 0)
end

-- Finds the best job of a group. Returns whether there is one.
local function find_next(group, first)
    group.own = group.own or sources_of(group.type, first, group.left)
    group.job = nil
    for _, source in ipairs(group.left > 0 and group.own or {}) do
        local job = source.head()
        if job and (not group.job or better(job, group.job, first)) then group.job, group.of = job, source end
    end
    if group.job then
        group.rank = rank_in_claim(group.job, first)
        group.turn = group.turns[group.rank] or 0
    end
    return group.job
end

-- Whether the next job of a group is to be claimed before that of another: by rank; then the types take turns.
local function goes_before(one, other)
    if one.rank ~= other.rank then return one.rank < other.rank end
    if one.turn ~= other.turn then return one.turn < other.turn end
    return one.position < other.position
end

local bytes, cut = 0, false

local function lease(job, input)
    local limits = params.limits and params.limits[job.type]
    count(job.type, job.status, -1)
    count(job.type, 'running', 1)
    put(job, {
        status = 'running', attempt = job.attempt + 1, started = NOW, leased = NOW + params.leases[job.type],
        token = params.token, holder = params.holder, gen = not job.gen and 0 or nil,
    })
    call('ZADD', P .. 'lease:' .. job.type, text(job.leased), job.id)
    if job.limit then call('HINCRBY', P .. 'rk:' .. job.type, job.limit, 1) end
    note_start(job, limits)
    log_event(job, 'started', 'running', job.holder)
    local noted, ttl = job.dependents, job.ttl
    if job.index > 0 then noted, ttl = unpack(call('HMGET', P .. 'j:' .. job.chain, 'dependents', 'ttl')) end
    answer[#answer + 1] = {
        job.id, job.type, job.chain, job.chain_type, text(job.index), text(job.priority), text(job.attempt),
        text(job.uncounted), text(job.expired), text(job.blockers), noted and true or false,
        input, text(job.created or 0), text(job.due), text(job.started), job.trace or false, ttl and text(ttl) or false,
        job.atrace or false, job.max_attempts or false,
    }
end

-- Claims from a rank on until the limit is reached. The types are a heap, so a job of many types costs no look at all of
-- them; and a type whose turn does not come costs no look at its jobs.
local function claim_from(first)
    local limit, heap = params.limit + 1 - #answer, {}
    local paused = call('HMGET', P .. 'paused', unpack(params.types))
    for position, type in ipairs(params.types) do
        heap[#heap + 1] = not paused[position] and group_of(type, position, first, limit) or nil
    end
    make_heap(heap, goes_before)
    while #answer <= params.limit and heap[1] do
        local group = heap[1]
        local job = group.job
        if job then
            local input = call('GET', P .. 'i:' .. job.id)
            bytes = bytes + (input and #input or 0)
            cut = bytes > params.max_bytes and (params.begun or #answer > 1)
            if cut then break end
            group.turns[group.rank] = group.turn + 1
            group.left = group.left - 1
            group.of.take(job)
            lease(job, input)
        end
        if find_next(group, first) then sink(heap, goes_before) else remove_first(heap, goes_before) end
    end
end

if params.after then claim_from(params.after + 1) end
if #answer <= params.limit and not cut then claim_from(nil) end
if #answer > 1 then call('SADD', P .. 'holders', params.holder) end
if BUDGET <= 0 and not cut then answer[1] = 1 end
return packed(answer)

-- name: next_due
-- Returns the microseconds until the next job of these types is due; -1 if none is scheduled. ARGV[1]: list of types.

local next_at
for _, type in ipairs(decoded(1)) do
    if call('HEXISTS', P .. 'paused', type) == 0 then
        if tonumber(call('HGET', P .. 'n:' .. type, 'ready') or 0) > 0 then return '0' end
        local first = call('ZRANGE', P .. 'sched:' .. type, 0, 0, 'WITHSCORES')
        if first[2] then next_at = math.min(next_at or 1 / 0, tonumber(first[2])) end
    end
end
return next_at and text(math.max(0, next_at - NOW)) or '-1'

-- name: release
-- Releases jobs that were claimed and not started to the front of their lists. ARGV[1]: list of {id, token}. Returns
-- how many.

local params, released = decoded(1), 0
for at = #params, 1, -1 do
    local job = load(params[at][1])
    if holds(job, params[at][2]) then
        release_job(job)
        released = released + 1
    end
end
return released

-- name: release_claim
-- Releases all jobs of one claim, whose answer was lost. ARGV[1]: {holder, token}. Returns how many.

local params, released = decoded(1), 0
local entries = call('LRANGE', P .. 'p:' .. params.holder, 0, -1)
for at = #entries, 1, -1 do
    local job = load(entries[at]:match('^%d+:%d+:(.*)$'))
    if holds(job, params.token) then
        release_job(job)
        released = released + 1
    end
end
return released

-- name: renew
-- Extends leases that are still held. ARGV[1]: list of {id, token, microseconds, progress if there is a new one, whether
-- it becomes an event}.
-- Returns 1 or 0 for each.

local answer = {}
for at, params in ipairs(decoded(1)) do
    local job = load(params[1])
    answer[at] = 0
    if holds(job, params[2]) then
        put(job, {leased = NOW + params[3], progress = params[4]})
        call('ZADD', P .. 'lease:' .. job.type, job.leased, job.id)
        if params[5] then log_event(job, 'progressed', 'running', job.holder, nil, params[4]) end
        answer[at] = 1
    end
end
return answer
