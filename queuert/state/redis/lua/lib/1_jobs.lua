-- A job as a small hash, and the clock. Every script begins with these files, in the order of their numbers.
-- KEYS[1] is the namespace's prefix, with its hash tag: all keys are made of it, so all lie in one slot of a cluster.

local P = KEYS[1]
local call = redis.call

-- Microseconds since 1970, by the server's clock: exact in a double until the year 2255.
local function now_us()
    local time = call('TIME')
    return time[1] * 1000000 + time[2]
end

local NOW = now_us()

-- Whole numbers as text: Lua itself would round them to fourteen digits.
local function text(number)
    return string.format('%.0f', number)
end

-- An argument that is a list or an object of JSON.
local function given(position)
    return cjson.decode(ARGV[position])
end

-- A long answer as one text of JSON: the driver reads it at once, and not piece by piece.
local function packed(answer)
    return cjson.encode(answer)
end

-- What a script answers instead of a result: nothing was written.
local function refusal(code, ...)
    return {'refused', code, ...}
end

local NUMBERS = {
    index = true, priority = true, attempt = true, uncounted = true, expired = true, open = true, blockers = true,
    created = true, due = true, started = true, finished = true, leased = true, closed = true, gen = true, ttl = true,
    expires = true,
}

-- The hash of a job as a table, nil if there is none. What is zero or the same as elsewhere is not stored.
local function load(id)
    local flat = call('HGETALL', P .. 'j:' .. id)
    if #flat == 0 then return nil end
    local job = {id = id, index = 0, priority = 0, attempt = 0, uncounted = 0, expired = 0, open = 0, blockers = 0}
    for at = 1, #flat, 2 do
        local name, value = flat[at], flat[at + 1]
        job[name] = NUMBERS[name] and tonumber(value) or value
    end
    job.chain = job.chain or id
    job.chain_type = job.chain_type or job.type
    return job
end

-- Change fields of a job; false takes one away.
local function put(job, changes)
    local set, gone = {}, {}
    for name, value in pairs(changes) do
        if value == false then
            gone[#gone + 1] = name
            job[name] = nil
        else
            set[#set + 1] = name
            set[#set + 1] = value
            job[name] = value
        end
    end
    if #set > 0 then call('HSET', P .. 'j:' .. job.id, unpack(set)) end
    if #gone > 0 then call('HDEL', P .. 'j:' .. job.id, unpack(gone)) end
end

-- Less is better: each attempt that failed by the job's own doing makes it give way by one.
local function rank_of(job)
    return job.attempt - job.uncounted - job.expired - job.priority
end

-- Two texts as one that no other two make.
local function pair(first, second)
    return #first .. ':' .. first .. ':' .. second
end

-- Whether a chain's end has come: it is gone then, whether its hash is there or not.
local function has_expired(first)
    return first.expires ~= nil and first.expires <= NOW
end

local FINAL = {continued = true, completed = true, failed = true, cancelled = true}
