-- Leases: whether a token may finish an attempt, and why not; and attempts that failed.
--
-- f:{job}    LIST failed attempts, as JSON: the first one and the newest

local ENDED = {complete = 'completed', continue = 'continued', fail = 'failed', cancel = 'cancelled'}
local RESTING = {ready = true, scheduled = true, blocked = true}

local function holds(job, token)
    return job ~= nil and job.status == 'running' and job.token == token
end

-- Returns why a lease does not hold its job; '' if it does, or if it has already written a finish of this kind.
local function lost_reason(job, token, kind)
    if not job then return 'not_found' end
    local ours = job.token == token
    if ours then
        if job.status == 'running' or not kind then return '' end
        local ended = ENDED[kind]
        if ended == job.status or (not ended and RESTING[job.status]) then return '' end
    elseif job.status == 'cancelled' then
        return 'cancelled'
    end
    return FINAL[job.status] and 'already_completed' or 'taken_by_another_worker'
end

-- Returns why a lease does not hold its job now; '' if it does.
local function why_not_held(job, token)
    if holds(job, token) then return '' end
    local reason = lost_reason(job, token)
    return reason == '' and 'already_completed' or reason
end

-- Releases a claimed job, as if it had not been claimed.
local function release_job(job)
    log_event(job, 'released', 'ready', job.holder)
    move(job, 'ready', {attempt = job.attempt - 1, token = false}, true)
end

local MAX_FAILURES = 20

-- Appends the attempt that fails now to the failures of a running job. `error` is JSON, or nil.
local function add_failure(job, error)
    local key = P .. 'f:' .. job.id
    local kept = call('RPUSH', key, '{"attempt":' .. text(job.attempt)
        .. ',"started_at":' .. (job.started and text(job.started) or 'null') .. ',"failed_at":' .. text(NOW)
        .. ',"worker":' .. (job.holder and cjson.encode(job.holder) or 'null') .. ',"error":' .. (error or 'null') .. '}')
    if kept > MAX_FAILURES then
        call('LSET', key, 1, '')
        call('LREM', key, 1, '')
    end
end

-- Readers of waiting lists. They skip dead entries and drop those at the head of a list, so many in one script. A script
-- that has dropped so many answers that it is to be called again: until then it does not know what is behind them.

local BUDGET = 250

local function still_waits(entry)
    local gen, _, id = entry:match('^(%d+):(%d+):(.*)$')
    local job = load(id)
    return job and job.status == 'ready' and text(job.gen) == gen and job or nil
end

-- Whether an entry is dead, for those of which most are: it reads less.
local function is_dead(entry)
    local gen, id = entry:match('^(%d+):%d+:(.*)$')
    local state = call('HMGET', P .. 'j:' .. id, 'status', 'gen')
    return state[1] ~= 'ready' or state[2] ~= gen
end

-- Returns the first job of a waiting list; nil if it has none, or if no more dead entries may be dropped.
local function first_waiting(type, rank)
    local list = P .. 'w:' .. rank .. ':' .. type
    while true do
        local entry = call('LINDEX', list, 0)
        if not entry then
            call('ZREM', P .. 'ranks:' .. type, rank)
            return nil
        end
        local job = still_waits(entry)
        if job or BUDGET <= 0 then return job end
        local dead = 1
        for _, one in ipairs(call('LRANGE', list, 1, math.min(100, BUDGET) - 1)) do
            if not is_dead(one) then break end
            dead = dead + 1
        end
        call('LPOP', list, dead)
        BUDGET = BUDGET - dead
    end
end

-- Returns since when the longest due of these is due: the first job of each waiting list of a type, those with limit
-- keys, and scheduled jobs. Lists are in order of arrival, so one that came late, as it was triggered, may be overlooked.
-- nil if none is due, or if no more dead entries may be dropped.
local function oldest_due(type)
    local since = oldest_keyed(type)
    for _, rank in ipairs(call('ZRANGE', P .. 'ranks:' .. type, 0, -1)) do
        local job = first_waiting(type, rank)
        if job then since = math.min(since or 1 / 0, job.due) end
        if BUDGET <= 0 then return nil end
    end
    local first = call('ZRANGE', P .. 'sched:' .. type, 0, 0, 'WITHSCORES')
    if first[2] and tonumber(first[2]) <= NOW then since = math.min(since or 1 / 0, tonumber(first[2])) end
    return since
end

-- The sources of a claim. A source has `head()`, which returns its best job or nil, and `take(job)`, which moves that
-- job to the holder's list. So a claim reads the jobs that it takes, and one more of each source. If `first` is set,
-- only ready jobs from that rank on are read.

