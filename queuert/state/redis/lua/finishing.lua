-- name: finish
-- Writes finishes of any kinds, each only if its token has the job's lease. ARGV[1]: list of finishes; ARGV[2...]:
-- payloads. Returns {id, why the lease is lost or '', types of jobs that became due, microseconds that its chain took or
-- ''} for each.

local UNCOUNTED = {interrupt = 1, wait = 1, snooze = 1}
local FAILED = {retry = true, fail = true}

-- A script is not rolled back, so all finishes are checked before anything is written. `new` and `chains` are the ids
-- of the jobs and chains that earlier finishes of the batch create.
local new, chains = {}, {}

local function taken(id)
    if new[id] then return true end
    new[id] = true
    return call('EXISTS', P .. 'j:' .. id) == 1
end

local function unknown(chain)
    return not chains[chain] and is_open(chain) == nil
end

-- Returns a refusal if the new jobs of the finish cannot be written.
local function refused(finish)
    for _, start in ipairs(finish.starts or {}) do
        if taken(start.id) then return refusal('id_conflict', start.id) end
        chains[start.id] = true
    end
    for _, chain in ipairs(finish.blockers or {}) do
        if unknown(chain) then return refusal('chain_not_found', chain) end
    end
    local following = finish.continuation
    if not following then return nil end
    if taken(following.id) then return refusal('id_conflict', following.id) end
    for _, chain in ipairs(following.blockers or {}) do
        if unknown(chain) then return refusal('chain_not_found', chain) end
    end
    return nil
end

-- Returns the first refusal among the finishes that would be written, in order. Only new jobs and blockers can be
-- refused, and of several finishes by one lease only the first counts.
local function first_refused(finishes)
    local first_of_lease = {}
    for at, finish in ipairs(finishes) do
        local lease = finish.token .. finish.id
        first_of_lease[lease] = first_of_lease[lease] or at
        if (finish.continuation or finish.blockers) and first_of_lease[lease] == at
            and holds(load(finish.id), finish.token)
        then
            local answer = refused(finish)
            if answer then return answer end
        end
    end
    return nil
end

-- The error of a finish as it is kept among the failures, and in the event log.
local function error_of(finish)
    return ARGV[finish.short_error or finish.error]
end

-- Stores the payloads of an attempt.
local function keep(job, finish)
    if finish.output then call('SET', P .. 'o:' .. job.id, ARGV[finish.output]) end
    if finish.error then
        call('SET', P .. 'e:' .. job.id, ARGV[finish.error])
    else
        call('DEL', P .. 'e:' .. job.id) -- Also before a first attempt: the chain may have been cancelled and retried.
    end
end

local function first_of(job)
    return job.index == 0 and job or load(job.chain)
end

-- Gives a new job the limit key of the job that creates it, and the attributes of that job's chain.
local function inherit(new, job)
    if new.inherit_limit_key then new.limit_key = new.limit_key or job.limit end
    if new.inherit_attributes then
        new.attributes = new.attributes or call('GET', P .. 'a:' .. job.chain) or nil
    end
end

local function wait_for(job, finish, changes, due_types)
    for _, start in ipairs(finish.starts or {}) do
        inherit(start, job)
        local started = write_job(start, NOW)
        if started.status ~= 'blocked' then due_types[started.type] = true end
    end
    local added, open = add_blockers(job, job.blockers, finish.blockers or {})
    changes.blockers = job.blockers + added
    changes.open = job.open + open
    changes.due = NOW
    move(job, open > 0 and 'blocked' or 'ready', changes)
    log_event(job, 'waiting', 'ready', job.holder)
    if open > 0 then log_event(job, 'blocked', 'blocked') else due_types[job.type] = true end
end

local function go_on(job, finish, changes, due_types)
    changes.finished = NOW
    changes.next = finish.continuation.id
    move(job, 'continued', changes)
    log_event(job, 'continued', 'continued', job.holder)
    inherit(finish.continuation, job)
    local following = write_job(finish.continuation, NOW, job)
    if following.status ~= 'blocked' then due_types[following.type] = true end
end

local function try_again(job, finish, changes, due_types)
    local front = finish.kind == 'interrupt'
    if not front then changes.due = NOW + (finish.delay or 0) end
    move(job, (finish.delay or 0) > 0 and 'scheduled' or 'ready', changes, front)
    log_event(job, front and 'interrupted' or 'retried', job.status, job.holder, not front and error_of(finish))
    due_types[job.type] = true
end

local function snooze(job, finish, changes, due_types)
    changes.due = due_of(finish, NOW)
    move(job, changes.due > NOW and 'scheduled' or 'ready', changes)
    log_event(job, 'snoozed', job.status, job.holder)
    if finish.waits_for_event then wake_receiver(job) end
    due_types[job.type] = true
