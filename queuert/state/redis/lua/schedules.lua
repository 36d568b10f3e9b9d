-- name: delete_schedules
-- Deletes recurring schedules. ARGV[1]: list of names. Returns how many existed.

local deleted = 0
for _, name in ipairs(decoded(1)) do deleted = deleted + call('HDEL', P .. 'schedules', name) end
return deleted

-- name: fire_schedule
-- Starts the chains of a due schedule and advances it, if its next tick still is the given one. ARGV[1]: {name, tick,
-- next_at, jobs}; ARGV[2...]: their inputs. Chains that exist are not changed; if a job of another type has the id, the
-- chain gets its second id. Returns 0 if it was not fired.

local params = decoded(1)
local stored = call('HGET', P .. 'schedules', params.name)
if not stored then return 0 end
local schedule = cjson.decode(stored)
if schedule.paused or schedule.next_at ~= params.tick then return 0 end
schedule.next_at = params.next_at
schedule.last_at = params.last_at or schedule.last_at
call('HSET', P .. 'schedules', params.name, cjson.encode(schedule))
local answer = {}
for at, new in ipairs(params.jobs) do
    local found = load(new.id)
    if found and found.type ~= new.type then
        new.id = new.beside
        found = nil
    end
    answer[at] = job_answer(found or write_job(new, NOW + at - 1), found ~= nil)
end
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
-- and its next tick if its times are the same.

for _, new in ipairs(decoded(1)) do
    local key, name = P .. 'schedules', new.name
    local stored = call('HGET', key, name)
    if stored then
        local old = cjson.decode(stored)
        new.paused, new.last_at = old.paused, old.last_at
        if old.cron == new.cron and old.every == new.every and old.time_zone == new.time_zone then
            new.next_at = old.next_at
        end
    end
    call('HSET', key, name, cjson.encode(new))
end
return #decoded(1)
