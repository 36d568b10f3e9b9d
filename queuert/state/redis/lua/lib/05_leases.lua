-- Leases: whether a token may finish an attempt, and why not; and attempts that failed.
--
-- f:{job}    LIST failed attempts, as JSON: the first one and the newest

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

-- Returns why a lease does not hold its job now; '' if it does.
local function why_not_held(job, token)
    if holds(job, token) then return '' end
    local reason = lost_reason(job, token)
    return reason == '' and 'already_completed' or reason
end

-- Releases a claimed job, as if it had not been claimed.
local function release_job(job)
    move(job, 'ready', {attempt = job.attempt - 1, token = false}, true)
end

local MAX_FAILURES = 20

-- Appends the attempt that fails now to the failures of a running job. `error` is JSON, or nil.
local function add_failure(job, error)
    local key = P .. 'f:' .. job.id
    local kept = call('RPUSH', key, '{"attempt":' .. text(job.attempt)
        .. ',"started_at":' .. (job.started and text(job.started) or 'null') .. ',"failed_at":' .. text(NOW)
        .. ',"worker":' .. (job.holder and cjson.encode(job.holder) or 'null') .. ',"error":' .. (error or 'null') .. '}')
    if kept > MAX_FAILURES then
        call('LSET', key, 1, '')
        call('LREM', key, 1, '')
    end
end
