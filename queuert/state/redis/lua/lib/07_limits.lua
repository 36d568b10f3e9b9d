-- What the limits of a type leave to a claim. A slot is held by a running job and by nothing else.
--
-- rk:{type}       HASH running jobs by limit key
-- rate:{type,key} ZSET attempts that began, by time, for as long as the window

local SCANNED = 1000
local KEYS_TRIED = 10000

local function rate_key(job)
    return P .. 'rate:' .. pair(job.type, job.limit or '')
end

-- Returns how many more attempts of a key may begin now.
local function allowance(type, limits, limit_key)
    local left = 1e9
    if limits.per_key and limit_key then
        left = limits.per_key - tonumber(call('HGET', P .. 'rk:' .. type, limit_key) or 0)
    end
    if limits.rate then
        local key = rate_key({type = type, limit = limit_key})
        call('ZREMRANGEBYSCORE', key, '-inf', text(NOW - limits.window))
        left = math.min(left, limits.rate - call('ZCARD', key))
    end
    return left
end

local function note_start(job, limits)
    if not limits or not limits.rate then return end
    local key = rate_key(job)
    call('ZADD', key, text(NOW), text(job.attempt) .. ':' .. job.id)
    call('PEXPIRE', key, math.ceil(limits.window / 1000) + 1000)
end

-- Returns up to `wanted` ready jobs of keys with something left. The best ones come first; if there are many saturated
-- keys, then jobs of any keys, from a random key on, so that none starves.
local function within_keys(type, limits, wanted, first)
    local left, jobs, chosen = {}, {}, {}
    local function select_admissible(member)
        local job = load(member:match('^%d+:%d+:%d+:(.*)$'))
        if not job or chosen[job.id] then return end
        left[job.limit] = left[job.limit] or allowance(type, limits, job.limit)
        if left[job.limit] > 0 then
            left[job.limit] = left[job.limit] - 1
            chosen[job.id] = true
            jobs[#jobs + 1] = job
        end
    end
    local at, all = 0, P .. 'kz:' .. type
    local from = first and '[' .. rank_text(first) or '-'
    while #jobs < wanted and at < SCANNED do
        local members = call('ZRANGEBYLEX', all, from, '+', 'LIMIT', at, 100)
        for _, member in ipairs(members) do
            if #jobs < wanted then select_admissible(member) end
        end
        if #members < 100 then return jobs end
        at = at + 100
    end
    local keys = call('ZCARD', P .. 'keys:' .. type)
    local begin = keys > 0 and math.random(0, keys - 1) or 0
    for offset = 0, math.min(keys, KEYS_TRIED) - 1 do
        if #jobs >= wanted then break end
        local limit_key = call('ZRANGE', P .. 'keys:' .. type, (begin + offset) % keys, (begin + offset) % keys)[1]
        left[limit_key] = left[limit_key] or allowance(type, limits, limit_key)
        if left[limit_key] > 0 then
            local more = math.min(wanted, left[limit_key])
            local of_key = P .. 'kk:' .. pair(type, limit_key)
            for _, member in ipairs(call('ZRANGEBYLEX', of_key, from, '+', 'LIMIT', 0, more)) do select_admissible(member) end
        end
    end
    return jobs
end

-- A source that returns at most `most` jobs.
local function at_most(source, most)
    return {
        head = function() return most > 0 and source.head() or nil end,
        take = function(job)
            most = most - 1
            source.take(job)
        end,
    }
end

-- Returns the sources of a limited type, and how many of its jobs may be claimed in all.
local function limited_sources(type, limits, limit, holder, first)
    local most = limit
    if limits.concurrency then most = math.min(most, limits.concurrency - call('ZCARD', P .. 'lease:' .. type)) end
    if most <= 0 then return {}, 0 end
    for _, job in ipairs(due_of_type(type, 1000)) do move(job, 'ready', {}) end
    local unkeyed = at_most(lists_of(type, holder, first), allowance(type, limits, nil))
    return {unkeyed, listed_source(within_keys(type, limits, most, first), holder)}, most
end
