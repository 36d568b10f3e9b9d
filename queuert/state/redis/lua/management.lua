-- name: cancel_chains
-- Closes open chains as cancelled. ARGV[1]: {ids, check, checked, deleting}; ARGV[2]: the error, as stored. A call for
-- many chains is first checked and then written by several scripts: with `check` they write nothing, and with `checked`
-- the call was checked, and a chain that does not exist has been deleted since and has no result. With `deleting`, the
-- chains that wait or waited for these and are about to be deleted with them, none is closed if others do; and they do
-- not expire, as what is left of the deletion is found from the chains that waited.

local params = decoded(1)
local ids = params.ids
local chains, missing = chains_of(ids, params.checked)
if missing then return missing end
if params.check then return 1 end
if params.deleting then
    local inside = {}
    for _, list in ipairs({ids, params.deleting}) do
        for _, id in ipairs(list) do inside[id] = true end
    end
    local refused = refuse_references(ids, function(job) return inside[job.chain] end)
    if refused then return refused end
end
local done, named_types, answer = {}, {}, {}
for _, id in ipairs(ids) do
    if chains[id] then
        done[id] = done[id] or cancel_chain(id, ARGV[2], named_types, params.deleting)
        answer[#answer + 1] = done[id]
    end
end
return answer

-- name: complete_chains
-- Finishes the last jobs of chains for a client, all or none, and cancels others with them. ARGV[1]: {chains: list of
-- {chain, tail, output, continuation}, check, refused, cancel: ids, error}; ARGV[2...]: payloads. None is finished with
-- `refused`, or if one of the chains is not open or has another last job.

local request, ids, fits = decoded(1), {}, true
local params = request.chains
for at, one in ipairs(params) do ids[at] = one.chain end
local chains, missing = chains_of(ids)
if missing then return missing end
local to_cancel = request.cancel or {}
local _, absent_ones = chains_of(to_cancel)
if absent_ones then return absent_ones end
for _, one in ipairs(params) do
    local chain = chains[one.chain]
    fits = fits and chain.first.chain_status == 'open' and chain.tail.id == one.tail
end
local answer = {}
if request.check and not fits then return 0 end
if request.refused or not fits then
    for at, one in ipairs(params) do
        local chain = chains[one.chain]
        answer[at] = chain_update(chain.first, chain.tail, chain.tail.status, chain.first.chain_status, false)
    end
    return answer
end
local new = {}
for _, one in ipairs(params) do
    local following = one.continuation
    if following then
        if new[following.id] or load(following.id) then return refusal('id_conflict', following.id) end
        new[following.id] = true
        local absent = missing_blocker(following)
        if absent then return refusal('chain_not_found', absent) end
    end
end
if request.check then return 1 end
local named_types = {}
for at, one in ipairs(params) do
    local first, tail, due_types = chains[one.chain].first, load(one.tail), {}
    if tail.id == first.id then first = tail end
    local previous_status, following, took = tail.status, one.continuation, nil
    if following then
        finish_workerless(tail, 'continued', {next = following.id})
        if one.output then call('SET', P .. 'o:' .. tail.id, ARGV[one.output]) end
        log_event(tail, 'continued', 'continued')
        local started = write_job(following, NOW, tail)
        if started.status ~= 'blocked' then due_types[started.type] = true end
    else
        finish_workerless(tail, 'completed', {})
        call('SET', P .. 'o:' .. tail.id, ARGV[one.output])
        log_event(tail, 'completed', 'completed')
        took = close_chain(first.id == tail.id and tail or load(first.id), 'completed', due_types)
    end
    local status = following and 'open' or 'completed'
    answer[at] = chain_update(first, tail, previous_status, status, true, fresh(due_types, named_types), took)
end
for _, id in ipairs(to_cancel) do answer[#answer + 1] = cancel_chain(id, ARGV[request.error], named_types) end
return answer

-- name: get_relations
-- Reads of chains what decides whether they may be deleted. ARGV[1]: list of ids. Returns of each that exists: its id, the
-- chains that its jobs wait for or waited for, and the jobs that have it among their blockers, each after its chain.

local answer = {}
for _, id in ipairs(decoded(1)) do
    if is_first(load(id)) then
        local blockers, dependents = {}, {}
        for _, job in ipairs(jobs_of(id)) do
            for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. job, 0, -1)) do blockers[#blockers + 1] = chain end
        end
        for _, dependent in ipairs(call('ZRANGE', P .. 'bb:' .. id, 0, -1)) do
            local job = load(dependent)
            if job then
                dependents[#dependents + 1] = job.chain
                dependents[#dependents + 1] = dependent
            end
        end
        answer[#answer + 1] = {id, blockers, dependents}
    end
end
return answer

-- name: delete_chains
-- Deletes chains with all their jobs, all or none. ARGV[1]: {ids, dependents}. Finished jobs of the chains `dependents`,
-- which are about to be deleted as well, may have waited for one. Returns the deleted chains, and the jobs that were
-- running.

local params = decoded(1)
local to_delete, order, waited, entries = {}, {}, {}, {}
for _, chain in ipairs(params.dependents) do waited[chain] = true end
for _, id in ipairs(params.ids) do
    if not to_delete[id] and is_first(load(id)) then
        to_delete[id] = true
        order[#order + 1] = id
    end
end
local refused = refuse_references(order, function(job, chain)
    if to_delete[job.chain] then return true end
    local ended = waited[job.chain] and FINAL[job.status]
    if ended then entries[#entries + 1] = {job.id, chain} end
    return ended
end)
if refused then return refused end

for _, entry in ipairs(entries) do remove_blocker(unpack(entry)) end
local running = {}
for _, chain in ipairs(order) do delete_chain(chain, running) end
return {order, running}

-- name: retry_chains
-- Opens failed and cancelled chains again, all or none. ARGV[1]: {ids, edit, check, checked}, where edit is {job, input};
-- ARGV[2...]: payloads. With `checked`, chains that are open or completed are left as they are, and those that do not
-- exist have no result.

local params = decoded(1)
local ids, edit = params.ids, params.edit
local chains, missing = chains_of(ids, params.checked)
if missing then return missing end
local left, refused = {}, refusal('not_retriable')
for _, id in ipairs(ids) do
    local chain = chains[id]
    local status = chain and chain.first.chain_status
    if status == 'open' or status == 'completed' then
        refused[#refused + 1] = id
        refused[#refused + 1] = status
        left[id] = chain_update(chain.first, chain.tail, chain.tail.status, status, false)
    end
end
if refused[3] and not params.checked then return refused end
if params.check then return 1 end
if edit then
    if not has_tail(chains, edit.job) then return refusal('job_not_found', edit.job) end
    call('SET', P .. 'i:' .. edit.job, ARGV[edit.input])
end

-- Jobs that the chain had released, and that still wait for other chains, wait for it again.
local function reopen(first)
    call('ZREM', closed_key(first, first.chain_status), first.id)
    call('ZREM', P .. 'expires', first.id)
    put(first, {chain_status = 'open', closed = false, expires = false, stale = false})
    if first.dedup then call('ZADD', dedup_key(first, 'do'), first.created, first.id) end
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. first.id, 0, -1)) do
        local job = load(id)
        if job and job.status == 'blocked' and call('SADD', P .. 'bo:' .. id, first.id) == 1 then
            put(job, {open = job.open + 1})
        end
    end
end

local function try_again(job)
    local open = 0
    call('DEL', P .. 'bo:' .. job.id)
    for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. job.id, 0, -1)) do
        if is_open(chain) then open = open + call('SADD', P .. 'bo:' .. job.id, chain) end
    end
    move(job, resting_status(NOW, open), {
        due = NOW, finished = false, uncounted = job.attempt, expired = 0, token = false, open = open,
    })
    log_event(job, 'retried_by_hand', 'ready')
    if open > 0 then log_event(job, 'blocked', 'blocked') end
    return open
end

for id, chain in pairs(chains) do
    if not left[id] then reopen(chain.first) end
end
local done, answer = left, {}
for _, id in ipairs(ids) do
    if chains[id] and not done[id] then
        local tail = load(chains[id].tail.id)
        local previous_status = tail.status
        local open = try_again(tail)
        done[id] = chain_update(chains[id].first, tail, previous_status, 'open', true, open == 0 and {[tail.type] = true} or {})
    end
    answer[#answer + 1] = done[id]
end
return answer

-- name: change_waiting_jobs
-- Gives the last jobs of chains another due time, priority or input, if they wait. ARGV[1]: {ids, moment or delay,
-- priority, edit, check, checked}. A blocked job only keeps the time, for when it is released. With `checked`, a chain
-- that does not exist has no result.

local params = decoded(1)
local chains, missing = chains_of(params.ids, params.checked)
if missing then return missing end
if params.check then return 1 end
local edit = params.edit
if edit and not has_tail(chains, edit.job) then return refusal('job_not_found', edit.job) end
local due = (params.moment or params.delay) and due_of(params, NOW)
local done, answer = {}, {}
for _, id in ipairs(params.ids) do
    if chains[id] and not done[id] then
        local first, tail = chains[id].first, chains[id].tail
        local previous_status, status = tail.status, tail.status
        if status == 'blocked' or status == 'scheduled' or status == 'ready' then
            if edit and edit.job == tail.id then call('SET', P .. 'i:' .. tail.id, ARGV[edit.input]) end
            local changes = {priority = params.priority}
            if due then
                changes.due = due > NOW and due or math.min(tail.due, NOW)
                if status ~= 'blocked' then status = resting_status(due, 0) end
            end
            -- Only another time or rank costs a ready job its place: moved, it would be behind all others of its list.
            local stays = status == 'ready' and previous_status == 'ready'
                and (changes.due or tail.due) == tail.due and (params.priority or tail.priority) == tail.priority
            if not stays then move(tail, status, changes) end
            log_event(tail, edit and 'edited' or due and 'rescheduled' or 'reprioritized', status)
            local due_types = status ~= 'blocked' and {[tail.type] = true} or {}
            done[id] = chain_update(first, tail, previous_status, 'open', true, due_types)
        else
            done[id] = chain_update(first, tail, previous_status, first.chain_status, false)
        end
    end
    answer[#answer + 1] = done[id]
end
return answer

-- name: trigger_jobs
-- Makes scheduled jobs due now, all or none. ARGV[1]: {ids, check, checked}. Returns {id, type} for each. With `checked`,
-- jobs that do not wait any more, since they run, are left as they are, and those that do not exist have no result.

local params, answer = decoded(1), {}
local ids = params.ids
for _, id in ipairs(ids) do
    local job = load(id)
    local waits = job and (job.status == 'scheduled' or job.status == 'ready')
    if not params.checked then
        if not job then return refusal('job_not_found', id) end
        if not waits then return refusal('not_triggerable', id, job.status) end
    end
    if job then answer[#answer + 1] = {id, job.type} end
end
if params.check then return 1 end
for _, id in ipairs(ids) do
    local job = load(id)
    if job and job.status == 'scheduled' then
        move(job, 'ready', {due = math.min(job.due, NOW)})
        log_event(job, 'triggered', 'ready')
    end
end
return answer

-- name: send_event
-- Keeps an event for an open chain, and makes its last job due if that waits for it. ARGV[1]: {chain, id, name}; ARGV[2]:
-- the payload. Returns the type of the chain, whether it was written, and the job that is due now.

local event = decoded(1)
local chains, missing = chains_of({event.chain})
if missing then return missing end
local first, tail = chains[event.chain].first, chains[event.chain].tail
local list, payloads = P .. 've:' .. first.id, P .. 'vp:' .. first.id
if call('HEXISTS', payloads, event.id) == 1 then return {first.type, 0, {}} end
if first.chain_status ~= 'open' then return refusal('chain_closed', first.id, first.chain_status) end
local kept, bytes = call('LRANGE', list, 0, -1), #ARGV[2]
if #kept >= MAX_EVENTS then return refusal('event_limit', first.id, 'number') end
for _, entry in ipairs(kept) do bytes = bytes + call('HSTRLEN', payloads, cjson.decode(entry)[2]) end
if bytes > MAX_EVENT_BYTES then return refusal('event_limit', first.id, 'bytes') end
call('RPUSH', list, cjson.encode({event.name, event.id}))
call('HSET', payloads, event.id, ARGV[2])
return {first.type, 1, wake_receiver(tail) and {{tail.id, tail.type}} or {}}

-- name: list_holders
-- Reads those who have, or had, a processing list.

return call('SMEMBERS', P .. 'holders')

-- name: mend_holder
-- Repairs a part of a processing list. ARGV[1]: {holder, from, count}. Returns from where the next script goes on; -1 at
-- the end.

local params = decoded(1)
return mend_holder(params.holder, params.from, params.count)

-- name: lists_to_compact
-- Finds waiting lists with many dead entries. ARGV[1]: list of types. Returns {type, rank, length} for each.

local answer = {}
for _, type in ipairs(decoded(1)) do add_lists_to_compact(type, answer) end
return answer

-- name: compact
-- Drops the dead entries of a part of a waiting list. ARGV[1]: {type, rank, from}.

local params = decoded(1)
compact(P .. 'w:' .. params.rank .. ':' .. params.type, params.from)
return 1

-- name: release_stranded
-- Releases blocked jobs all of whose blockers have closed. ARGV[1]: {cursor, limit}; reads up to `limit` jobs, by id.
-- Returns the next cursor ('' at the end) and {id, type} of the released jobs.

local params = decoded(1)
local from = params.cursor and '(' .. params.cursor or '-'
local ids = call('ZRANGEBYLEX', P .. 'blocked', from, '+', 'LIMIT', 0, params.limit)
local released = {}
for _, id in ipairs(ids) do
    local job, open = load(id), false
    if job then
        for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. id, 0, -1)) do
            open = open or is_open(chain)
        end
        if not open then
            call('DEL', P .. 'bo:' .. id)
            local due = math.max(job.due, NOW)
            move(job, resting_status(job.due, 0), {open = 0, due = due})
            log_event(job, 'unblocked', job.status)
            released[#released + 1] = {id, job.type}
        end
    else
        call('ZREM', P .. 'blocked', id)
    end
end
return {#ids == params.limit and ids[#ids] or '', released}

-- name: pause_job_types
-- Pauses job types. ARGV[1]: {types, reason, by}. A paused type keeps its time and who paused it, and its reason unless
-- a new one is given.

local params = decoded(1)
for _, type in ipairs(params.types) do
    local stored = call('HGET', P .. 'paused', type)
    local pause = stored and cjson.decode(stored) or {at = text(NOW), by = params.by}
    pause.reason = params.reason or pause.reason
    call('HSET', P .. 'paused', type, cjson.encode(pause))
end
return 1

-- name: list_paused_job_types
-- Reads the paused job types, each followed by what is stored of it.

return call('HGETALL', P .. 'paused')

-- name: resume_job_types
-- Resumes job types. ARGV[1]: list of types. Returns those that were paused.

local resumed = {}
for _, type in ipairs(decoded(1)) do
    if call('HDEL', P .. 'paused', type) == 1 then resumed[#resumed + 1] = type end
end
return resumed
