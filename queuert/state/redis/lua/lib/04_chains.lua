-- Chains and who waits for whom. A chain is its first job: `chain_status`, `closed` and `dependents` stand in its hash.
--
-- c:{chain}  ZSET job ids by index, once there are two       bl:{job}  ZSET chains by position: what it waits or waited for
-- bo:{job}   SET those of them that are open                 bb:{chain} ZSET jobs that wait or waited for the chain
-- d:, do:    ZSET chains of a deduplication key by start, all and open ones

local function is_first(job)
    return job ~= nil and job.index == 0
end

local function tail_of(chain)
    local last = call('ZREVRANGE', P .. 'c:' .. chain, 0, 0)
    return load(last[1] or chain)
end

local function dedup_key(job, kind)
    return P .. kind .. ':' .. pair(job.type, job.dedup)
end

-- Whether a chain is open; nil if it does not exist.
local function is_open(chain)
    local found = call('HMGET', P .. 'j:' .. chain, 'chain_status')
    if not found[1] then return nil end
    return found[1] == 'open'
end

-- Adds chains to the blockers of a job, from a position on. Returns how many were added, and how many of these are
-- open.
local function add_blockers(job, position, chains)
    local added, open = 0, 0
    for _, chain in ipairs(chains) do
        if call('ZADD', P .. 'bl:' .. job.id, 'NX', position + added, chain) == 1 then
            added = added + 1
            call('ZADD', P .. 'bb:' .. chain, 0, job.id)
            call('HSET', P .. 'j:' .. chain, 'dependents', 1)
        end
        if is_open(chain) then open = open + call('SADD', P .. 'bo:' .. job.id, chain) end
    end
    return added, open
end

-- Converts a set of types to a list.
local function listed(types)
    local list = {}
    for type in pairs(types) do list[#list + 1] = type end
    table.sort(list)
    return list
end

-- Records that a blocker of a job has closed.
local function unblock_job(job, chain, due_types)
    if call('SREM', P .. 'bo:' .. job.id, chain) == 0 then return end
    local open = job.open - 1
    if open > 0 or job.status ~= 'blocked' then
        put(job, {open = open})
        return
    end
    local due = math.max(job.due, NOW)
    move(job, resting_status(due, 0), {open = 0, due = due})
    log_event(job, 'unblocked', job.status)
    due_types[job.type] = true
end

-- Returns the fields of a chain's first job that change when the chain closes. It is kept for `ttl` microseconds, or
-- for the time given at its start.
local function closing(first, status, ttl)
    local now, kept = now_us(), ttl or first.ttl
    return {chain_status = status, closed = now, expires = kept and now + kept or nil}
end

-- Adds a closed chain to the lists of closed and of expiring chains, and releases its dependents; adds the types of jobs that became due to `due_types`.
local function release_dependents(first, status, due_types)
    call('ZADD', P .. 'closed:' .. pair(first.type, status), text(first.created), first.id)
    if first.expires then call('ZADD', P .. 'expires', text(first.expires), first.id) end
    if first.dedup then call('ZREM', dedup_key(first, 'do'), first.id) end
    if not first.dependents then return end
    local released = {}
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. first.id, 0, -1)) do
        local job = load(id)
        if job then released[#released + 1] = job end
    end
    table.sort(released, function(one, other)
        if one.created ~= other.created then return one.created < other.created end
        return one.id < other.id
    end)
    for _, job in ipairs(released) do unblock_job(job, first.id, due_types) end
end

-- Returns the microseconds from the start of the chain to its end, as text. With `kept` it does not expire.
local function close_chain(first, status, due_types, kept)
    local changes = closing(first, status)
    if kept then changes.expires = nil end
    put(first, changes)
    release_dependents(first, status, due_types)
    return text(first.closed - first.created)
end

-- Attributes of chains. a:{chain} is their text, at:{name,value} a ZSET of the chains that have one, by their start.

-- A text that somebody has edited may be anything. What cannot be read has no entries that are known.
local function each_attribute(attributes, action)
    local readable, found = pcall(cjson.decode, attributes)
    if not readable or type(found) ~= 'table' then return end
    for name, value in pairs(found) do
        for _, one in ipairs(type(value) == 'table' and value or {value}) do
            if type(name) == 'string' and type(one) == 'string' then action(P .. 'at:' .. pair(name, one)) end
        end
    end
end

local function keep_attributes(new, now)
    if not new.attributes then return end
    call('SET', P .. 'a:' .. new.id, new.attributes)
    each_attribute(new.attributes, function(key) call('ZADD', key, now, new.id) end)
end

local function delete_attributes(chain)
    local attributes = call('GET', P .. 'a:' .. chain)
    if not attributes then return end
    each_attribute(attributes, function(key) call('ZREM', key, chain) end)
    call('DEL', P .. 'a:' .. chain)
end
