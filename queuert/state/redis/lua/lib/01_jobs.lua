-- A job is a small hash; and the clock. A script begins with what it uses of these files, in the order of their numbers.
-- KEYS[1] is the prefix of the namespace with its hash tag: all keys begin with it, so all are in one slot of a cluster.

local P = KEYS[1]
local call = redis.call

-- Microseconds since 1970, by the server's clock: exact in a double until the year 2255.
local function now_us()
    local time = call('TIME')
    return time[1] * 1000000 + time[2]
end

local NOW = now_us()

-- Whole numbers as text: Lua itself would round them to fourteen digits. To format one takes as long as a short command,
-- and most numbers occur several times: the times of a batch, and those that were read.
local TEXTS = {}

local function text(number)
    local shown = TEXTS[number]
    if not shown then
        shown = string.format('%.0f', number)
        TEXTS[number] = shown
    end
    return shown
end

-- Decodes an argument that is a list or an object in JSON.
local function decoded(position)
    return cjson.decode(ARGV[position])
end

-- Encodes a long answer as one JSON text, which redis-py reads faster than many parts.
local function packed(answer)
    return cjson.encode(answer)
end

-- The answer of a script that refused the operation and wrote nothing. No other answer begins with a negative number,
-- and a text may be an id or a name, which users choose.
local function refusal(code, ...)
    return {-1, code, ...}
end

local NUMBERS = {
    index = true, priority = true, attempt = true, uncounted = true, expired = true, open = true, blockers = true,
    created = true, due = true, started = true, finished = true, leased = true, closed = true, gen = true, ttl = true,
    expires = true, max_attempts = true, stale = true,
}

-- Reads the hash of a job as a table; nil if there is none. Fields that are zero, or equal to another field, are not
-- stored.
local function load(id)
    local flat = call('HGETALL', P .. 'j:' .. id)
    if #flat == 0 then return nil end
    local job = {id = id, index = 0, priority = 0, attempt = 0, uncounted = 0, expired = 0, open = 0, blockers = 0}
    for at = 1, #flat, 2 do
        local name, value = flat[at], flat[at + 1]
        local number = NUMBERS[name] and tonumber(value)
        if number then
            -- Of a short one nothing is saved, and a manual edit may have written NaN, which is no key of a table.
            if #value > 9 then TEXTS[number] = value end
            value = number
        end
        job[name] = value
    end
    job.chain = job.chain or id
    job.chain_type = job.chain_type or job.type
    return job
end

-- Changes fields of a job; false removes a field.
local function put(job, changes)
    local set, gone = {}, {}
    for name, value in pairs(changes) do
        if value == false then
            gone[#gone + 1] = name
            job[name] = nil
        else
            set[#set + 1] = name
            set[#set + 1] = type(value) == 'number' and text(value) or value
            job[name] = value
        end
    end
    if #set > 0 then call('HSET', P .. 'j:' .. job.id, unpack(set)) end
    if #gone > 0 then call('HDEL', P .. 'j:' .. job.id, unpack(gone)) end
end

-- Lower is better: each attempt that failed by the job's own doing raises it by one.
local function rank_of(job)
    return job.attempt - job.uncounted - job.expired - job.priority
end

-- Joins two texts so that no other two give the same result.
local function pair(first, second)
    return #first .. ':' .. first .. ':' .. second
end

-- Whether a chain has expired: it then counts as deleted, whether its hash still exists or not.
local function has_expired(first)
    return first.expires ~= nil and first.expires <= NOW
end

local FINAL = {continued = true, completed = true, failed = true, cancelled = true}
