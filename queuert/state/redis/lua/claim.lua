-- Lease due jobs of several types, best first: out of the waiting lists into the holder's, in one step with the lease.
-- ARGV[1]: {leases: {type: microseconds}, limit, max_bytes, holder, token, limits: {type: ...}, seed}. One job is taken
-- whatever its input measures, and what does not fit into `max_bytes` is not looked beyond.
-- Answers with whether dead entries were left in the way, and the jobs.

local asked = given(1)
math.randomseed(asked.seed)

-- All sources with, by type, what is left of its concurrency.
local sources, left = {}, {}
for type in pairs(asked.leases) do
    if call('HEXISTS', P .. 'paused', type) == 0 then
        local limits = asked.limits and asked.limits[type]
        local own
        if limits then
            own, left[type] = limited_sources(type, limits, asked.limit, asked.holder)
        else
            left[type] = asked.limit
            own = {lists_of(type, asked.holder), keyed_of(type, asked.holder)}
            local due = due_of_type(type, asked.limit)
            if #due > 0 then own[3] = listed_source(due, asked.holder) end
        end
        for _, source in ipairs(own) do sources[#sources + 1] = {of = source, type = type} end
    end
end

local function better(one, other)
    local mine, its = rank_of(one), rank_of(other)
    if mine ~= its then return mine < its end
    if one.due ~= other.due then return one.due < other.due end
    return (one.gen or 0) < (other.gen or 0)
end

local function best()
    local chosen, head
    for _, source in ipairs(sources) do
        local job = left[source.type] > 0 and source.of.head()
        if job and (not head or better(job, head)) then chosen, head = source, job end
    end
    return chosen, head
end

local answer, bytes, cut = {0}, 0, false
while #answer <= asked.limit do
    local source, job = best()
    if not job then break end
    local input = call('GET', P .. 'i:' .. job.id)
    bytes = bytes + (input and #input or 0)
    cut = bytes > asked.max_bytes and #answer > 1
    if cut then break end
    left[source.type] = left[source.type] - 1
    local was, limits = job.status, asked.limits and asked.limits[job.type]
    source.of.take(job)
    count(job.type, was, -1)
    count(job.type, 'running', 1)
    put(job, {
        status = 'running', attempt = job.attempt + 1, started = NOW, leased = NOW + asked.leases[job.type],
        token = asked.token, holder = asked.holder, gen = job.gen or 0,
    })
    call('ZADD', P .. 'lease:' .. job.type, job.leased, job.id)
    if job.limit then call('HINCRBY', P .. 'rk:' .. job.type, job.limit, 1) end
    note_start(job, limits)
    local noted, ttl = job.dependents, job.ttl
    if job.index > 0 then noted, ttl = unpack(call('HMGET', P .. 'j:' .. job.chain, 'dependents', 'ttl')) end
    answer[#answer + 1] = {
        job.id, job.type, job.chain, job.chain_type, job.index, job.priority, job.attempt, job.uncounted, job.expired,
        job.blockers, noted and 1 or 0,
        input, text(job.created or 0), text(job.due), text(job.started), job.trace or false, ttl and text(ttl) or false,
    }
end
if #answer > 1 then call('SADD', P .. 'holders', asked.holder) end
if BUDGET <= 0 and not cut then answer[1] = 1 end
return packed(answer)
