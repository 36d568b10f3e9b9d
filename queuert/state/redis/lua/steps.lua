-- name: record_step
-- Records a step of a job, if the token has the job's lease. ARGV[1]: {id, token, number, name, attempt, and moment or
-- delay of a sleep}; ARGV[2]: the result. Returns the time and a list with the step.
--
-- s:{job}    LIST of steps: name, attempt, when it was recorded and when it ends as JSON; a newline; the result

local step = decoded(1)
local reason = why_not_held(load(step.id), step.token)
if reason ~= '' then return refusal('lease_lost', step.id, reason) end
local key = P .. 's:' .. step.id
if call('LLEN', key) ~= step.number - 1 then return refusal('step_exists', step.id, text(step.number)) end
local wake_at = step.moment or step.delay and text(NOW + step.delay) or ''
local entry = cjson.encode({step.name, step.attempt, text(NOW), wake_at}) .. '\n' .. (ARGV[2] or '')
call('RPUSH', key, entry)
return {text(NOW), {entry}}

-- name: get_steps
-- Reads the steps of a job, in order. ARGV[1]: {id}. Returns the time and the steps.

return {text(NOW), call('LRANGE', P .. 's:' .. decoded(1)[1], 0, -1)}
