-- What a sweep mends beside stranded jobs: dead entries, and running jobs without a lease.
--
-- holders SET of those who have, or had, a processing list

local CHUNK = 1000

-- Gives running jobs of a holder that have no lease an expired one, so that the reaper takes them, and drops entries of
-- jobs that are not running. Scripts never leave either; manual edits and evictions do.
local function mend_holder(holder)
    local list = P .. 'p:' .. holder
    for _, entry in ipairs(call('LRANGE', list, 0, CHUNK - 1)) do
        local job = load(entry:match('^%d+:%d+:(.*)$') or '')
        if not job or job.status ~= 'running' or job.holder ~= holder or entry_of(job) ~= entry then
            call('LREM', list, 1, entry)
        elseif not call('ZSCORE', P .. 'lease:' .. job.type, job.id) then
            put(job, {leased = NOW})
            call('ZADD', P .. 'lease:' .. job.type, NOW, job.id)
        end
    end
    if call('EXISTS', list) == 0 then call('SREM', P .. 'holders', holder) end
end

-- Drops the dead entries of a part of a list.
local function compact_piece(list, from)
    local dead = 0
    for at, entry in ipairs(call('LRANGE', list, from, from + CHUNK - 1)) do
        if not still_waits(entry) then
            call('LSET', list, from + at - 1, '')
            dead = dead + 1
        end
    end
    if dead > 0 then call('LREM', list, 0, '') end
end

-- Drops some dead entries of a type, if they are more than a quarter of its entries and more than a thousand.
local function compact(type)
    local alive = tonumber(call('HGET', P .. 'n:' .. type, 'ready') or 0) - call('ZCARD', P .. 'kz:' .. type)
    local lists, entries = {}, 0
    for at, rank in ipairs(call('ZRANGE', P .. 'ranks:' .. type, 0, -1)) do
        lists[at] = P .. 'w:' .. rank .. ':' .. type
        entries = entries + call('LLEN', lists[at])
    end
    if entries - alive <= math.max(CHUNK, entries / 4) then return end
    for _, list in ipairs(lists) do
        local length = call('LLEN', list)
        if alive == 0 then
            call('DEL', list)
        elseif length > 0 then
            compact_piece(list, 0)
            compact_piece(list, math.random(0, length - 1))
        end
    end
end
