-- Deleting chains.
--
-- expires            ZSET chains that have an end, by it
-- closed:{type,how}  ZSET closed chains of one type and outcome, by their start

local function closed_key(first, status)
    return P .. 'closed:' .. pair(first.type, status)
end

local function jobs_of(chain)
    local ids = call('ZRANGE', P .. 'c:' .. chain, 0, -1)
    return #ids > 0 and ids or {chain}
end

-- Forgets a type without jobs. All entries of its waiting lists are dead, and nobody would look at them again.
local function forget_type(type)
    call('SREM', P .. 'types', type)
    local ranks = P .. 'ranks:' .. type
    for _, rank in ipairs(call('ZRANGE', ranks, 0, -1)) do call('DEL', P .. 'w:' .. rank .. ':' .. type) end
    call('DEL', ranks)
end

local function delete_job(job)
    local leave = LEAVE[job.status]
    if leave then leave(job) end
    count(job.type, job.status, -1)
    for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. job.id, 0, -1)) do
        call('ZREM', P .. 'bb:' .. chain, job.id)
    end
    if job.dedup then
        call('ZREM', dedup_key(job, 'd'), job.id)
        call('ZREM', dedup_key(job, 'do'), job.id)
    end
    if job.index == 0 then
        delete_attributes(job.id)
        call('ZREM', P .. 'expires', job.id)
        call('ZREM', closed_key(job, job.chain_status), job.id)
    end
    local listed_in = P .. 'ix:' .. job.type
    call('ZREM', listed_in, job.id)
    if call('EXISTS', listed_in) == 0 then forget_type(job.type) end
    local keys = {}
    for at, kind in ipairs({'j:', 'i:', 'o:', 'e:', 'f:', 's:', 'bl:', 'bo:', 'bb:', 'c:', 've:', 'vp:'}) do keys[at] = P .. kind .. job.id end
    call('DEL', unpack(keys))
end

