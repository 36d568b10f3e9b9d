-- Leases: whether a token may finish an attempt, and why not.

local ENDED = {complete = 'completed', continue = 'continued', fail = 'failed', cancel = 'cancelled'}
local RESTING = {ready = true, scheduled = true, blocked = true}

local function holds(job, token)
    return job ~= nil and job.status == 'running' and job.token == token
end

-- Returns why a lease does not hold its job; '' if it does, or if it has already written a finish of this kind.
local function lost_reason(job, token, kind)
    if not job then return 'not_found' end
    local ours = job.token == token
    if ours then
        if job.status == 'running' or not kind then return '' end
        local ended = ENDED[kind]
        if ended == job.status or (not ended and RESTING[job.status]) then return '' end
    elseif job.status == 'cancelled' then
        return 'cancelled'
    end
    return FINAL[job.status] and 'already_completed' or 'taken_by_another_worker'
end

-- Releases a claimed job, as if it had not been claimed.
local function release_job(job)
    move(job, 'ready', {attempt = job.attempt - 1, token = false}, true)
end
