-- name: record_step
-- Records a step of a job, if the token has the job's lease. ARGV[1]: {id, token, number, name, attempt, and moment or
-- delay of a sleep, or started_at of a phase}; ARGV[2]: the result; ARGV[3]: the progress of the job, for a phase. Returns
-- the time and a list with the step.

local step = decoded(1)
local job = load(step.id)
local reason = why_not_held(job, step.token)
if reason ~= '' then return refusal('lease_lost', step.id, reason) end
local key = P .. 's:' .. step.id
if call('LLEN', key) ~= step.number - 1 then return refusal('step_exists', step.id, text(step.number)) end
local wake_at = step.moment or step.delay and text(NOW + step.delay) or ''
local header = {step.name, step.attempt, text(NOW), wake_at}
if step.started_at then header = {step.name, step.attempt, text(NOW), '', false, false, step.started_at} end
local entry = cjson.encode(header) .. '\n' .. (ARGV[2] or '')
call('RPUSH', key, entry)
if step.started_at then
    put(job, {progress = ARGV[3]})
    log_event(job, 'phase_completed', 'running', job.holder, nil, ARGV[3])
end
return {text(NOW), {entry}}

-- name: begin_phase
-- Stores the progress of a job whose phase begins, if the token has its lease. ARGV[1]: {id, token}; ARGV[2]: the
-- progress. Returns the time.

local params = decoded(1)
local job = load(params[1])
local reason = why_not_held(job, params[2])
if reason ~= '' then return refusal('lease_lost', params[1], reason) end
put(job, {progress = ARGV[2]})
log_event(job, 'phase_started', 'running', job.holder, nil, ARGV[2])
return text(NOW)

-- name: get_progress
-- Reads the progress of a job. ARGV[1]: {id}.

return call('HGET', P .. 'j:' .. decoded(1)[1], 'progress')

-- name: get_steps
-- Reads the steps of a job, in order. ARGV[1]: {id}. Returns the time and the steps.

return {text(NOW), call('LRANGE', P .. 's:' .. decoded(1)[1], 0, -1)}

-- name: wait_for_event
-- Records a wait as the next step of a job, if it is not recorded yet, and answers it with the oldest event or by its
-- timeout. ARGV[1]: {id, token, number, name, attempt, event, timeout}. Returns the time and a list with the step.

local wait = decoded(1)
local job = load(wait.id)
local reason = why_not_held(job, wait.token)
if reason ~= '' then return refusal('lease_lost', wait.id, reason) end
local key, at = P .. 's:' .. wait.id, wait.number - 1
local step
if call('LLEN', key) == at then
    step = {wait.name, wait.attempt, text(NOW), text(NOW + wait.timeout), wait.event, ''}
    call('RPUSH', key, cjson.encode(step) .. '\n')
else
    step = step_at(wait.id, at)
    if not step or step[1] ~= wait.name or step[5] ~= wait.event then
        return refusal('step_exists', wait.id, text(wait.number))
    end
end
if step[6] == '' then
    local payload = take_event(job.chain, wait.event)
    if payload or tonumber(step[4]) <= NOW then
        step[6] = text(NOW)
        call('LSET', key, at, cjson.encode(step) .. '\n' .. (payload or ''))
    end
end
return {text(NOW), {call('LINDEX', key, at)}}
