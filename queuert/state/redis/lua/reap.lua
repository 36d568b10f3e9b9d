-- Turn expired leases into failed attempts. ARGV[1]: {policies: [...], limit, seed}.
-- Answers with the microseconds until the next lease expires (-1: none) and what was reaped.

local asked = given(1)
math.randomseed(asked.seed)

local function pause_after(policy, counted)
    if policy.initial == 0 then return 0 end
    local base = policy.maximum
    if (counted - 1) * math.log(policy.multiplier) <= 100 then
        base = math.min(base, policy.initial * policy.multiplier ^ (counted - 1))
    end
    return math.floor(base * (1 + policy.jitter * math.random()) * 1000000)
end

local function message(job, again, expirations, policy)
    local said = 'the lease of worker ' .. (job.holder or '?') .. ' expired'
    if again then return said .. ': it crashed, froze or lost the database' end
    if expirations >= policy.max_crashes then
        return said .. ', for the ' .. text(expirations) .. '. time: the job may be what kills its workers'
    end
    return said .. ' on the last attempt'
end

local function reap_one(job, policy)
    local counted, expirations = job.attempt - job.uncounted, job.expired + 1
    local again = counted < policy.max_attempts and expirations < policy.max_crashes
    local pause = again and pause_after(policy, counted) or 0
    local status = not again and 'failed' or (pause > 0 and 'scheduled' or 'ready')
    local changes = {expired = expirations, token = false}
    if pause > 0 then changes.due = NOW + pause end
    if not again then changes.finished = NOW end
    local error = {kind = 'lease_expired', message = message(job, again, expirations, policy)}
    call('SET', P .. 'e:' .. job.id, cjson.encode(error))
    move(job, status, changes, true)
    local readied = {}
    if again then
        readied[job.type] = true
    else
        close_chain(job.index == 0 and job or load(job.chain), 'failed', readied)
    end
    return {job.id, job.type, job.chain, status, job.attempt, job.holder or false, listed(readied)}
end

local answer, next_expiry = {}, nil
for _, policy in ipairs(asked.policies) do
    local leases, left = P .. 'lease:' .. policy.type, asked.limit - #answer
    for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', text(NOW), 'LIMIT', 0, left)) do
        local job = load(id)
        if job and job.status == 'running' then
            answer[#answer + 1] = reap_one(job, policy)
        else
            call('ZREM', leases, id)
        end
    end
    local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')
    if first[2] then next_expiry = math.min(next_expiry or 1 / 0, tonumber(first[2])) end
end
return {next_expiry and text(math.max(0, next_expiry - NOW)) or '-1', answer}