-- Deletes a chain with all its jobs. Of a deletion by a client, adds the ids of those that were running to a list. A
-- deletion by a client, and that of a stale chain, is an event.
local function delete_chain(chain, running)
    local jobs = {}
    for _, id in ipairs(jobs_of(chain)) do jobs[#jobs + 1] = load(id) end
    local logged = running or (jobs[1] and jobs[1].stale)
    for _, job in ipairs(jobs) do
        if job.status == 'running' and running then running[#running + 1] = job.id end
        if logged then log_event(job, 'deleted', job.status) end
        delete_job(job)
    end
end

-- Whether an unfinished job of another chain has the chain as a blocker.
local function is_needed(chain)
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do
        local job = load(id)
        if job and job.chain ~= chain and not FINAL[job.status] then return true end
    end
    return false
end

-- Removes a chain from the blockers of a finished job.
local function remove_blocker(job, chain)
    call('ZREM', P .. 'bl:' .. job, chain)
    call('SREM', P .. 'bo:' .. job, chain)
end

-- Deletes a chain that is not needed, and its entries as a blocker of finished jobs.
local function prune_chain(chain)
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do remove_blocker(id, chain) end
    delete_chain(chain)
end

-- Functions that the management operations share.

-- The result of one chain: id, type, status, its last job and the status before, whether it was written, the types that
-- became due, the microseconds that it took if it was closed now.
local function chain_update(chain, tail, previous_status, status, written, due_types, took)
    return {
        chain.id, chain.type, status, tail.id, tail.type, previous_status, written and 1 or 0, listed(due_types or {}),
        took or false, tail.atrace or tail.trace or false,
    }
end

-- Finishes a job for a client: the lease is lost with its token.
local function finish_workerless(job, status, changes)
    changes.finished = NOW
    changes.token = false
    call('DEL', P .. 'e:' .. job.id)
    move(job, status, changes)
end

-- Returns the first and the last jobs of chains, each chain once; or the refusal of those that do not exist. With
-- `checked` they are left out.
local function chains_of(ids, checked)
    local found, missing = {}, refusal('chain_not_found')
    for _, id in ipairs(ids) do
        if not found[id] then
            local first = load(id)
            if is_first(first) then
                local tail = tail_of(id)
                found[id] = {first = first, tail = tail.id == id and first or tail}
            else
                missing[#missing + 1] = id
            end
        end
    end
    if missing[3] and not checked then return nil, missing end
    return found
end

-- Returns whether a job is the last one of one of these chains.
local function has_tail(chains, id)
    for _, chain in pairs(chains) do
        if chain.tail.id == id then return true end
    end
    return false
end

-- Returns the types that no earlier chain of the same call has reported.
local function fresh(due_types, named_types)
    local new = {}
    for type in pairs(due_types) do
        if not named_types[type] then new[type] = true end
        named_types[type] = true
    end
    return new
end

-- Returns the refusal to delete chains, if jobs have them among their blockers that may not lose them.
local function refuse_references(chains, may_lose)
    local references = {}
    for _, chain in ipairs(chains) do
        for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do
            local job = load(id)
            if job and not may_lose(job, chain) then
                references[#references + 1] = chain
                references[#references + 1] = id
            end
        end
    end
    return #references > 0 and refusal('referenced', cjson.encode(references)) or nil
end

-- Cancels a chain if it is open. `error` is that of its last job, as stored. With `kept` the chain does not expire.
-- Returns its update.
local function cancel_chain(id, error, named_types, kept)
    local first, tail = load(id), tail_of(id)
    if first.chain_status ~= 'open' then return chain_update(first, tail, tail.status, first.chain_status, false) end
    local previous_status, due_types = tail.status, {}
    finish_workerless(tail, 'cancelled', {})
    call('SET', P .. 'e:' .. tail.id, error)
    log_event(tail, 'cancelled', 'cancelled', nil, error)
    local took = close_chain(tail.id == id and tail or first, 'cancelled', due_types, kept)
    return chain_update(first, tail, previous_status, 'cancelled', true, fresh(due_types, named_types), took)
end

-- What a sweep mends beside stranded jobs: dead entries, and running jobs without a lease.
--
-- holders SET of those who have, or had, a processing list

local CHUNK = 250

-- Looks at some entries of a processing list, from an index on. Gives running jobs of the holder that have no lease an
-- expired one, so that the reaper takes them, and drops entries of jobs that are not running. Scripts never leave either;
-- manual edits and evictions do. Returns the index of the next entry; -1 at the end.
local function mend_holder(holder, from, number)
    local list = P .. 'p:' .. holder
    local entries, dropped = call('LRANGE', list, from, from + number - 1), 0
    for _, entry in ipairs(entries) do
        local job = load(entry:match('^%d+:%d+:(.*)$') or '')
        if not job or job.status ~= 'running' or job.holder ~= holder or entry_of(job) ~= entry then
            dropped = dropped + call('LREM', list, 1, entry)
        elseif not call('ZSCORE', P .. 'lease:' .. job.type, job.id) then
            put(job, {leased = NOW})
            call('ZADD', P .. 'lease:' .. job.type, NOW, job.id)
        end
    end
    if call('EXISTS', list) == 0 then call('SREM', P .. 'holders', holder) end
    return #entries == number and from + number - dropped or -1
end

-- Drops the dead entries of a part of a waiting list.
local function compact(list, from)
    local dead = 0
    for at, entry in ipairs(call('LRANGE', list, from, from + CHUNK - 1)) do
        if not still_waits(entry) then
            call('LSET', list, from + at - 1, '')
            dead = dead + 1
        end
    end
    if dead > 0 then call('LREM', list, 0, '') end
end

-- Adds the rank and the length of the waiting lists of a type to `answer`, if more than a quarter of their entries, and
-- more than a few hundred, are dead. Deletes them if all are.
local function add_lists_to_compact(type, answer)
    local alive = tonumber(call('HGET', P .. 'n:' .. type, 'ready') or 0) - call('ZCARD', P .. 'kz:' .. type)
    local ranks, entries = call('ZRANGE', P .. 'ranks:' .. type, 0, -1), 0
    for _, rank in ipairs(ranks) do entries = entries + call('LLEN', P .. 'w:' .. rank .. ':' .. type) end
    if entries - alive <= math.max(CHUNK, entries / 4) then return end
    for _, rank in ipairs(ranks) do
        local list = P .. 'w:' .. rank .. ':' .. type
        if alive == 0 then call('DEL', list) else answer[#answer + 1] = {type, rank, call('LLEN', list)} end
    end
end
