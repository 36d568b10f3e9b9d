-- name: delete_schedules
-- Deletes recurring schedules. ARGV[1]: {names, owner}; with an owner only those of the owner. Returns how many were
-- deleted.

local params, deleted = decoded(1), 0
for _, name in ipairs(params.names) do
    local stored = params.owner and call('HGET', P .. 'schedules', name)
    if not params.owner or (stored and cjson.decode(stored).owner == params.owner) then
        deleted = deleted + call('HDEL', P .. 'schedules', name)
    end
end
return deleted

-- name: fire_schedule
-- Starts chains of a schedule. ARGV[1]: {name, tick, next_at, last_at, jobs, overlap}; ARGV[2...]: the inputs. With a
-- tick, if it still is the next one, the schedule is advanced; without, it stays. With `overlap`, open chains do not
-- matter. Chains that exist are not changed; if a job of another type has the id, the chain gets its second id. Returns
-- 0 if nothing was written, and no chains if it skips the tick; refuses a tick whose open chain must be cancelled first.

local params = decoded(1)
local stored = call('HGET', P .. 'schedules', params.name)
if not stored then return 0 end
local schedule = cjson.decode(stored)
if params.tick then
    if schedule.paused or schedule.next_at ~= params.tick then return 0 end
elseif schedule.type ~= params.jobs[1].type then
    return 0
end
local answer, policy, last = {}, schedule.overlap or 'allow', schedule.last_chain_id
local held = policy ~= 'allow' and not params.overlap and #params.jobs > 0 and last and is_open(last)
if held then
    -- Not ticks that come again, as the clock was set back, and whose chains all exist.
    local again = true
    for _, new in ipairs(params.jobs) do
        local found = load(new.id)
        again = again and found and found.type == new.type
    end
    held = not again
end
if held and policy == 'cancel' then return params.tick and refusal('overlap', params.name, last) or 0 end
if not held then
    for at, new in ipairs(params.jobs) do
        local found = load(new.id)
        if found and found.type ~= new.type then
            new.id = new.beside
            found = nil
        end
        answer[at] = job_answer(found or write_job(new, NOW + at - 1), found ~= nil)
        if not params.overlap and not found then schedule.last_chain_id = new.id end
    end
    schedule.last_at = params.last_at or schedule.last_at
end
if params.tick then schedule.next_at = params.next_at end
call('HSET', P .. 'schedules', params.name, cjson.encode(schedule))
return packed(answer)

-- name: list_schedules
-- Reads all recurring schedules. Returns the time and what is stored of each.

local answer = {text(NOW)}
for _, stored in ipairs(call('HVALS', P .. 'schedules')) do answer[#answer + 1] = stored end
return answer

-- name: pause_schedules
-- Pauses or resumes recurring schedules. ARGV[1]: {names, paused}. Returns how many of these exist.

local params, found = decoded(1), 0
for _, name in ipairs(params.names) do
    local stored = call('HGET', P .. 'schedules', name)
    if stored then
        local schedule = cjson.decode(stored)
        schedule.paused = params.paused
        call('HSET', P .. 'schedules', name, cjson.encode(schedule))
        found = found + 1
    end
end
return found

-- name: put_schedules
-- Writes recurring schedules by name. ARGV[1]: list of schedules. An existing one keeps its pause and its latest tick,
-- and its next tick if its times are the same. Returns nothing, or the name and the owner of a schedule that belongs to
-- another owner; then nothing is written.

local key, schedules, old = P .. 'schedules', decoded(1), {}
local function same(field, one, other)
    local a, b = one[field], other[field]
    return a == b or (a or cjson.null) == (b or cjson.null)
end
for at, new in ipairs(schedules) do
    local stored = call('HGET', key, new.name)
    if stored then
        old[at] = cjson.decode(stored)
        if not same('owner', old[at], new) then
            local owner = old[at].owner
            return {new.name, type(owner) == 'string' and owner or nil}
        end
    end
end
for at, new in ipairs(schedules) do
    local before = old[at]
    if before then
        new.paused, new.last_at, new.last_chain_id = before.paused, before.last_at, before.last_chain_id
        local unchanged = true
        for _, field in ipairs({'cron', 'every', 'time_zone', 'starts_at', 'ends_at'}) do
            unchanged = unchanged and same(field, before, new)
        end
        if unchanged then new.next_at = before.next_at end
    end
    call('HSET', key, new.name, cjson.encode(new))
end
return {}