-- The rank of a job in a claim that begins at a rank. Scheduled jobs, which are found by their time, count at that rank
-- at best. Jobs of a type whose keys take turns count as of the rank of the best of them.
local function rank_in_claim(job, first)
    local rank = job.rank_of_turns or rank_of(job)
    return first and rank < first and first or rank
end

-- The waiting lists of a type, best rank first.
local function lists_of(type, holder, first)
    local source = {}
    local ranks = call('ZRANGEBYSCORE', P .. 'ranks:' .. type, first and text(first) or '-inf', '+inf')
    local at, best = 1, nil

    function source.head()
        while not best and ranks[at] do
            best = first_waiting(type, ranks[at])
            if not best then
                if BUDGET <= 0 then return nil end
                at = at + 1
            end
        end
        return best
    end

    function source.take(job)
        call('LMOVE', P .. 'w:' .. ranks[at] .. ':' .. type, P .. 'p:' .. holder, 'LEFT', 'RIGHT')
        best = nil
    end

    return source
end

-- Removes a job from its location.
local function take_out(job, holder)
    LEAVE[job.status](job)
    call('RPUSH', P .. 'p:' .. holder, entry_of(job))
end

-- A source of jobs that were read before, best first.
local function listed_source(jobs, holder, first)
    table.sort(jobs, function(one, other)
        local mine, its = rank_in_claim(one, first), rank_in_claim(other, first)
        if mine ~= its then return mine < its end
        if one.due ~= other.due then return one.due < other.due end
        return (one.gen or 0) < (other.gen or 0)
    end)
    local at = 1
    return {
        head = function() return jobs[at] end,
        take = function(job)
            take_out(job, holder)
            at = at + 1
        end,
    }
end

-- A source of the ready jobs of a type that have a limit key.
local function keyed_of(type, holder, first)
    local source, key, best = {}, P .. 'kz:' .. type, nil
    local from = first and '[' .. rank_text(first) or '-'
    function source.head()
        while not best do
            local member = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)[1]
            if not member then return nil end
            best = load(member:match('^%d+:%d+:%d+:(.*)$'))
            -- Scripts leave no member without its job, but manual edits and evictions do; without this the loop would
            -- not end.
            if not best then call('ZREM', key, member) end
        end
        return best
    end
    function source.take(job)
        take_out(job, holder)
        best = nil
    end
    return source
end

