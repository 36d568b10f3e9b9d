-- Deleting chains.
--
-- expires            ZSET chains that have an end, by it
-- closed:{type,how}  ZSET closed chains of one type and outcome, by their start

local function closed_key(first, status)
    return P .. 'closed:' .. pair(first.type, status)
end

local function jobs_of(chain)
    local ids = call('ZRANGE', P .. 'c:' .. chain, 0, -1)
    return #ids > 0 and ids or {chain}
end

local function delete_job(job)
    local leave = LEAVE[job.status]
    if leave then leave(job) end
    count(job.type, job.status, -1)
    for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. job.id, 0, -1)) do
        call('ZREM', P .. 'bb:' .. chain, job.id)
    end
    if job.dedup then
        call('ZREM', dedup_key(job, 'd'), job.id)
        call('ZREM', dedup_key(job, 'do'), job.id)
    end
    if job.index == 0 then
        delete_attributes(job.id)
        call('ZREM', P .. 'expires', job.id)
        call('ZREM', closed_key(job, job.chain_status), job.id)
    end
    local listed_in = P .. 'ix:' .. job.type
    call('ZREM', listed_in, job.id)
    if call('EXISTS', listed_in) == 0 then call('SREM', P .. 'types', job.type) end
    local keys = {}
    for at, kind in ipairs({'j:', 'i:', 'o:', 'e:', 'f:', 's:', 'bl:', 'bo:', 'bb:', 'c:'}) do keys[at] = P .. kind .. job.id end
    call('DEL', unpack(keys))
end

-- Deletes a chain with all its jobs; adds the ids of those that were running to a list.
local function delete_chain(chain, running)
    local jobs = {}
    for _, id in ipairs(jobs_of(chain)) do jobs[#jobs + 1] = load(id) end
    for _, job in ipairs(jobs) do
        if job.status == 'running' and running then running[#running + 1] = job.id end
        delete_job(job)
    end
end

-- Whether an unfinished job of another chain has the chain as a blocker.
local function is_needed(chain)
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do
        local job = load(id)
        if job and job.chain ~= chain and not FINAL[job.status] then return true end
    end
    return false
end

-- Deletes a chain that is not needed, and its entries as a blocker of finished jobs.
local function prune_chain(chain)
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do
        call('ZREM', P .. 'bl:' .. id, chain)
        call('SREM', P .. 'bo:' .. id, chain)
    end
    delete_chain(chain)
end
