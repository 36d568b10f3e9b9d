-- Open failed and cancelled chains again, all or none. ARGV[1]: list of ids.

local ids = given(1)
local chains, missing = chains_of(ids)
if missing then return refusal('chain_not_found', missing) end
for id, chain in pairs(chains) do
    local status = chain.first.chain_status
    if status == 'open' or status == 'completed' then return refusal('not_retriable', id, status) end
end

-- Jobs that had been let go by the chain, and still wait for others, wait for it again.
local function reopen(first)
    call('ZREM', closed_key(first, first.chain_status), first.id)
    call('ZREM', P .. 'expires', first.id)
    put(first, {chain_status = 'open', closed = false, expires = false})
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
        if stands_open(chain) then open = open + call('SADD', P .. 'bo:' .. job.id, chain) end
    end
    move(job, resting_status(NOW, open), {
        due = NOW, finished = false, uncounted = job.attempt, expired = 0, token = false, open = open,
    })
    return open
end

for _, chain in pairs(chains) do reopen(chain.first) end
local done, answer = {}, {}
for at, id in ipairs(ids) do
    if not done[id] then
        local tail = load(chains[id].tail.id)
        local met_as = tail.status
        local open = try_again(tail)
        done[id] = met(chains[id].first, tail, met_as, 'open', true, open == 0 and {[tail.type] = true} or {})
    end
    answer[at] = done[id]
end
return answer
