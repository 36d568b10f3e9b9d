-- Writes jobs. `new` is a job as the caller passed it: decoded JSON, with its input among the arguments.

-- The last number before the year 10,000 that a double holds; the next one is in that year, which Python does not have.
local LAST_DUE = 253402300799999968

-- When a job is due that is started, snoozed or changed. What is due in the past is due now.
local function due_of(new, now)
    local due = now
    if new.moment then due = math.max(now, tonumber(new.moment)) elseif new.delay then due = now + tonumber(new.delay) end
    return math.min(due, LAST_DUE)
end

-- Returns the first blocker of a new job that does not exist.
local function missing_blocker(new)
    for _, chain in ipairs(new.blockers or {}) do
        if is_open(chain) == nil then return chain end
    end
    return nil
end

-- Writes a job: the first of a chain, or the one after `before`. The caller has checked that its id is free and its
-- blockers exist.
local function write_job(new, now, before)
    local due = due_of(new, now)
    local job = {
        id = new.id, type = new.type, priority = tonumber(new.priority or 0), limit = new.limit_key, due = due,
        index = 0, attempt = 0, uncounted = 0, expired = 0, open = 0, blockers = 0, created = now,
    }
    local stored = {type = new.type, created = now, due = due}
    if job.priority ~= 0 then stored.priority = job.priority end
    if new.limit_key then stored.limit = new.limit_key end
    if new.trace then stored.trace = new.trace end
    if new.max_attempts then stored.max_attempts = new.max_attempts end
    if before then
        job.index, job.chain, job.chain_type = before.index + 1, before.chain, before.chain_type
        stored.index, stored.chain, stored.chain_type = job.index, job.chain, job.chain_type
        if job.index == 1 then call('ZADD', P .. 'c:' .. job.chain, 0, job.chain) end
        call('ZADD', P .. 'c:' .. job.chain, job.index, job.id)
    else
        job.chain, job.chain_type = job.id, job.type
        stored.chain_status = 'open'
        keep_attributes(new, now)
        if new.ttl then stored.ttl = new.ttl end
    end
    if new.deduplication then
        stored.dedup = new.deduplication.key
        job.dedup = stored.dedup
        call('ZADD', dedup_key(job, 'd'), now, job.id)
        call('ZADD', dedup_key(job, 'do'), now, job.id)
    end
    if new.blockers and #new.blockers > 0 then
        stored.blockers, stored.open = add_blockers(job, 0, new.blockers)
    end
    local status = resting_status(due, stored.open or 0, now)
    stored.status = status
    if status == 'ready' then stored.gen = call('INCR', P .. 'gen') end
    put(job, stored)
    call('SET', P .. 'i:' .. job.id, ARGV[new.input])
    count(job.type, status, 1)
    call('SADD', P .. 'types', job.type)
    call('ZADD', P .. 'ix:' .. job.type, text(now), job.id)
    ENTER[status](job)
    log_event(job, 'created', resting_status(due, 0, now))
    if status == 'blocked' then log_event(job, 'blocked', status) end
    return job
end

-- Returns what the caller gets for a job: id, type, status, creation, whether it existed, the status of its chain, and
-- whether a debounced start gave it its input.
local function job_answer(job, existing, debounced)
    return {
        job.id, job.type, job.status, text(job.created), existing and 1 or 0, job.chain_status or 'open',
        debounced and 1 or 0,
    }
end

-- Returns the newest chain of which a new one is a duplicate by its key; of a debounced start, only one that waits to
-- begin.
local function duplicate_of(new, now)
    local params = new.deduplication
    local function matches(first)
        if params.debounce then
            return first.attempt == 0 and (first.status == 'scheduled' or first.status == 'ready')
        end
        return not has_expired(first)
    end
    local excluded = {}
    for _, id in ipairs(params.excluding or {}) do excluded[id] = true end
    local since = params.window and text(now - tonumber(params.window)) or '-inf'
    local key = P .. (params.any and 'd:' or 'do:') .. pair(new.type, params.key)
    local at = 0
    while true do
        local found = call('ZREVRANGEBYSCORE', key, '+inf', since, 'LIMIT', at, 100)
        for _, id in ipairs(found) do
            local first = not excluded[id] and load(id)
            if first and matches(first) then return first end
        end
        if #found < 100 then return nil end
        at = at + 100
    end
end

-- Gives a waiting job the input and the due time of a debounced start. A job that is due keeps its position, if it is
-- due still.
local function debounce(job, new)
    local params = new.deduplication
    call('SET', P .. 'i:' .. job.id, ARGV[new.input])
    local due = NOW + params.debounce
    if params.max_delay then due = math.min(due, job.created + params.max_delay) end
    local status = resting_status(due, 0)
    if status == 'scheduled' or job.status == 'scheduled' then move(job, status, {due = due}) end
    log_event(job, 'debounced', job.status)
end