-- The scheduled jobs of a type that are due, the longest due first.
local function due_of_type(type, limit)
    local jobs = {}
    for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'sched:' .. type, '-inf', text(NOW), 'LIMIT', 0, limit)) do
        local job = load(id)
        if job then jobs[#jobs + 1] = job else call('ZREM', P .. 'sched:' .. type, id) end
    end
    return jobs
end

-- What the limits of a type leave to a claim. A slot is held by a running job and by nothing else.
--
-- rk:{type}       HASH running jobs by limit key
-- rate:{type,key} ZSET attempts that began, by time, for as long as the window
-- turn            HASH the key of the job that was claimed last, by type, if the keys of the type take turns
-- worse_turn      HASH the same of claims that begin with worse ranks

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

-- Reads the best ready jobs of a limit key, up to `wanted`. Members without a job, which scripts never leave, but manual
-- edits and evictions do, are dropped: they would keep the others from their turn. Returns the jobs, and whether the key
-- had none left and is gone.
local function jobs_of_key(type, key, from, wanted)
    local of_key, jobs, dropped = P .. 'kk:' .. pair(type, key), {}, 0
    while #jobs < wanted and dropped < SCANNED do
        local most = wanted - #jobs
        local members = call('ZRANGEBYLEX', of_key, from, '+', 'LIMIT', 0, most)
        for _, member in ipairs(members) do
            local job = load(member:match('^%d+:%d+:%d+:(.*)$'))
            if job then
                jobs[#jobs + 1] = job
                from = '(' .. member
            else
                call('ZREM', of_key, member)
                call('ZREM', P .. 'kz:' .. type, member)
                dropped = dropped + 1
            end
        end
        if #members < most then break end
    end
    local gone = #jobs == 0 and call('EXISTS', of_key) == 0
    if gone then call('ZREM', P .. 'keys:' .. type, key) end
    return jobs, gone
end

-- Returns up to `wanted` ready jobs of keys with something left. The best ones come first; if there are many saturated
-- keys, then jobs of any keys, from a random key on, so that none starves.
local function within_keys(type, limits, wanted, first)
    local left, jobs, chosen = {}, {}, {}
    local function select_admissible(job)
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
            if #jobs < wanted then select_admissible(load(member:match('^%d+:%d+:%d+:(.*)$'))) end
        end
        if #members < 100 then return jobs end
        at = at + 100
    end
    local keys = call('ZCARD', P .. 'keys:' .. type)
    local place = keys > 0 and math.random(0, keys - 1) or 0
    for _ = 1, math.min(keys, KEYS_TRIED) do
        if #jobs >= wanted then break end
        place = place % keys
        local limit_key = call('ZRANGE', P .. 'keys:' .. type, place, place)[1]
        left[limit_key] = left[limit_key] or allowance(type, limits, limit_key)
        local gone
        if left[limit_key] > 0 then
            local found
            found, gone = jobs_of_key(type, limit_key, from, math.min(wanted, left[limit_key]))
            for _, job in ipairs(found) do select_admissible(job) end
        end
        -- The next key has the place of one that is gone.
        if gone then keys = keys - 1 else place = place + 1 end
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

-- Returns the keys of a type that have something left, in turn, from the one after the last that was served; at most
-- `wanted`. Jobs without a key have their turn between the last key and the first one, as the key ''.
local function keys_in_turn(type, limits, wanted, turns)
    local last = call('HGET', P .. turns, type) or ''
    local keys, left, tried, from, wrapped = {}, {}, 0, '(' .. last, false
    local function try(key)
        tried = tried + 1
        left[key] = math.min(wanted, allowance(type, limits, key ~= '' and key or nil))
        if left[key] > 0 then keys[#keys + 1] = key end
    end
    while #keys < wanted and tried < KEYS_TRIED do
        local up_to = wrapped and '[' .. last or '+'
        local page = call('ZRANGEBYLEX', P .. 'keys:' .. type, from, up_to, 'LIMIT', 0, math.min(100, wanted + 1))
        for _, key in ipairs(page) do
            if #keys < wanted and tried < KEYS_TRIED then try(key) end
        end
        if #page > 0 then
            from = '(' .. page[#page]
        elseif wrapped then
            break
        else
            wrapped, from = true, '-'
            try('')
        end
    end
    if #keys == 0 and wrapped == false and from ~= '(' then call('HSET', P .. turns, type, from:sub(2)) end
    return keys, left
end

-- The source of a type whose keys take turns: the best job of each key, then the second of each, and so on.
local function turns_source(type, limits, most, holder, first)
    local turns = first and 'worse_turn' or 'turn'
    local keys, left = keys_in_turn(type, limits, most + 1, turns)
    local unkeyed, from = lists_of(type, holder, first), first and '[' .. rank_text(first) or '-'
    local of_key, jobs, best = {}, {}, nil
    for _, key in ipairs(keys) do
        local wanted = math.min(left[key], #keys > most and 1 or math.ceil(2 * most / #keys))
        of_key[key] = key == '' and {} or jobs_of_key(type, key, from, wanted)
        if of_key[key][1] then best = math.min(best or 1 / 0, rank_of(of_key[key][1])) end
    end
    local head_without_key = left[''] and left[''] > 0 and unkeyed.head()
    if head_without_key then best = math.min(best or 1 / 0, rank_of(head_without_key)) end
    local at, round, without_key = 1, 1, 0

    local source = {}
    function source.head()
        local passed = 0
        while passed <= #keys and #keys > 0 do
            local job
            if keys[at] ~= '' then
                job = of_key[keys[at]][round]
            elseif without_key < left[''] then
                job = unkeyed.head()
            end
            if job then
                job.rank_of_turns = best
                return job
            end
            passed, at = passed + 1, at + 1
            if at > #keys then at, round = 1, round + 1 end
        end
        return nil
    end
    function source.take(job)
        if keys[at] == '' then
            unkeyed.take(job)
            without_key = without_key + 1
        else
            take_out(job, holder)
        end
        call('HSET', P .. turns, type, keys[at])
        at = at + 1
        if at > #keys then at, round = 1, round + 1 end
    end
    return source
end

-- Returns the sources of a limited type, and how many of its jobs may be claimed in all.
local function limited_sources(type, limits, limit, holder, first)
    local most = limit
    if limits.concurrency then most = math.min(most, limits.concurrency - call('ZCARD', P .. 'lease:' .. type)) end
    if most <= 0 then return {}, 0 end
    for _, job in ipairs(due_of_type(type, 1000)) do move(job, 'ready', {}) end
    if limits.fair then return {turns_source(type, limits, most, holder, first)}, most end
    local unkeyed = at_most(lists_of(type, holder, first), allowance(type, limits, nil))
    return {unkeyed, listed_source(within_keys(type, limits, most, first), holder)}, most
end