end

local function close(job, finish, changes, due_types)
    local first, status = first_of(job), ENDED[finish.kind]
    local of_chain = closing(first, status, finish.ttl)
    changes.finished = NOW
    if first == job then
        for name, value in pairs(of_chain) do changes[name] = value end
    else
        put(first, of_chain)
    end
    move(job, status, changes)
    log_event(job, status, status, job.holder, status ~= 'completed' and error_of(finish))
    release_dependents(first, status, due_types)
    return first ~= job and text(of_chain.closed - first.created) or nil
end

local WRITE = {
    wait = wait_for, continue = go_on, retry = try_again, interrupt = try_again, snooze = snooze,
    complete = close, fail = close, cancel = close,
}

local finishes, answer = decoded(1), {}
local no = first_refused(finishes)
if no then return no end
for at, finish in ipairs(finishes) do
    local job = load(finish.id)
    if not holds(job, finish.token) then
        answer[at] = {finish.id, lost_reason(job, finish.token, finish.kind), {}, ''}
    else
        local due_types = {}
        local changes = {uncounted = job.uncounted + (UNCOUNTED[finish.kind] or 0)}
        if finish.crashed then changes.expired = job.expired + 1 end
        if finish.trace ~= job.atrace then changes.atrace = finish.trace or false end
        if changes.uncounted == job.uncounted then changes.uncounted = nil end
        keep(job, finish)
        if FAILED[finish.kind] then add_failure(job, error_of(finish)) end
        local took = WRITE[finish.kind](job, finish, changes, due_types)
        answer[at] = {finish.id, '', listed(due_types), took or ''}
    end
end
return packed(answer)

-- name: reap
-- Turns expired leases into failed attempts. ARGV[1]: {policies: [...], limit, seed}. Returns the microseconds until
-- the next lease expires (-1: none), and the reaped jobs.

local params = decoded(1)
math.randomseed(params.seed)

local function pause_after(policy, counted)
    if policy.initial == 0 then return 0 end
    local base = policy.maximum
    if (counted - 1) * math.log(policy.multiplier) <= 100 then
        base = math.min(base, policy.initial * policy.multiplier ^ (counted - 1))
    end
    return math.floor(base * (1 + policy.jitter * math.random()) * 1000000)
end

local function message(job, again, expirations, policy)
    local said = 'the lease of worker ' .. (job.holder or '?') .. ' expired'
    if again then return said .. ': it crashed, froze or lost the database' end
    if expirations >= policy.max_crashes then
        return said .. ', for the ' .. text(expirations) .. '. time: the job may be what kills its workers'
    end
    return said .. ' on the last attempt'
end

local function reap_one(job, policy)
    local counted, expirations = job.attempt - job.uncounted, job.expired + 1
    local again = counted < (job.max_attempts or policy.max_attempts) and expirations < policy.max_crashes
    local pause = again and pause_after(policy, counted) or 0
    local status = not again and 'failed' or (pause > 0 and 'scheduled' or 'ready')
    local changes = {expired = expirations, token = false}
    if pause > 0 then changes.due = NOW + pause end
    if not again then changes.finished = NOW end
    local error = cjson.encode({kind = 'lease_expired', message = message(job, again, expirations, policy)})
    call('SET', P .. 'e:' .. job.id, error)
    add_failure(job, error)
    move(job, status, changes, true)
    log_event(job, 'lease_expired', status, job.holder, error)
    local due_types, took = {}, false
    if again then
        due_types[job.type] = true
    else
        took = close_chain(job.index == 0 and job or load(job.chain), 'failed', due_types)
    end
    return {
        job.id, job.type, job.chain, job.chain_type, status, job.attempt, job.holder or false, listed(due_types), took,
    }
end

local answer, next_expiry = {}, nil
for _, policy in ipairs(params.policies) do
    local leases, left = P .. 'lease:' .. policy.type, params.limit - #answer
    for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', text(NOW), 'LIMIT', 0, left)) do
        local job = load(id)
        if job and job.status == 'running' then
            answer[#answer + 1] = reap_one(job, policy)
        else
            call('ZREM', leases, id)
        end
    end
    local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')
    if first[2] then next_expiry = math.min(next_expiry or 1 / 0, tonumber(first[2])) end
end
return {next_expiry and text(math.max(0, next_expiry - NOW)) or '-1', answer}

-- name: lost_reasons
-- Returns why leases are lost. ARGV[1]: list of {id, token}. '' for those that are valid, and for those that finished
-- their job.

local answer = {}
for at, params in ipairs(decoded(1)) do answer[at] = lost_reason(load(params[1]), params[2]) end
return answer
