-- Ids by the time of creation, among some types. ARGV[1]: {types, since, before, after: {time, id}, oldest_first,
-- limit, chains, statuses, attributes}. Looks at up to `scan` entries; answers with where it stopped and {time, id} of those that fit.

local asked = given(1)
local types = asked.types or call('SMEMBERS', P .. 'types')
local statuses
if asked.statuses then
    statuses = {}
    for _, status in ipairs(asked.statuses) do statuses[status] = true end
end

-- Whether one entry comes before another in the order asked.
local function earlier(one, other)
    if one[1] ~= other[1] then
        if asked.oldest_first then return one[1] < other[1] end
        return one[1] > other[1]
    end
    if asked.oldest_first then return one[2] < other[2] end
    return one[2] > other[2]
end

local place = asked.after and {tonumber(asked.after[1]), asked.after[2]}
local CHUNK = 50

-- The entries of one sorted set in the order asked, from the place on.
local function entries_of(key)
    local low = asked.since and tonumber(asked.since) or 0
    local high = asked.before and tonumber(asked.before) - 1 or 2 ^ 53
    if place and asked.oldest_first then low = math.max(low, place[1]) end
    if place and not asked.oldest_first then high = math.min(high, place[1]) end
    local offset, chunk, at, finished = 0, {}, 1, false
    local function following()
        while true do
            if not chunk[at] then
                if finished then return nil end
                if asked.oldest_first then
                    chunk = call('ZRANGEBYSCORE', key, text(low), text(high), 'WITHSCORES', 'LIMIT', offset, CHUNK)
                else
                    chunk = call('ZREVRANGEBYSCORE', key, text(high), text(low), 'WITHSCORES', 'LIMIT', offset, CHUNK)
                end
                offset, at, finished = offset + CHUNK, 1, #chunk < 2 * CHUNK
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
if asked.types then
    wanted_types = {}
    for _, type in ipairs(asked.types) do wanted_types[type] = true end
end

-- Whether a chain has all the attributes that are asked for.
local function has_attributes(id)
    for _, one in ipairs(asked.attributes) do
        if not call('ZSCORE', P .. 'at:' .. pair(one[1], one[2]), id) then return false end
    end
    return not wanted_types or wanted_types[call('HGET', P .. 'j:' .. id, 'type')]
end

local function fits(id)
    if asked.attributes and not has_attributes(id) then return false end
    if not asked.chains then
        if not statuses then return true end
        local found = call('HMGET', P .. 'j:' .. id, 'status')
        return statuses[found[1]]
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

if asked.attributes then
    add_source(P .. 'at:' .. pair(unpack(asked.attributes[1])))
else
    for _, type in ipairs(types) do add_source(P .. 'ix:' .. type) end
end

local found, looked, last = {}, 0, nil
while #found < asked.limit and looked < asked.scan and #sources > 0 do
    local best = 1
    for at = 2, #sources do
        if earlier(sources[at].head, sources[best].head) then best = at end
    end
    last = sources[best].head
    looked = looked + 1
    if fits(last[2]) then found[#found + 1] = {text(last[1]), last[2]} end
    sources[best].head = sources[best].following()
    if not sources[best].head then table.remove(sources, best) end
end
local more = #sources > 0 and #found < asked.limit
return {more and {text(last[1]), last[2]} or 0, found}
