-- name: list_types
-- Reads the types that have jobs.

return call('SMEMBERS', P .. 'types')

-- name: count_jobs
-- Counts jobs by type and status. ARGV[1]: list of types. The numbers are kept by all scripts, so they
-- are exact and cheap. Returns whether dead entries are left in the way, so that it is to be called again, and {type,
-- status, count, microseconds since the oldest became due or -1} for each.

local function oldest(type, status)
    if status == 'ready' then return oldest_due(type) end
    if status == 'scheduled' then
        local first = call('ZRANGEBYSCORE', P .. 'sched:' .. type, '(' .. text(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        return first[2] and tonumber(first[2])
    end
    return nil
end

local answer = {0}
for _, type in ipairs(decoded(1)) do
    local found = {}
    local flat = call('HGETALL', P .. 'n:' .. type)
    for at = 1, #flat, 2 do found[flat[at]] = tonumber(flat[at + 1]) end
    local due = call('ZCOUNT', P .. 'sched:' .. type, '-inf', text(NOW))
    found.ready = (found.ready or 0) + due
    found.scheduled = (found.scheduled or 0) - due
    local statuses = {}
    for status in pairs(found) do statuses[#statuses + 1] = status end
    table.sort(statuses)
    for _, status in ipairs(statuses) do
        if found[status] > 0 then
            local since = oldest(type, status)
            if BUDGET <= 0 then return {1} end
            answer[#answer + 1] = {type, status, found[status], since and text(math.max(0, NOW - since)) or '-1'}
        end
    end
end
return answer

-- name: get_blockers
-- Reads the chains that a job waits for or waited for, in order. ARGV[1]: {id, whether their outputs and
-- errors are read}.

local answer, id, outputs = {}, unpack(decoded(1))
for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. id, 0, -1)) do
    local first = load(chain)
    if first then
        local tail = tail_of(chain)
        answer[#answer + 1] = {
            chain, first.type, first.chain_status, tail.type,
            outputs and first.chain_status == 'completed' and call('GET', P .. 'o:' .. tail.id) or false,
            outputs and call('GET', P .. 'e:' .. tail.id) or false,
            tail.atrace or false,
        }
    end
end
return answer

-- name: get_blocker_links
-- Reads which chains the jobs of chains wait for or waited for. ARGV[1]: {ids, limit}. Returns {chain, job, blocker} for
-- each, the first `limit` of each chain.

local params, answer = decoded(1), {}
for _, id in ipairs(params.ids) do
    local jobs, found = {id}, 0
    if call('EXISTS', P .. 'c:' .. id) == 1 then jobs = call('ZRANGE', P .. 'c:' .. id, 0, -1) end
    if not is_first(load(id)) then jobs = {} end
    for _, job in ipairs(jobs) do
        if found >= params.limit then break end
        for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. job, 0, params.limit - found - 1)) do
            found = found + 1
            answer[#answer + 1] = {id, job, chain}
        end
    end
end
return answer

-- name: get_dependent_links
-- Reads which jobs of some statuses have chains among their blockers, the first `limit` of each chain, but those of the
-- chains `excluding`. ARGV[1]: {ids, statuses, excluding, limit, at, after, count}: it goes on at the chain `at` of `ids`,
-- of which it has found `count`, behind the job `after`. Returns where it stopped, 0 at the end, in these three, and
-- {chain, job, blocker} for each.

local MOST, CHUNK = 1000, 100
local params, answer, looked = decoded(1), {}, 0
local wanted, left_out = {}, {}
for _, status in ipairs(params.statuses) do wanted[status] = true end
for _, chain in ipairs(params.excluding) do left_out[chain] = true end
local ids, at, after, count = params.ids, params.at, params.after, params.count
while ids[at] and looked < MOST do
    local from = after ~= '' and '(' .. after or '-'
    local dependents = call('ZRANGEBYLEX', P .. 'bb:' .. ids[at], from, '+', 'LIMIT', 0, CHUNK)
    for _, id in ipairs(dependents) do
        if count >= params.limit then break end
        after, looked = id, looked + 1
        local status, chain = unpack(call('HMGET', P .. 'j:' .. id, 'status', 'chain'))
        chain = chain or id
        if wanted[status] and not left_out[chain] then
            count = count + 1
            answer[#answer + 1] = {chain, id, ids[at]}
        end
    end
    if #dependents < CHUNK or count >= params.limit then at, after, count = at + 1, '', 0 end
end
return {ids[at] and at or 0, after, count, answer}

-- name: get_chains
-- Reads chains. ARGV[1]: {ids, expired, portion, bare}. Expired chains are read if `expired` is set, and otherwise count as
-- deleted. With `bare`, inputs and outputs are not read. Returns the fields of the first job and the finish of the last job of each, and then the size of all payloads.
-- With `portion`, in bytes, only closed chains are read, as many as fit and at least one; for the others only the status
-- is returned.

local answer = {}
local params = decoded(1)
local size = 0
for at, id in ipairs(params.ids) do
    local first = load(id)
    if not is_first(first) or (has_expired(first) and not params.expired) then
        answer[at] = 0
    elseif params.portion and (first.chain_status == 'open' or size >= params.portion) then
        answer[at] = first.chain_status
    else
        local tail = tail_of(id)
        answer[at] = {
            id, first.type, first.chain_status, not params.bare and call('GET', P .. 'i:' .. id),
            not params.bare and call('GET', P .. 'o:' .. tail.id),
            call('GET', P .. 'e:' .. tail.id), tail.type, text(first.created),
            first.closed and text(first.closed) or false, tail.id,
            first.expires and text(first.expires) or false, call('GET', P .. 'a:' .. id),
            first.stale and text(first.stale) or false,
        }
        for _, payload in ipairs({4, 5, 6, 12}) do size = size + #(answer[at][payload] or '') end
    end
end
answer[#answer + 1] = size
return answer

-- name: get_chain_states
-- Reads chains and their last jobs, without inputs and outputs. ARGV[1]: list of ids.

local answer = {}
for at, id in ipairs(decoded(1)) do
    local first = load(id)
    if not is_first(first) or has_expired(first) then
        answer[at] = 0
    else
        local tail = tail_of(id)
        local status = tail.status
        if status == 'scheduled' and tail.due <= NOW then status = 'ready' end
        answer[at] = {
            id, first.type, first.chain_status, tail.id, tail.type, status, tail.attempt, text(tail.due), tail.open,
            call('GET', P .. 'e:' .. tail.id), tail.progress or false,
        }
    end
end
return answer

-- name: get_jobs
-- Reads jobs. ARGV[1]: list of ids. Returns the time, the traits of job types and, for each job, its id, hash, input,
-- output, error and failures.

local answer = {text(NOW), call('HGETALL', P .. 'traits')}
for _, id in ipairs(decoded(1)) do
    local flat = call('HGETALL', P .. 'j:' .. id)
    answer[#answer + 1] = #flat == 0 and 0
        or {id, flat, call('GET', P .. 'i:' .. id), call('GET', P .. 'o:' .. id), call('GET', P .. 'e:' .. id),
            call('LRANGE', P .. 'f:' .. id, 0, -1)}
end
return answer

-- name: list_by_time
-- Lists ids by the time of creation, among some types. ARGV[1]: {types, since, before, after: {time, id}, oldest_first,
-- limit, chains, statuses, attributes, scan, most}. Reads up to `scan` entries; returns where it stopped, and {time, id}
-- of those that match. If there are more than `most` types, none is read, and they are returned behind that, so that they
-- are listed in parts.

local params = decoded(1)
local types = params.types or call('SMEMBERS', P .. 'types')
if not params.types and not params.attributes and #types > params.most then return {0, {}, types} end
local statuses
if params.statuses then
    statuses = {}
    for _, status in ipairs(params.statuses) do statuses[status] = true end
end

-- Whether one entry comes before another in the requested order.
local function earlier(one, other)
    if one[1] ~= other[1] then
        if params.oldest_first then return one[1] < other[1] end
        return one[1] > other[1]
    end
    if params.oldest_first then return one[2] < other[2] end
    return one[2] > other[2]
end

local place = params.after and {tonumber(params.after[1]), params.after[2]}
local CHUNK = 50 -- The most entries of a set that are read at once. The first time it is few, since there may be many sets.

-- The entries of one sorted set in the requested order, from the cursor on.
local function entries_of(key)
    local low = params.since and tonumber(params.since) or 0
    local high = params.before and tonumber(params.before) - 1 or 2 ^ 53
    if place and params.oldest_first then low = math.max(low, place[1]) end
    if place and not params.oldest_first then high = math.min(high, place[1]) end
    local offset, chunk, at, finished, size = 0, {}, 1, false, 1
    local function following()
        while true do
            if not chunk[at] then
                if finished then return nil end
                size = math.min(2 * size, CHUNK)
                if params.oldest_first then
                    chunk = call('ZRANGEBYSCORE', key, text(low), text(high), 'WITHSCORES', 'LIMIT', offset, size)
                else
                    chunk = call('ZREVRANGEBYSCORE', key, text(high), text(low), 'WITHSCORES', 'LIMIT', offset, size)
                end
                offset, at, finished = offset + size, 1, #chunk < 2 * size
            end
            if not chunk[at] then return nil end
            local entry = {tonumber(chunk[at + 1]), chunk[at]}
            at = at + 2
            if not place or earlier(place, entry) then return entry end
        end
    end
    return following
end

local wanted_types
if params.types then
    wanted_types = {}
    for _, type in ipairs(params.types) do wanted_types[type] = true end
end

-- Whether a chain has all the requested attributes.
local function has_attributes(id)
    for _, one in ipairs(params.attributes) do
        if not call('ZSCORE', P .. 'at:' .. pair(one[1], one[2]), id) then return false end
    end
    return not wanted_types or wanted_types[call('HGET', P .. 'j:' .. id, 'type')]
end

local function fits(id)
    if params.attributes and not has_attributes(id) then return false end
    if not params.chains then
        if not statuses then return true end
        local status, due = unpack(call('HMGET', P .. 'j:' .. id, 'status', 'due'))
        if status == 'scheduled' and tonumber(due) <= NOW then status = 'ready' end
        return statuses[status]
    end
    local found = call('HMGET', P .. 'j:' .. id, 'chain_status')
    return found[1] and (not statuses or statuses[found[1]])
end

local sources, seen = {}, {}

local function add_source(key)
    if seen[key] then return end
    seen[key] = true
    local following = entries_of(key)
    local head = following()
    if head then sources[#sources + 1] = {head = head, following = following} end
end

-- The statuses under which jobs of the requested ones are counted: due jobs are counted as scheduled.
local counted
if statuses and not params.chains then
    counted = {}
    for status in pairs(statuses) do counted[#counted + 1] = status end
    if statuses.ready and not statuses.scheduled then counted[#counted + 1] = 'scheduled' end
end

local function has_counted(type)
    if not counted then return true end
    for at = 1, #counted do
        if call('HEXISTS', P .. 'n:' .. type, counted[at]) == 1 then return true end
    end
    return false
end

if params.attributes then
    add_source(P .. 'at:' .. pair(unpack(params.attributes[1])))
elseif params.chains and statuses and not statuses.open then
    for _, type in ipairs(types) do
        for status in pairs(statuses) do add_source(P .. 'closed:' .. pair(type, status)) end
    end
else
    for _, type in ipairs(types) do
        if has_counted(type) then add_source(P .. 'ix:' .. type) end
    end
end

local function goes_before(one, other)
    return earlier(one.head, other.head)
end

make_heap(sources, goes_before)
local found, looked, last = {}, 0, nil
while #found < params.limit and looked < params.scan and #sources > 0 do
    local source = sources[1]
    last = source.head
    looked = looked + 1
    if fits(last[2]) then found[#found + 1] = {text(last[1]), last[2]} end
    source.head = source.following()
    if source.head then sink(sources, goes_before) else remove_first(sources, goes_before) end
end
local more = #sources > 0 and #found < params.limit
return {more and {text(last[1]), last[2]} or 0, found}

-- name: list_members
-- Lists the ids of a chain's jobs by their index, or of the dependents of a chain by id. ARGV[1]: {chain, blocked,
-- after, oldest_first, limit}. Returns {key, id} for each.

local params = decoded(1)
local answer = {}
if params.blocked then
    local key, ids = P .. 'bb:' .. params.chain, nil
    if params.oldest_first then
        ids = call('ZRANGEBYLEX', key, params.after and '(' .. params.after or '-', '+', 'LIMIT', 0, params.limit)
    else
        ids = call('ZREVRANGEBYLEX', key, params.after and '(' .. params.after or '+', '-', 'LIMIT', 0, params.limit)
    end
    for at, id in ipairs(ids) do answer[at] = {'', id} end
    return answer
end
local key, after = P .. 'c:' .. params.chain, params.after
if call('EXISTS', key) == 0 then
    local alone = is_first(load(params.chain))
    local behind = not after or (params.oldest_first and after < 0) or (not params.oldest_first and after > 0)
    return alone and behind and {{'0', params.chain}} or {}
end
local flat
if params.oldest_first then
    flat = call('ZRANGEBYSCORE', key, after and '(' .. after or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, params.limit)
else
    flat = call('ZREVRANGEBYSCORE', key, after and '(' .. after or '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, params.limit)
end
for at = 1, #flat, 2 do answer[#answer + 1] = {flat[at + 1], flat[at]} end
return answer

-- name: why_lost
-- Returns why a lease does not hold its job now; '' if it does. ARGV[1]: {id, token}.

local params = decoded(1)
return why_not_held(load(params[1]), params[2])

-- name: demand
-- Jobs that could be claimed now, and those that run. ARGV[1]: {types, most}.
-- Answers with whether dead entries are left in the way, so that it is to be called again, and {type, ready, due, running,
-- held back, microseconds since the oldest became due or -1} for each.

local params = decoded(1)
local most = params.most

-- How many of these ready and due jobs the limits of their keys admit.
local function admitted_by_keys(type, limits, ready, due)
    local due_of, due_free = {}, due
    for _, job in ipairs(due_of_type(type, due)) do
        if job.limit then
            due_of[job.limit] = (due_of[job.limit] or 0) + 1
            due_free = due_free - 1
        end
    end
    local keys = call('ZRANGE', P .. 'keys:' .. type, 0, most - 1)
    local listed = {}
    for _, key in ipairs(keys) do listed[key] = true end
    for key in pairs(due_of) do if not listed[key] then keys[#keys + 1] = key end end
    local left = math.max(0, allowance(type, limits, nil))
    local admitted = math.min(math.max(0, ready - call('ZCARD', P .. 'kz:' .. type)), left)
    local admitted_due = math.min(due_free, left - admitted)
    for _, key in ipairs(keys) do
        left = math.max(0, allowance(type, limits, key))
        local of_key = math.min(call('ZCARD', P .. 'kk:' .. pair(type, key)), left)
        admitted = admitted + of_key
        admitted_due = admitted_due + math.min(due_of[key] or 0, left - of_key)
    end
    return admitted, admitted_due
end

local answer = {0}
for _, type in ipairs(params.types) do
    local in_all = tonumber(call('HGET', P .. 'n:' .. type, 'ready') or 0)
    local running = math.min(most, call('ZCARD', P .. 'lease:' .. type))
    local found_ready = math.min(most, in_all)
    local found_due = math.min(most, call('ZCOUNT', P .. 'sched:' .. type, '-inf', text(NOW)))
    if running + found_ready + found_due > 0 then
        local ready, due, free = found_ready, found_due, 1e9
        local stored = call('HGET', P .. 'limits', type)
        local limits = stored and cjson.decode(stored)
        if limits and limits.concurrency then free = math.max(0, limits.concurrency - running) end
        local traits = call('HGET', P .. 'traits', type)
        if call('HEXISTS', P .. 'paused', type) == 1 or (traits and cjson.decode(traits).client) then free = 0 end
        if limits and free > 0 and (limits.per_key or limits.rate) then
            ready, due = admitted_by_keys(type, limits, in_all, found_due)
        end
        ready = math.min(ready, free, found_ready)
        due = math.min(due, free - ready, found_due)
        local since = oldest_due(type)
        if BUDGET <= 0 then return {1} end
        answer[#answer + 1] = {type, ready, due, running, found_ready + found_due - ready - due,
            since and text(math.max(0, NOW - since)) or '-1'}
    end
end
return answer

-- name: chains_of_key
-- Returns the ids of the chains of a deduplication key, the newest first. ARGV[1]: {type, key, any, limit}; with `any`
-- also those of closed chains.

local params = decoded(1)
local of_key = P .. (params.any and 'd:' or 'do:') .. pair(params.type, params.key)
local found, at, ids = {}, 0, nil
repeat
    ids = call('ZREVRANGE', of_key, at, at + 99)
    for _, id in ipairs(ids) do
        local first = #found < params.limit and load(id)
        if first and not has_expired(first) then found[#found + 1] = id end
    end
    at = at + 100
until #ids < 100 or #found >= params.limit
return found

-- name: wait_facts
-- What decides whether a job can be claimed now. ARGV[1]: {id, most, named}. Counts without reading the jobs, but for the
-- first ones of a list that has dead entries.
-- Answers with whether dead entries are left in the way, so that it is to be called again, and {now, limits or false,
-- running, running of its key, attempts that the rate counts, when the rate admits another or false, ready jobs before it,
-- the event that it waits for or false, the name of its last step or false if that is no sleep or is over, running jobs as
-- {id, holder}, those of its key, and the names of the newest events that its chain keeps}; with 0 alone if the job does
-- not exist.

local params = decoded(1)
local job = load(params.id)
if not job then return {0} end

local READ = 250 -- The most entries of a list that are read.

-- Whether an entry comes before the job: by the time when it became due, and then by its place in the list, of which
-- the generation tells if the job is in it.
local function is_before(entry, own)
    local gen, due = entry:match('^(%d+):(%d+):')
    due = tonumber(due)
    if due ~= job.due or not own then return due <= job.due end
    return tonumber(gen) < job.gen
end

-- How many entries of a list come before the job, or were due before it if it is not in the list. A long list is taken to
-- be in this order: nearly all jobs enter it when they become due.
local function entries_before(list, length)
    local number, high, own = 0, length, job.status == 'ready' and not job.limit and entry_of(job)
    if length <= READ then
        for _, entry in ipairs(call('LRANGE', list, 0, -1)) do
            if entry == own then return number end
            if is_before(entry) then number = number + 1 end
        end
        return number
    end
    while number < high do
        local middle = math.floor((number + high) / 2)
        if is_before(call('LINDEX', list, middle), own) then number = middle + 1 else high = middle end
    end
    return number
end

-- How many jobs of the waiting list of the job's rank come before it.
local function before_in(list, dead)
    local length = call('LLEN', list)
    local number = job.due < NOW and entries_before(list, length) or length
    if dead > 0 and number > 0 then
        for _, entry in ipairs(call('LRANGE', list, 0, math.min(READ, number) - 1)) do
            if not still_waits(entry) then number = number - 1 end
        end
    end
    return number
end

local function entries_of(ranks)
    local entries = 0
    for _, rank in ipairs(ranks) do entries = entries + call('LLEN', waiting_list(job.type, tonumber(rank))) end
    return entries
end

local function ready_before(fair)
    local rank, number = rank_of(job), 0
    local member = rank_text(rank) .. string.format('%017.0f:', job.due)
    if fair and job.limit then
        return math.min(params.most, call('ZLEXCOUNT', P .. 'kk:' .. pair(job.type, job.limit), '-', '(' .. member))
    end
    local alive = tonumber(call('HGET', P .. 'n:' .. job.type, 'ready') or 0) - call('ZCARD', P .. 'kz:' .. job.type)
    local ranks = call('ZRANGE', P .. 'ranks:' .. job.type, 0, -1)
    local dead = entries_of(ranks) - alive
    for _, other in ipairs(ranks) do
        if tonumber(other) <= rank and dead > 0 then first_waiting(job.type, other) end
        if tonumber(other) < rank then number = number + call('LLEN', waiting_list(job.type, tonumber(other))) end
    end
    number = number + before_in(waiting_list(job.type, rank), dead)
    if fair then return math.min(params.most, number) end
    return math.min(params.most, number + call('ZLEXCOUNT', P .. 'kz:' .. job.type, '-', '(' .. member))
end

-- Some running jobs of the type, or of a limit key of it, with their holders. Of many only the first are read.
local function held(key)
    local found = {}
    for _, id in ipairs(call('ZRANGE', P .. 'lease:' .. job.type, 0, READ - 1)) do
        if #found == params.named then break end
        local fields = call('HMGET', P .. 'j:' .. id, 'holder', 'limit')
        if fields[1] and (not key or fields[2] == key) then found[#found + 1] = {id, fields[1]} end
    end
    return found
end

local stored = call('HGET', P .. 'limits', job.type)
local limits = stored and cjson.decode(stored) or {}
local begun, free_at = 0, false
if limits.rate then
    local key = rate_key(job)
    local newest = call('ZREVRANGEBYSCORE', key, '+inf', '(' .. text(NOW - limits.window), 'WITHSCORES', 'LIMIT', 0, limits.rate)
    begun = #newest / 2
    if begun >= limits.rate then free_at = text(tonumber(newest[#newest]) + limits.window) end
end
local last = step_at(job.id, -1)
local waits = last and last[6] == ''
local sleeps = last and not last[5] and (tonumber(last[4]) or 0) > NOW
local kept = {}
for at, entry in ipairs(call('LRANGE', P .. 've:' .. job.chain, -params.named, -1)) do kept[at] = cjson.decode(entry)[1] end
local ahead = ready_before(limits.fair)
if BUDGET <= 0 then return {1} end
return {0, {
    text(NOW), stored, call('ZCARD', P .. 'lease:' .. job.type),
    job.limit and tonumber(call('HGET', P .. 'rk:' .. job.type, job.limit) or 0) or 0,
    begun, free_at, ahead, waits and last[5] or false,
    sleeps and last[1] or false, held(), job.limit and held(job.limit) or {}, kept,
}}
