-- Start the chains of a due schedule and move it on, if its next tick still is the one given.
-- ARGV[1]: {name, tick, next_at, jobs}; ARGV[2...]: their inputs. Chains that exist are left as they are; where a job of
-- another type has the id, the chain gets the id that is given besides. 0: not fired.

local asked = given(1)
local stored = call('HGET', P .. 'schedules', asked.name)
if not stored then return 0 end
local schedule = cjson.decode(stored)
if schedule.paused or schedule.next_at ~= asked.tick then return 0 end
schedule.next_at = asked.next_at
schedule.last_at = asked.last_at or schedule.last_at
call('HSET', P .. 'schedules', asked.name, cjson.encode(schedule))
local answer = {}
for at, new in ipairs(asked.jobs) do
    local found = load(new.id)
    if found and found.type ~= new.type then
        new.id = new.beside
        found = nil
    end
    answer[at] = told(found or write_job(new, NOW + at - 1), found ~= nil)
end
return packed(answer)
